// The tiny golden op, through every backend: intermediate steps are covered by bits of the rows, which the
// vectors give.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "kerf/layout/slice.h"
#include "kerf/numeric/bf16.h"
#include "kerf/numeric/nvfp4.h"
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

// The golden rows were summed in f64. A canonical sum rounds in f32: each term passes at most 1 fma of its
// chain per 8 blocks (1 here, 128 values), 3 adds of the segment and the product with the scale, so a row is
// off by at most 5 * 2^-24 of the sum of its terms' magnitudes. The stored bits are therefore the golden
// ones, except where the f64 row is that close to the middle of two bf16 values.
bool decided(double row, double magnitude) {
  const double slack = 5 * 0x1p-24 * magnitude;
  return numeric::f32_to_bf16(static_cast<float>(row - slack)) ==
         numeric::f32_to_bf16(static_cast<float>(row + slack));
}

// Sums of |w2 * h| * g2, [10, 256], from golden codes and scales.
std::vector<double> magnitudes() {
  const auto w2 = golden<std::uint8_t>("op_w2");
  const auto w2_sf = golden<std::uint8_t>("op_w2_sf");
  const auto h = golden<std::uint8_t>("op_h_codes");
  const auto h_sf = golden<std::uint8_t>("op_h_sf");
  const auto g2 = golden<float>("op_g2_alphas");
  const auto ids = golden<std::int32_t>("op_ids");
  const auto value = [](const std::vector<std::uint8_t>& codes, const std::vector<std::uint8_t>& scales,
                        std::size_t i) {
    const auto code = static_cast<std::uint8_t>((codes[i / 2] >> (4 * (i % 2))) & 15U);
    return std::abs(static_cast<double>(numeric::e2m1_to_f32(code)) * numeric::e4m3_to_f32(scales[i / 16]));
  };
  std::vector<double> out;
  for (std::size_t r = 0; r < ids.size(); ++r)
    for (std::size_t o = 0; o < 256; ++o) {
      const auto e = static_cast<std::size_t>(ids[r]);
      double sum = 0;
      for (std::size_t i = 0; i < 128; ++i)
        sum += value(w2, w2_sf, (e * 256 + o) * 128 + i) * value(h, h_sf, r * 128 + i);
      out.push_back(sum * g2[e]);
    }
  return out;
}

TEST(GoldenOp, RowsOfEveryBackend) {
  tensor::HostMemory memory;
  const auto magnitude = magnitudes();
  const auto exact = golden<double>("op_rows");
  const auto want = golden<std::uint16_t>("op_rows_bf16");
  const test::StepData step = tiny_step();
  for (const std::string& name : backend_names()) {
    for (const std::int64_t first : {0, 2}) {
      const auto experts = tiny(memory, first, 4 - first);
      const auto got =
          test::run_op(*backend(name).bind(Nvfp4Args{experts.view(), 4, 2, Input::nvfp4, {}}), step);
      std::size_t open = 0;
      for (std::size_t i = 0; i < exact.size(); ++i) {
        const bool here = step.ids[i / 256] >= first;
        ASSERT_EQ(got.map[i / 256] >= 0, here);
        if (!here) continue;
        if (!decided(exact[i], magnitude[i])) {
          ++open;
          continue;
        }
        ASSERT_EQ(got.rows[i], want[i]) << name << " " << i << " " << exact[i];
      }
      EXPECT_LE(open * 100, exact.size());  // nearly all rows are decided
    }
  }
}

// Two ranks' slices, cut from the converted bytes: their K-partials are the golden ones.
TEST(GoldenOp, PartialRowsOfTwoSlices) {
  tensor::HostMemory memory;
  const auto whole = tiny(memory, 0, 4);
  const auto exact = golden<double>("op_rows_tp2");  // [10, 2, 256]
  const auto magnitude = magnitudes();
  const test::StepData step = tiny_step();
  for (std::int64_t part = 0; part < 2; ++part) {
    layout::Nvfp4Experts slice(memory, {4, 256, 64}, 0);
    const auto views = layout::slice_views(whole.view(), 2, part);
    const std::array<const tensor::Tensor*, 4> to = {&slice.w13, &slice.w13_sf, &slice.w2, &slice.w2_sf};
    for (std::size_t kind = 0; kind < 4; ++kind) tensor::pack(views[kind], to[kind]->bytes().data());
    for (const auto& [from, target] :
         {std::pair{&whole.g1_alphas, &slice.g1_alphas}, std::pair{&whole.g1_scale_c, &slice.g1_scale_c},
          std::pair{&whole.g2_alphas, &slice.g2_alphas}})
      std::memcpy(target->bytes().data(), from->bytes().data(), from->bytes().size());
    for (const std::string& name : backend_names()) {
      const auto got =
          test::run_op(*backend(name).bind(Nvfp4Args{slice.view(), 4, 2, Input::nvfp4, {}}), step);
      for (std::size_t i = 0; i < got.rows.size(); ++i) {
        const double row = exact[((i / 256) * 2 + static_cast<std::size_t>(part)) * 256 + i % 256];
        if (!decided(row, magnitude[i])) continue;
        ASSERT_EQ(got.rows[i], numeric::f32_to_bf16(static_cast<float>(row))) << name << " " << i;
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
