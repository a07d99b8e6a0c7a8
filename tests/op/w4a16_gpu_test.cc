// NVFP4 experts with bf16 rows (W4A16) on the device: against f64 and the reference, and, where sums are
// exact, bit for bit.
#include <gtest/gtest.h>

#include <limits>

#include "kerf/numeric/e2m1.h"
#include "kerf/numeric/e4m3.h"
#include "kerf/op/sm90/bind.h"
#include "kerf/op/sm90/tactics.h"
#include "tests/support/half_rows.h"

namespace kerf::op::sm90 {
namespace {

using layout::ExpertsShape;
using test::StepData;

struct ShapeCase {
  ExpertsShape shape;
  std::int64_t num_experts;
  std::int64_t first;
  std::int64_t top_k;
};

// Widths of whole and half chunks of 128, shares with an offset.
const std::vector<ShapeCase>& shapes() {
  static const std::vector<ShapeCase> list = {
      {{4, 128, 128}, 4, 0, 2}, {{3, 128, 64}, 8, 2, 3}, {{2, 256, 320}, 4, 2, 2}, {{5, 640, 192}, 5, 0, 4}};
  return list;
}

class Bound {
 public:
  Bound(layout::Nvfp4Experts experts, const ShapeCase& c, const GatedParameters& gated = {})
      : host(std::move(experts)),
        w13_(host.w13.as<std::uint8_t>()),
        w13_sf_(host.w13_sf.as<std::uint8_t>()),
        w2_(host.w2.as<std::uint8_t>()),
        w2_sf_(host.w2_sf.as<std::uint8_t>()),
        reference(
            backend("reference").bind(Nvfp4Args{host.view(), c.num_experts, c.top_k, Input::bf16, gated})) {
    layout::Nvfp4View view = host.view();
    view.w13.bytes = std::as_bytes(w13_.span());
    view.w13_sf.bytes = std::as_bytes(w13_sf_.span());
    view.w2.bytes = std::as_bytes(w2_.span());
    view.w2_sf.bytes = std::as_bytes(w2_sf_.span());
    device = bind_w4a16({view, c.num_experts, c.top_k, Input::bf16, gated});
  }

  layout::Nvfp4Experts host;

 private:
  test::OnDevice<std::uint8_t> w13_, w13_sf_, w2_, w2_sf_;

