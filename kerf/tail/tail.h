// The tail: what turns unfinalised rows into [T, H]. Per route an optional RMSNorm, then the weights, then
// the sum over k ascending from +0 (fma, f32, one rounding to bf16). Routes that are not here are skipped.
// docs/numerics.md has the exact arithmetic.
//   EP: every rank finishes its own routes, rounds to bf16, and the [T, H] partials are summed over ranks.
//   TP: rows are K-partials, so they are summed over ranks first, per route; then norm, weights, sum.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kerf/base/threads.h"
#include "kerf/comm/group.h"
#include "kerf/op/op.h"

namespace kerf::tail {

// Per-route RMSNorm. gain: the effective gain in bf16 (raw bits) [H], or empty for none.
struct RouteNorm {
  std::vector<std::uint16_t> gain;
  bool gain_before_norm =
      true;  // t = bf16(row * gain), then the norm; otherwise the norm, then * gain in f32
  float eps = 1e-8F;
};

// The effective gain bf16(center + w) of a stored offset w (raw bf16 bits).
std::vector<std::uint16_t> effective_gain(std::span<const std::uint16_t> w, float center);

// Norms one row of H bf16 values into f32 (canonical: power-of-two scaled, 256 partial sums, IEEE sqrt and
// division).
void norm_row(std::span<const std::uint16_t> row, const RouteNorm& norm, std::span<float> out);

// Scratch of the tails for T tokens of K routes and width H, on a group of `ranks`; made once, reused by
// every layer.
struct Scratch {
  Scratch() = default;
  Scratch(tensor::Memory& memory, std::int64_t tokens, std::int64_t top_k, std::int64_t hidden, int ranks,
          int workers);
  tensor::Tensor rows;     // [roundup(T, ranks) * K, H] bf16: K-partials in route order
  tensor::Tensor reduced;  // [roundup(T, ranks) / ranks * K, H] bf16
  tensor::Tensor partial;  // [roundup(T, ranks), H] bf16
  tensor::Tensor values;   // [workers, 2, H] f32
};

// Local part of the EP tail: weighted sum of the routes that are here, out [T, H] bf16. A token without local
// routes gets exact zeros.
void finalize(const op::Unfinalized& rows, const std::optional<RouteNorm>& norm, const Workers& workers,
              const Scratch& scratch, std::span<std::uint16_t> out);

// Collective tails; out [T, H] bf16 is equal, bit for bit, on every rank.
void ep_tail(const op::Unfinalized& rows, const std::optional<RouteNorm>& norm, comm::Group& group,
             const Workers& workers, const Scratch& scratch, std::span<std::uint16_t> out);
void tp_tail(const op::Unfinalized& rows, const std::optional<RouteNorm>& norm, comm::Group& group,
             const Workers& workers, const Scratch& scratch, std::span<std::uint16_t> out);

}  // namespace kerf::tail
