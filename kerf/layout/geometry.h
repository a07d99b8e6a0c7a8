// Which shapes the converted layout can hold, and which cuts of it move bytes only.
#pragma once

#include <cstdint>
#include <vector>

#include "kerf/base/error.h"

namespace kerf::layout {

// Nothing where NVFP4 experts of H x I can be converted: H % 128 == 0 and I % 64 == 0. The reason names H or
// I.
Verdict convertible(std::int64_t hidden, std::int64_t intermediate);

// The same for BF16 experts: H % 64 == 0 and I % 64 == 0.
Verdict convertible_bf16(std::int64_t hidden, std::int64_t intermediate);

// Every tp >= 1 for which I / tp is a whole multiple of 64, ascending. Empty where I itself is not.
std::vector<std::int64_t> legal_tp(std::int64_t intermediate);

// Every ep >= 1 that E experts can be placed over whole, ascending: the divisors of E. Empty for E < 1.
std::vector<std::int64_t> legal_ep(std::int64_t experts);

// Nothing where converted experts can be cut tp ways by moving bytes: convertible, tp divides I, I / tp % 64
// == 0. tp < 1 is a usage error. The reason gives the slice's width, why it fails and the legal tp.
Verdict cuttable(std::int64_t hidden, std::int64_t intermediate, std::int64_t tp);

// Nothing where E experts can be placed whole over ep ranks (E % ep == 0); ep < 1 is a usage error. The
// reason lists the legal ep.
Verdict placeable(std::int64_t experts, std::int64_t ep);

}  // namespace kerf::layout
