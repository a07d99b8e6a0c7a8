// BF16 experts on the device: against f64 and the reference, and, where sums are exact, bit for bit.
#include <gtest/gtest.h>

#include <limits>

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

// Widths of odd and even numbers of blocks of 64, shares with an offset.
const std::vector<ShapeCase>& shapes() {
  static const std::vector<ShapeCase> list = {
      {{4, 64, 64}, 4, 0, 2}, {{3, 128, 64}, 8, 2, 3}, {{2, 192, 320}, 4, 2, 2}, {{5, 640, 192}, 5, 0, 4}};
  return list;
}

class Bound {
 public:
  Bound(layout::Bf16Experts experts, const ShapeCase& c, const GatedParameters& gated = {})
      : host(std::move(experts)),
        w13_(host.w13.as<std::uint16_t>()),
        w2_(host.w2.as<std::uint16_t>()),
        reference(backend("reference").bind(Bf16Args{host.view(), c.num_experts, c.top_k, gated})) {
    layout::Bf16View view = host.view();
    view.w13.bytes = std::as_bytes(w13_.span());
    view.w2.bytes = std::as_bytes(w2_.span());
    device = bind_bf16({view, c.num_experts, c.top_k, gated});
  }

  layout::Bf16Experts host;

 private:
  test::OnDevice<std::uint16_t> w13_, w2_;

 public:
  std::unique_ptr<RoutedExperts> reference;
  std::unique_ptr<DeviceExperts> device;
};

// Weights of few bits: w13 multiples of 2^-6 up to 2^-3, w2 with one value of a power of two in each row.
layout::Bf16Experts exact_experts(tensor::Memory& memory, const ExpertsShape& s, std::int64_t first,
                                  std::uint64_t seed) {
  test::Random random(seed);
  layout::Bf16Experts e(memory, s, first);
  for (std::uint16_t& v : e.w13.as<std::uint16_t>())
    v = numeric::f32_to_bf16(static_cast<float>(static_cast<int>(random.below(17)) - 8) * 0x1p-6F);
  const std::span<std::uint16_t> w2 = e.w2.as<std::uint16_t>();
  std::ranges::fill(w2, std::uint16_t{0});
  for (std::int64_t n = 0; n < s.experts; ++n)
    for (std::int64_t r = 0; r < s.hidden; ++r) {
      const auto k = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(s.intermediate)));
      const float value =
          std::ldexp(random.below(2) == 0 ? 1.0F : -1.0F, static_cast<int>(random.below(5)) - 2);
      w2[static_cast<std::size_t>(((n * (s.intermediate / 64) + k / 64) * s.hidden + r) * 64 + k % 64)] =
          numeric::f32_to_bf16(value);
    }
  return e;
}

std::vector<test::ExactExpert> exact(const layout::Bf16Experts& e) {
  const auto [n, hidden, inter] = e.shape;
  std::vector<test::ExactExpert> out;
  for (std::int64_t x = 0; x < n; ++x) {
    test::ExactExpert w{hidden, inter, {}, {}, {}};
    const auto at = [&](const tensor::Tensor& t, std::int64_t k_all, std::int64_t rows, std::int64_t row,
                        std::int64_t k) -> double {
      return numeric::bf16_to_f32(t.as<std::uint16_t>()[static_cast<std::size_t>(
          ((x * (k_all / 64) + k / 64) * rows + row) * 64 + k % 64)]);
    };
    for (std::int64_t i = 0; i < inter; ++i)
      for (std::int64_t k = 0; k < hidden; ++k) {
        w.up.push_back(at(e.w13, hidden, 2 * inter, layout::w13_converted(layout::Half::up, i), k));
        w.gate.push_back(at(e.w13, hidden, 2 * inter, layout::w13_converted(layout::Half::gate, i), k));
      }
    for (std::int64_t o = 0; o < hidden; ++o)
      for (std::int64_t i = 0; i < inter; ++i)
        w.down.push_back(at(e.w2, inter, hidden, layout::w2_converted(o), i));
    out.push_back(std::move(w));
  }
  return out;
}

using Bf16OnDevice = test::OnGpu;

