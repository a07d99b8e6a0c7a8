// The one-hot checkpoint in other dialects, written out by hand: each from its description in
// docs/formats.md, an element at a time, without the table that the reader goes by.
#pragma once

#include <string>

#include "tests/support/onehot.h"

namespace kerf::test {

// Names of restated()'s dialects.
const std::vector<std::string>& restated_names();

// A one-layer one-hot checkpoint with per-expert names, NVFP4 or BF16, in that dialect; its configuration,
// too, where the dialect asks for one. Scales are as they were in value: divisors are 1 / scale.
Onehot restated(const Onehot& plain, const std::string& dialect);

}  // namespace kerf::test
