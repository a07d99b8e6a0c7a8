#include "tests/support/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kerf/numeric/bf16.h"
#include "kerf/numeric/nvfp4.h"

namespace kerf::test {

namespace {

void fill_codes(std::span<std::byte> bytes, Random& random) {
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    const std::uint64_t word = random.next();
    std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(8, bytes.size() - at));
  }
}

// Mostly 0.25 .. 2, the smallest subnormals, and both zeros now and then.
void fill_scales(std::span<std::byte> bytes, Random& random) {
  for (std::byte& b : bytes) {
    const std::uint64_t pick = random.below(64);
    b = static_cast<std::byte>(pick == 0   ? 0x00
                               : pick == 1 ? 0x80
                               : pick == 2 ? 1 + random.below(7)
                                           : 0x28 + random.below(24));
  }
}

void fill(std::span<float> values, Random& random, float around) {
  for (float& v : values) v = around * (0.5F + static_cast<float>(random.below(1024)) / 1024.0F);
}

}  // namespace

layout::Nvfp4Experts random_nvfp4(tensor::Memory& memory, const layout::ExpertsShape& shape,
                                  std::int64_t first_expert, std::uint64_t seed) {
  Random random(seed);
  layout::Nvfp4Experts e(memory, shape, first_expert);
  fill_codes(e.w13.bytes(), random);
  fill_scales(e.w13_sf.bytes(), random);
  fill_codes(e.w2.bytes(), random);
  fill_scales(e.w2_sf.bytes(), random);
  // Codes have a root mean square near 3, scales near 1, quantised inputs near 3 times their block scale.
  const auto h = static_cast<float>(shape.hidden);
  const auto i = static_cast<float>(shape.intermediate);
  fill(e.g1_alphas.as<float>(), random, 1.0F / (1500.0F * std::sqrt(h)));
  fill(e.g1_scale_c.as<float>(), random, 8.0F / (1500.0F * std::sqrt(h)));
  fill(e.g2_alphas.as<float>(), random, 1.0F / (100.0F * std::sqrt(i)));
  e.a1_gscale.as<float>()[0] = 448.0F;
  e.a2_gscale.as<float>()[0] = 8.0F;
  return e;
}

layout::Bf16Experts random_bf16(tensor::Memory& memory, const layout::ExpertsShape& shape,
                                std::int64_t first_expert, std::uint64_t seed) {
  Random random(seed);
  layout::Bf16Experts e(memory, shape, first_expert);
  const auto h = static_cast<float>(shape.hidden);
  for (std::uint16_t& v : e.w13.as<std::uint16_t>()) v = numeric::f32_to_bf16(random.normal() / std::sqrt(h));
  for (std::uint16_t& v : e.w2.as<std::uint16_t>())
    v = numeric::f32_to_bf16(random.normal() / std::sqrt(static_cast<float>(shape.intermediate)));
  return e;
}

StepData random_step(std::int64_t tokens, std::int64_t top_k, std::int64_t num_experts, std::int64_t hidden,
                     std::uint64_t seed, float gs) {
  Random random(seed);
  StepData s;
  s.tokens = tokens;
  s.x.resize(static_cast<std::size_t>(tokens * hidden));
  for (std::uint16_t& v : s.x) v = numeric::f32_to_bf16(random.normal());
  s.a.resize(s.x.size() / 2);
  s.a_sf.resize(s.x.size() / 16);
  if (tokens > 0) numeric::quantise_rows(s.x, hidden, gs, s.a, s.a_sf);
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_experts));
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::iota(order.begin(), order.end(), 0);
    for (std::int64_t k = 0; k < top_k; ++k) {
      const auto at = static_cast<std::size_t>(k);
      std::swap(order[at], order[at + random.below(order.size() - at)]);
      s.ids.push_back(order[at]);
      s.weights.push_back(static_cast<float>(1 + random.below(64)) / 64.0F);
    }
  }
  return s;
}

OpResult run_op(const op::RoutedExperts& experts, const StepData& step, op::Tactic tactic, int threads) {
  tensor::HostMemory memory;
  const std::int64_t tile = tactic.tile > 0 ? tactic.tile : 8;
  const routing::MetadataShape shape = experts.metadata_shape(step.tokens, tile);
  const routing::MetadataBuffer metadata(memory, routing::metadata_words(shape));
  std::vector<std::byte> workspace(experts.workspace_bytes(shape, tactic));
  const std::int64_t hidden = experts.shape().hidden;
  // NaN everywhere: nothing undefined may reach a result.
  std::vector<std::uint16_t> rows(static_cast<std::size_t>(op::gemm2_rows(shape, hidden) * hidden), 0x7FC1);
  std::fill(workspace.begin(), workspace.end(), std::byte{0xFF});
  const op::Unfinalized out = op::routed_experts(experts, step.input(), step.routes(), tactic,
                                                 Workers(threads), {&metadata, workspace, rows});
  OpResult result;
  result.map.assign(out.map.begin(), out.map.end());
  for (const std::int32_t row : result.map) {
    const auto at = static_cast<std::ptrdiff_t>(row * hidden);
    if (row < 0)
      result.rows.insert(result.rows.end(), static_cast<std::size_t>(hidden), 0);
    else
      result.rows.insert(result.rows.end(), out.rows.begin() + at, out.rows.begin() + at + hidden);
  }
  return result;
}

}  // namespace kerf::test
