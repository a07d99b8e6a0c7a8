// The probe: a resharded layer's TP rows, summed over ranks, against the rows of its EP experts, on the same
// input. It catches what moving bytes can get wrong (a slice in the wrong place, a scale tensor of another
// expert, a scalar in the wrong order) before the first token is served.
#pragma once

#include <cstdint>

#include "kerf/decode/build.h"
#include "kerf/decode/layer.h"

namespace kerf::decode {

// The largest rel L2 that a right reshard can show is a question of bf16 alone: GEMM1, the activation and the
// requantised intermediate are the same numbers in both (a slice cuts between 16-value blocks), and f32 sums
// in another order differ by 2^-24-ish. What is left: one rounding of the EP row, one of each of the n
// K-partials and one of their sum, each at most u = 2^-9 relative. With p_r the partials and y the row,
//
//   |error| <= u * (|y| + sum_r |p_r| + |y|), so rel L2 <= u * (2 + c), c = || sum_r |p_r| || / || y ||.
//
// Partials of unlike sign give c of about sqrt(n) at worst and the roundings, being independent, add in
// quadrature: near u * sqrt(3) / sqrt(3) = 0.002 in practice at any n. The limit 0.01 = 5.1 u leaves room for
// c up to 3.1 without any quadrature. A slice that is missing or wrong is at least sqrt(1/n) of the row away
// (0.25 at n = 16), and one wrong expert of 64 probed is 0.125: an order of magnitude above the limit.
inline constexpr double probe_limit = 0.01;

struct ProbeOptions {
  std::int64_t tokens = 8;  // raised where fewer would leave an EP rank without a route
  std::uint64_t seed = 20261023;
  double limit = probe_limit;
};

// Tokens of the probe: at least options.tokens, and at least two routes a rank.
std::int64_t probe_tokens(const ProbeOptions& options, std::int64_t top_k, int ranks);

// Collective. Runs the public op on the layer's EP and TP experts (both must be there) with seeded unit-RMS
// rows, quantised with the layer's own input scale, routes spread over all experts, equal weights 1/K.
// Returns the rel L2, the same on every rank. Above the limit or not a number: Error{probe} on every rank,
// with the layer, the value, the limit, and for each rank how many of its EP and TP rows are finite and their
// largest magnitude. Its buffers are allocated here and gone on return.
double probe(const Layer& layer, const ProbeOptions& options, const Rank& rank);

}  // namespace kerf::decode
