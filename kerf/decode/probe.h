// The probe: does a resharded layer compute what its EP experts compute? For one input, the TP rows of the
// ranks that share an expert are added and compared with the EP rows. It catches what moving bytes can get
// wrong (a slice in the wrong place, a scale tensor of another expert, a scalar in the wrong order) before
// the first token is served.
#pragma once

#include <cstdint>

#include "kerf/decode/build.h"
#include "kerf/decode/layer.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// The largest rel L2 that a right reshard can show is a question of bf16 alone: GEMM1, the activation and the
// requantised intermediate are the same numbers in both (a slice cuts between 16-value blocks), and f32 sums
// in another order differ by 2^-24-ish. What is left: one rounding of the EP row y, one of each of the n
// K-partials p_r and one of their sum. A rounding moves a value by at most u = 2^-8 of it, and, being uniform
// over half a step either way, by at most u / sqrt(3) of it in the root mean square. The roundings are
// independent of each other, so their squares add:
//
//   rel L2 <= u / sqrt(3) * sqrt(2 + c), c = sum_r || p_r ||^2 / || y ||^2.
//
// Partials that are unlike each other have c near 1 at any n: at most u = 0.0039, and 0.0026 is typical. The
// limit 0.01 leaves room for c up to 17, for partials that cancel. A slice that is missing or wrong is at
// least sqrt(1/n) of the row away (0.25 at n = 16), and one wrong expert of 64 probed is 0.125: an order of
// magnitude above the limit.
inline constexpr double probe_limit = 0.01;

// How the probe is made, and what it may find.
struct ProbeOptions {
  std::int64_t tokens = 8;  // 1 to most_tokens; raised where fewer would leave an EP rank without a route
  std::uint64_t seed = 20261023;
  double limit = probe_limit;  // at least 0
};

// Tokens of the probe: at least options.tokens, and at least two routes a rank, ceil(2 * ranks / K).
std::int64_t probe_tokens(const ProbeOptions& options, std::int64_t top_k, int ranks);

// Bytes of a probe's buffers on a rank that holds `ep` of whole experts and `tp` of slices, of `experts` (E)
// of which a token takes `top_k`, in a group of `ranks`.
std::int64_t probe_bytes(const op::Backend& backend, op::Arithmetic arithmetic,
                         const layout::ExpertsShape& ep, const layout::ExpertsShape& tp, std::int64_t experts,
                         std::int64_t top_k, int ranks, const ProbeOptions& options = {});

// Collective. Calls the public op on the layer's EP and TP experts (both must be there). Rows come from the
// seed, have unit RMS and are quantised with the input scale of the layer where it takes them so; routes
// visit the experts evenly and weigh 1/K each. Returns the rel L2, the same on every rank. Above the limit or
// not a number: Error{probe} on every rank, whose text has the layer, the value, the limit and, rank by rank,
// the count of finite rows and the largest magnitude, for EP and for TP. Its buffers are allocated here and
// gone on return: Error{memory} on every rank. Error{usage} on every rank for options out of range.
double probe(const Layer& layer, const ProbeOptions& options, const Rank& rank);

}  // namespace kerf::decode
#pragma GCC visibility pop
