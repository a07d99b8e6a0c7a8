// The tiny golden op, through every backend: intermediate steps are covered by bits of the rows, which the
// vectors give.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kerf/numeric/bf16.h"
#include "kerf/op/internal/gated.h"
#include "kerf/op/op.h"
#include "tests/support/experts.h"
#include "tests/support/npy.h"

namespace kerf::op {
namespace {

using test::golden;

// E = 4, H = 256, I = 128, T = 5, K = 2.
layout::Nvfp4Experts tiny(tensor::Memory& memory, std::int64_t first, std::int64_t n) {
  layout::Nvfp4Experts e(memory, {n, 256, 128}, first);
  const auto copy = [&](const tensor::Tensor& to, const std::vector<std::byte>& from) {
    const std::size_t part = from.size() / 4;
    std::memcpy(to.bytes().data(), from.data() + static_cast<std::size_t>(first) * part,
                static_cast<std::size_t>(n) * part);
  };
  copy(e.w13, test::golden_bytes("op_w13_conv", 1));
  copy(e.w13_sf, test::golden_bytes("op_w13_sf_conv", 1));
  copy(e.w2, test::golden_bytes("op_w2_conv", 1));
  copy(e.w2_sf, test::golden_bytes("op_w2_sf_conv", 1));
  copy(e.g1_alphas, test::golden_bytes("op_g1_alphas", 4));
  copy(e.g1_scale_c, test::golden_bytes("op_g1_scale_c", 4));
  copy(e.g2_alphas, test::golden_bytes("op_g2_alphas", 4));
  return e;
}

test::StepData tiny_step() {
  test::StepData s;
  s.tokens = 5;
  s.a = golden<std::uint8_t>("op_x_codes");
  s.a_sf = golden<std::uint8_t>("op_x_sf");
  s.ids = golden<std::int32_t>("op_ids");
  s.weights = golden<float>("op_weights");
  return s;
}

// The golden rows were summed in f64. Canonical sums have at most 16 + 8 + 3 f32 roundings (two chains' worth
// of blocks, the tree, the scale), each at most 2^-24 of a partial sum, and no partial sum here is above 8
// times the largest row. So the stored bf16 row is the rounding of some value that close to the f64 row: the
// same bits, except beside a boundary.
TEST(GoldenOp, RowsOfEveryBackend) {
  tensor::HostMemory memory;
  const auto rows = golden<double>("op_rows");
  const test::StepData step = tiny_step();
  double largest = 0;
  for (const double r : rows) largest = std::max(largest, std::abs(r));
  for (const std::string& name : backend_names()) {
    for (const std::int64_t first : {0, 2}) {
      const auto experts = tiny(memory, first, 4 - first);
      const auto got =
          test::run_op(*backend(name).bind(Nvfp4Args{experts.view(), 4, 2, Input::nvfp4, {}}), step);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const bool here = step.ids[i / 256] >= first;
        ASSERT_EQ(got.map[i / 256] >= 0, here);
        if (!here) continue;
        const double slack = 27 * 0x1p-24 * 8 * largest;
        const float low = numeric::round_to_bf16(static_cast<float>(rows[i] - slack));
        const float high = numeric::round_to_bf16(static_cast<float>(rows[i] + slack));
        const float row = numeric::bf16_to_f32(got.rows[i]);
        ASSERT_TRUE(low <= row && row <= high) << name << " " << i << " " << rows[i] << " " << row;
      }
    }
  }
}

TEST(GoldenOp, SwigluMatchesTheGoldenActivation) {
  const auto x0 = golden<float>("act_x0");
  const auto x1 = golden<float>("act_x1");
  const auto want = golden<double>("act_out");  // [6, 256]; the first three are SwiGLU
  internal::ExpertScalars s;
  s.scale_up = 0.75F;
  s.scale_gate = 0.03125F;
  const std::array<std::array<float, 3>, 3> parameters = {{{1, 0, INFINITY}, {1.702F, 32, 224}, {1, 0, 224}}};
  for (std::size_t c = 0; c < 3; ++c) {
    s.alpha = parameters[c][0];
    s.beta = parameters[c][1];
    s.limit_gate = s.limit_up = parameters[c][2];
    // The sigmoid's relative error: 2 ulp of E, times up to |alpha g| * 2^-24 from rounding its argument, two
    // more roundings; then four products and sums.
    for (std::size_t i = 0; i < x0.size(); ++i) {
      const double g = std::abs(s.alpha * x1[i] * 0.03125);
      ASSERT_NEAR(internal::gated(x0[i], x1[i], s), want[c * 256 + i],
                  std::abs(want[c * 256 + i]) * (10 + g) * 0x1p-23 + 1e-37)
          << c << " " << i;
    }
  }
}

}  // namespace
}  // namespace kerf::op