 public:
  std::unique_ptr<RoutedExperts> reference;
  std::unique_ptr<DeviceExperts> device;
};

// Sums without error: w13 of any codes under block scales of 2^-3 .. 2^3 (and both zeros), w2 with one value
// in each row, of any code, and any scales.
layout::Nvfp4Experts exact_experts(tensor::Memory& memory, const ExpertsShape& s, std::int64_t first,
                                   std::uint64_t seed) {
  test::Random random(seed);
  layout::Nvfp4Experts e = test::random_nvfp4(memory, s, first, seed);
  for (std::uint8_t& v : e.w13_sf.as<std::uint8_t>()) {
    v = static_cast<std::uint8_t>((random.below(7) + 4) << 3);
    if (random.below(50) == 0) v = static_cast<std::uint8_t>(random.below(2) << 7);
    if (random.below(4) == 0) v |= 0x80U;
  }
  for (std::uint8_t& v : e.w2_sf.as<std::uint8_t>()) {
    v = static_cast<std::uint8_t>(random.next());
    if ((v & 0x7FU) == 0x7FU) v ^= 1U;
  }
  const std::span<std::uint8_t> w2 = e.w2.as<std::uint8_t>();
  std::ranges::fill(w2, std::uint8_t{0});
  for (std::int64_t r = 0; r < s.experts * s.hidden; ++r) {
    const auto k = random.below(static_cast<std::uint64_t>(s.intermediate));
    w2[static_cast<std::size_t>(r * (s.intermediate / 2)) + k / 2] =
        static_cast<std::uint8_t>(random.below(16) << (4 * (k % 2)));
  }
  const auto scalars = [&](tensor::Tensor& t, float around) {
    for (float& v : t.as<float>()) v = around * static_cast<float>(1 + random.below(7));
  };
  scalars(e.g1_alphas, 0x1p-9F);
  scalars(e.g1_scale_c, 0x1p-9F);
  scalars(e.g2_alphas, 0.1F);
  return e;
}

std::vector<test::ExactExpert> exact(const layout::Nvfp4Experts& e) {
  const auto [n, hidden, inter] = e.shape;
  std::vector<test::ExactExpert> out;
  for (std::int64_t x = 0; x < n; ++x) {
    const auto s = static_cast<std::size_t>(x);
    test::ExactExpert w{hidden,
                        inter,
                        {},
                        {},
                        {},
                        e.g1_alphas.as<float>()[s],
                        e.g1_scale_c.as<float>()[s],
                        e.g2_alphas.as<float>()[s]};
    const auto at = [&](const tensor::Tensor& codes, const tensor::Tensor& scales, std::int64_t k_all,
                        std::int64_t rows, std::int64_t row, std::int64_t k) -> double {
      const std::uint8_t byte =
          codes.as<std::uint8_t>()[static_cast<std::size_t>(((x * rows + row) * k_all + k) / 2)];
      const auto code = static_cast<std::uint8_t>(k % 2 == 0 ? byte & 15U : byte >> 4);
      return numeric::e2m1_to_f32(code) *
             numeric::e4m3_to_f32(scales.as<std::uint8_t>()[static_cast<std::size_t>(
                 x * rows * k_all / 16 + layout::scale_offset_128x4(row, k / 16, k_all / 16))]);
    };
    for (std::int64_t i = 0; i < inter; ++i)
      for (std::int64_t k = 0; k < hidden; ++k) {
        w.up.push_back(at(e.w13, e.w13_sf, hidden, 2 * inter, layout::w13_converted(layout::Half::up, i), k));
        w.gate.push_back(
            at(e.w13, e.w13_sf, hidden, 2 * inter, layout::w13_converted(layout::Half::gate, i), k));
      }
    for (std::int64_t o = 0; o < hidden; ++o)
      for (std::int64_t i = 0; i < inter; ++i)
        w.down.push_back(at(e.w2, e.w2_sf, inter, hidden, layout::w2_converted(o), i));
    out.push_back(std::move(w));
  }
  return out;
}

// Scalars for bf16 rows of unit size.
layout::Nvfp4Experts random_experts(tensor::Memory& memory, const ExpertsShape& s, std::int64_t first,
                                    std::uint64_t seed) {
  layout::Nvfp4Experts e = test::random_nvfp4(memory, s, first, seed);
  for (float& v : e.g1_alphas.as<float>()) v *= 500;
  for (float& v : e.g1_scale_c.as<float>()) v *= 60;
  return e;
}

using W4a16OnDevice = test::OnGpu;

TEST_F(W4a16OnDevice, ExactSumsHaveTheReferencesBitsAtEveryTacticAndRouting) {
  tensor::HostMemory memory;
  std::uint64_t seed = 1;
  for (const ShapeCase& c : shapes()) {
    const Bound bound(exact_experts(memory, c.shape, c.first, ++seed), c);
    for (const std::int64_t tokens : {0, 1, 2, 3, 5, 8, 17, 64})
      for (const test::Routing how : test::routings) {
        StepData step = test::routed(
            test::random_step(tokens, c.top_k, c.num_experts, c.shape.hidden, ++seed), how, c.top_k, c.first);
        test::make_exact(step, ++seed);
        const auto want = test::run_op(*bound.reference, step).rows;
        for (const Tactic tactic : tactic_table)
          ASSERT_EQ(test::run_on_device(*bound.device, step, tactic), want)
              << "H " << c.shape.hidden << " I " << c.shape.intermediate << " T " << tokens << " routing "
              << static_cast<int>(how) << " tile " << tactic.tile << " config " << tactic.config;
      }
  }
}

TEST_F(W4a16OnDevice, RowsAreWithinTheDerivedBoundAndTheSameInEveryRun) {
  tensor::HostMemory memory;
  for (const ShapeCase& c : {ShapeCase{{3, 256, 320}, 5, 1, 2}, ShapeCase{{2, 1152, 576}, 2, 0, 2}}) {
    const Bound bound(random_experts(memory, c.shape, c.first, 21), c);
    const auto experts = exact(bound.host);
    for (const std::int64_t tokens : {1, 9}) {
      const StepData step = test::random_step(tokens, c.top_k, c.num_experts, c.shape.hidden, 22);
      const auto reference = test::run_op(*bound.reference, step).rows;
      for (const Tactic tactic : tactic_table) {
        const auto got = test::run_on_device(*bound.device, step, tactic);
        test::expect_rows(got, reference, step, c.top_k, c.first, experts);
        ASSERT_EQ(test::run_on_device(*bound.device, step, tactic), got);
      }
    }
  }
}

TEST_F(W4a16OnDevice, ARowsBitsDoNotDependOnItsNeighbours) {
  tensor::HostMemory memory;
  const ShapeCase c{{2, 640, 192}, 2, 0, 1};
  const Bound bound(random_experts(memory, c.shape, c.first, 31), c);
  const StepData all = test::random_step(40, 1, 2, c.shape.hidden, 32);
  for (const Tactic tactic : tactic_table) {
    const auto together = test::run_on_device(*bound.device, all, tactic);
    for (const std::size_t mine : {std::size_t{0}, std::size_t{7}, std::size_t{39}}) {
      StepData alone = all;
      for (std::size_t r = 0; r < alone.ids.size(); ++r)
        if (r != mine) alone.ids[r] = -1;
      const auto got = test::run_on_device(*bound.device, alone, tactic);
      for (std::size_t i = mine * 640; i < (mine + 1) * 640; ++i) ASSERT_EQ(got[i], together[i]) << i;
    }
  }
}

TEST_F(W4a16OnDevice, NanAndInfinityStayInTheirRow) {
  tensor::HostMemory memory;
  const ShapeCase c{{2, 128, 64}, 2, 0, 2};
  const Bound bound(exact_experts(memory, c.shape, 0, 41), c);
  StepData step = test::random_step(5, 2, 2, 128, 42);
  test::make_exact(step, 43);
  step.x[128 + 7] = 0xFFC3;                                                            // token 1
  step.x[2 * 128 + 9] = numeric::f32_to_bf16(std::numeric_limits<float>::infinity());  // token 2
  const auto want = test::run_op(*bound.reference, step).rows;
  EXPECT_EQ(want[2 * 128], numeric::bf16_nan);
  for (const Tactic tactic : tactic_table) ASSERT_EQ(test::run_on_device(*bound.device, step, tactic), want);
}

TEST_F(W4a16OnDevice, EveryCodeUnderEveryScaleHasTheReferencesBits) {
  tensor::HostMemory memory;
  const ShapeCase c{{1, 256, 64}, 1, 0, 1};
  // Row r of w13 has one block that is not zero, of all codes, under scale r and r + 128; x picks one of
  // them.
  for (const int high : {0, 128}) {
    layout::Nvfp4Experts e = exact_experts(memory, c.shape, 0, 91);
    std::ranges::fill(e.w13_sf.as<std::uint8_t>(), std::uint8_t{0x38});
    for (std::int64_t r = 0; r < 128; ++r)
      for (std::int64_t k = 0; k < 256; ++k) {
        std::uint8_t& byte = e.w13.as<std::uint8_t>()[static_cast<std::size_t>(r * 128 + k / 2)];
        const auto code = static_cast<unsigned>(k / 16 == r % 16 ? k % 16 : 0);
        byte = static_cast<std::uint8_t>(k % 2 == 0 ? code : byte | code << 4);
        if (k / 16 == r % 16)
          e.w13_sf.as<std::uint8_t>()[static_cast<std::size_t>(layout::scale_offset_128x4(r, k / 16, 16))] =
              static_cast<std::uint8_t>(r == 0x7F ? 0x38 : r + high);
      }
    const Bound bound(std::move(e), c);
    StepData step = test::random_step(16, 1, 1, 256, 92);
    for (std::size_t t = 0; t < 16; ++t)
      for (std::size_t k = 0; k < 256; ++k)
        step.x[t * 256 + k] = numeric::f32_to_bf16(k % 16 == t ? 3.0F : 0.0F);
    const auto want = test::run_op(*bound.reference, step).rows;
    for (const Tactic tactic : tactic_table)
      ASSERT_EQ(test::run_on_device(*bound.device, step, tactic), want);
  }
}

TEST_F(W4a16OnDevice, AScaleOfNanMakesNanOfWhatItMultiplies) {
  tensor::HostMemory memory;
  const ShapeCase c{{2, 256, 64}, 2, 0, 1};
  for (const int sign : {0, 128}) {
    layout::Nvfp4Experts e = exact_experts(memory, c.shape, 0, 95);
    // Of expert 0 output 5, whose one value is elsewhere; expert 1 is left alone.
    e.w2_sf.as<std::uint8_t>()[static_cast<std::size_t>(
        layout::scale_offset_128x4(layout::w2_converted(5), 2, 4))] = static_cast<std::uint8_t>(0x7F | sign);
    const Bound bound(std::move(e), c);
    StepData step = test::random_step(4, 1, 2, 256, 96);
    step.ids = {0, 1, 0, 1};
    test::make_exact(step, 97);
    const auto want = test::run_op(*bound.reference, step).rows;
    EXPECT_EQ(want[5], numeric::bf16_nan);
    for (const Tactic tactic : tactic_table)
      ASSERT_EQ(test::run_on_device(*bound.device, step, tactic), want);
  }
}

TEST_F(W4a16OnDevice, ClampsBetaAndAlphaHaveTheReferencesBits) {
  tensor::HostMemory memory;
  const ShapeCase c{{2, 128, 64}, 2, 0, 2};
  const std::vector<float> alpha = {1.702F, 0.5F};
  const std::vector<float> beta = {100.0F, -30.0F};
  const std::vector<float> limit = {300.0F, 1000.0F};
  const Bound bound(exact_experts(memory, c.shape, 0, 51), c, {alpha, beta, limit, limit});
  StepData step = test::random_step(9, 2, 2, 128, 52);
  test::make_exact(step, 53);
  const auto want = test::run_op(*bound.reference, step).rows;
  for (const Tactic tactic : tactic_table) ASSERT_EQ(test::run_on_device(*bound.device, step, tactic), want);
}

TEST_F(W4a16OnDevice, ManyTokens) {
  tensor::HostMemory memory;
  const ShapeCase c{{4, 128, 64}, 8, 2, 2};
  const Bound bound(exact_experts(memory, c.shape, 2, 61), c);
  for (const std::int64_t tokens : {500, 4096}) {
    StepData step = test::random_step(tokens, 2, 8, 128, 62);
    test::make_exact(step, 63);
    const auto want = test::run_op(*bound.reference, step).rows;
    for (const Tactic tactic : tactic_table)
      ASSERT_EQ(test::run_on_device(*bound.device, step, tactic), want);
  }
}

TEST_F(W4a16OnDevice, RefusesSumsAndTacticsThatItDoesNotHave) {
  tensor::HostMemory memory;
  const ShapeCase c{{2, 128, 64}, 2, 0, 2};
  const Bound bound(exact_experts(memory, c.shape, 0, 81), c);
  const StepData step = test::random_step(1, 2, 2, 128, 82);
  const auto refused = [&](std::int64_t tile, int config, bool sums) {
    const routing::MetadataShape shape = bound.device->metadata_shape(1, tile);
    const test::HostMetadata host(shape, step);
    const test::DeviceMetadata metadata(host.tables);
    const test::OnDevice<std::uint16_t> x(step.x);
    const test::OnDevice<float> out(128 * 128 * 2, 0.0F);
    DeviceRows rows;
    if (sums)
      rows.sums = out.get();
    else
      rows.rows = reinterpret_cast<std::uint16_t*>(out.get());
    try {
      bound.device->run({1, nullptr, nullptr, x.get()}, shape, metadata.view(),
                        {static_cast<int>(tile), config}, {}, rows, nullptr);
      return false;
    } catch (const Error& e) {
      return e.kind() == ErrorKind::unsupported;
    }
  };
  EXPECT_TRUE(refused(8, 0, true));
  EXPECT_TRUE(refused(12, 0, false));
  EXPECT_TRUE(refused(8, 2, false));
}

}  // namespace
}  // namespace kerf::op::sm90
