// Seeded experts and inputs for tests, directly in the converted layout.
#pragma once

#include <cstdint>
#include <vector>

#include "kerf/layout/experts.h"
#include "kerf/numeric/splitmix.h"
#include "kerf/op/op.h"

namespace kerf::test {

// Numbers of one stream, one after the other: the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : stream_(seed) {}
  std::uint64_t next() { return stream_[drawn_++]; }
  std::uint64_t below(std::uint64_t n) { return next() % n; }
  // Roughly standard normal.
  float normal() { return static_cast<float>(numeric::bell(next())) / numeric::bell_deviation; }

 private:
  numeric::SplitMix stream_;
  std::uint64_t drawn_ = 0;
};

// NVFP4 experts of any codes and positive block scales around 1 (some zero, some -0), scalars that keep rows
// near unit size.
layout::Nvfp4Experts random_nvfp4(tensor::Memory& memory, const layout::ExpertsShape& shape,
                                  std::int64_t first_expert, std::uint64_t seed);
layout::Bf16Experts random_bf16(tensor::Memory& memory, const layout::ExpertsShape& shape,
                                std::int64_t first_expert, std::uint64_t seed);

// T rows of width H, and T x K routes.
struct StepData {
  std::int64_t tokens = 0;
  std::vector<std::uint16_t> x;    // [T, H] bf16
  std::vector<std::uint8_t> a;     // [T, H/2]
  std::vector<std::uint8_t> a_sf;  // [T, H/16]
  std::vector<std::int32_t> ids;   // [T, K]
  std::vector<float> weights;      // [T, K]

  [[nodiscard]] op::Tokens input() const { return {tokens, a, a_sf, x}; }
  [[nodiscard]] op::Routes routes() const { return {ids, weights}; }
};
// Distinct experts a token; x quantised with global scale gs.
StepData random_step(std::int64_t tokens, std::int64_t top_k, std::int64_t num_experts, std::int64_t hidden,
                     std::uint64_t seed, float gs = 448.0F);

// The public op with buffers of its own. rows in route order [T*K, H] (zero where a route is not here).
struct OpResult {
  std::vector<std::uint16_t> rows;
  std::vector<std::int32_t> map;
};
OpResult run_op(const op::RoutedExperts& experts, const StepData& step, op::Tactic tactic = {},
                int threads = 1);

}  // namespace kerf::test