TEST_F(Bf16OnDevice, ExactSumsHaveTheReferencesBitsAtEveryTacticAndRouting) {
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

TEST_F(Bf16OnDevice, RowsAreWithinTheDerivedBoundAndTheSameInEveryRun) {
  tensor::HostMemory memory;
  for (const ShapeCase& c : {ShapeCase{{3, 192, 320}, 5, 1, 2}, ShapeCase{{2, 1152, 576}, 2, 0, 2}}) {
    const Bound bound(test::random_bf16(memory, c.shape, c.first, 21), c);
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

TEST_F(Bf16OnDevice, ARowsBitsDoNotDependOnItsNeighbours) {
  tensor::HostMemory memory;
  const ShapeCase c{{2, 640, 192}, 2, 0, 1};
  const Bound bound(test::random_bf16(memory, c.shape, c.first, 31), c);
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

TEST_F(Bf16OnDevice, NanAndInfinityStayInTheirRow) {
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

TEST_F(Bf16OnDevice, ClampsBetaAndAlphaHaveTheReferencesBits) {
  tensor::HostMemory memory;
  const ShapeCase c{{2, 128, 64}, 2, 0, 2};
  const std::vector<float> alpha = {1.702F, 0.5F};
  const std::vector<float> beta = {0.25F, -3.0F};
  const std::vector<float> limit = {0.75F, 1.0F};
  const Bound bound(exact_experts(memory, c.shape, 0, 51), c, {alpha, beta, limit, limit});
  StepData step = test::random_step(9, 2, 2, 128, 52);
  test::make_exact(step, 53);
  const auto want = test::run_op(*bound.reference, step).rows;
  for (const Tactic tactic : tactic_table) ASSERT_EQ(test::run_on_device(*bound.device, step, tactic), want);
}

TEST_F(Bf16OnDevice, ManyTokens) {
  tensor::HostMemory memory;
  const ShapeCase c{{4, 64, 64}, 8, 2, 2};
  const Bound bound(exact_experts(memory, c.shape, 2, 61), c);
  for (const std::int64_t tokens : {500, 4096}) {
    StepData step = test::random_step(tokens, 2, 8, 64, 62);
    test::make_exact(step, 63);
    const auto want = test::run_op(*bound.reference, step).rows;
    for (const Tactic tactic : tactic_table)
      ASSERT_EQ(test::run_on_device(*bound.device, step, tactic), want);
  }
}

TEST_F(Bf16OnDevice, AReplayedRunFollowsTheMetadataThatIsThereThen) {
  tensor::HostMemory memory;
  const ShapeCase c{{4, 128, 64}, 4, 0, 2};
  const Bound bound(exact_experts(memory, c.shape, 0, 71), c);
  StepData step = test::random_step(6, 2, 4, 128, 72);
  test::make_exact(step, 73);
  const Tactic tactic{8, 0};
  const routing::MetadataShape shape = bound.device->metadata_shape(6, 8);
  const test::HostMetadata before(shape, test::routed(step, test::Routing::none, 2, 0));
  const test::DeviceMetadata metadata(before.tables);
  const test::OnDevice<std::uint16_t> x(step.x);
  const test::OnDevice<std::uint8_t> scratch(bound.device->scratch_bytes(shape, tactic), 0xFF);
  const test::OnDevice<std::uint32_t> counters(bound.device->counter_words(shape), 0);
  const test::OnDevice<std::uint16_t> rows(static_cast<std::size_t>(gemm2_rows(shape, 128) * 128),
                                           test::poison);
  const cuda::Stream stream;
  const cuda::Graph graph = cuda::Graph::capture(stream.handle(), [&] {
    cuda::zero(counters.get(), counters.span().size_bytes(), stream.handle());
    bound.device->run({6, nullptr, nullptr, x.get()}, shape, metadata.view(), tactic,
                      {std::as_writable_bytes(scratch.span()), counters.span()}, {rows.get(), nullptr},
                      stream.handle());
  });
  graph.launch(stream.handle());
  stream.synchronize();
  for (const std::uint16_t v : rows.host()) ASSERT_EQ(v, test::poison);  // nothing was routed
  for (const test::Routing how : {test::Routing::random, test::Routing::one_expert}) {
    const StepData now = test::routed(step, how, 2, 0);
    const test::HostMetadata after(shape, now);
    const auto set = [](const auto& to, const auto& from) {
      cuda::copy(to.get(), from.data(), from.size_bytes());
    };
    set(metadata.tokens, after.tables.permuted_to_token);
    set(metadata.experts, after.tables.tile_to_expert);
    set(metadata.limits, after.tables.tile_to_limit);
    set(metadata.live, after.tables.live_tiles);
    const std::vector<std::uint16_t> fresh(rows.span().size(), test::poison);
    cuda::copy(rows.get(), fresh.data(), rows.span().size_bytes());
    graph.launch(stream.handle());
    stream.synchronize();
    EXPECT_EQ(test::routes_of(rows.host(), 128, after.tables.expanded_to_permuted),
              test::run_op(*bound.reference, now).rows);
  }
}

TEST_F(Bf16OnDevice, RefusesSumsAndTacticsThatItDoesNotHave) {
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
