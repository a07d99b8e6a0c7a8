// The tail: from unfinalised rows to [T, H]. Each row is normed if the model has a per-route RMSNorm; then a
// token's rows are weighted and added up, from k = 0 on, by fma in f32 and with one rounding to bf16. Routes
// that a rank does not have it passes over. docs/numerics.md has the exact arithmetic.
//   EP: every rank does this for the routes it has, and then the ranks' [T, H] are added.
//   TP: a rank's rows are K-partials, so the ranks' rows of each route are added before anything else.
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

// Collective tails; all ranks end with the same bits in out, [T, H] bf16.
void ep_tail(const op::Unfinalized& rows, const std::optional<RouteNorm>& norm, comm::Group& group,
             const Workers& workers, const Scratch& scratch, std::span<std::uint16_t> out);
void tp_tail(const op::Unfinalized& rows, const std::optional<RouteNorm>& norm, comm::Group& group,
             const Workers& workers, const Scratch& scratch, std::span<std::uint16_t> out);

}  // namespace kerf::tail
