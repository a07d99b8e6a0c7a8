// Hybrid groups, EP x TP, and uneven cuts: which bytes a rank ends with, the exact tail arithmetic over rows
// and columns, closeness to whole experts, and one rank's fault on all of them.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "kerf/base/format.h"
#include "kerf/decode/decode.h"
#include "kerf/decode/runtime.h"
#include "kerf/decode/shard.h"
#include "kerf/expert_tp/expert_tp.h"
#include "kerf/layout/slice.h"
#include "tests/decode/forwarding_group.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

using decode::Mode;

struct Grid {
  int ep, tp;
  std::int64_t experts, intermediate;
  bool uneven = false;
};

constexpr std::int64_t kHidden = 256;

// One NVFP4 layer without a norm, so that the tail is a weighted sum.
Synthetic model_of(const Grid& g) {
  return Synthetic(g.experts, kHidden, g.intermediate, {}, 1, tools::SynthModel::qwen3_moe);
}

decode::BuildOptions stock_options() {
  decode::BuildOptions options;
  options.layers = {0};
  return options;
}

class Hybrid : public testing::TestWithParam<Grid> {};

// What a single rank with all experts cuts for a slice, of the row's experts alone.
void expect_slice_of_whole(const decode::Layer& got, const layout::Nvfp4View& whole, int row, int part,
                           const Grid& g) {
  const auto views = layout::slice_views(whole, g.tp, part, g.uneven);
  const layout::Nvfp4Experts& sliced = *got.sliced;
  const std::array<const tensor::Tensor*, 4> kinds = {&sliced.w13, &sliced.w13_sf, &sliced.w2, &sliced.w2_sf};
  for (std::size_t k = 0; k < 4; ++k) {
    std::vector<std::byte> all(static_cast<std::size_t>(views[k].packed_bytes()));
    tensor::pack(views[k], all.data());
    const std::size_t size = all.size() / static_cast<std::size_t>(g.ep);
    const std::span<const std::byte> mine(all.data() + static_cast<std::size_t>(row) * size, size);
    const std::span<const std::byte> held = kinds[k]->bytes();
    EXPECT_TRUE(std::equal(held.begin(), held.end(), mine.begin(), mine.end()))
        << layout::nvfp4_kind_names[k] << " of row " << row << ", slice " << part;
  }
  const std::int64_t each = g.experts / g.ep;
  for (std::int64_t e = 0; e < each; ++e)
    EXPECT_EQ(sliced.g2_alphas.as<float>()[static_cast<std::size_t>(e)],
              reinterpret_cast<const float*>(whole.g2_alphas.bytes.data())[row * each + e]);
}

TEST_P(Hybrid, EveryRankHoldsItsSliceOfItsRowsExperts) {
  const Grid& g = GetParam();
  const Synthetic model = model_of(g);
  const checkpoint::Checkpoint from = model.open();
  on_ranks({}, [&](const decode::Rank& one) {
    const std::vector<decode::Layer> whole = decode::build(from, stock_options(), one);
    on_grid(g.ep, g.tp, [&](const decode::Rank& rank) {
      std::vector<decode::Layer> layers = decode::build(from, stock_options(), rank);
      decode::cut(layers[0], "cpu", rank, g.uneven);
      const int row = rank.group.rank() / g.tp;
      EXPECT_EQ(layers[0].tp->first_expert(), row * g.experts / g.ep);
      EXPECT_EQ(layers[0].tp->num_experts(), g.experts);
      EXPECT_EQ(layers[0].tp->shape().experts, g.experts / g.ep);
      expect_slice_of_whole(layers[0], whole[0].nvfp4(), row, rank.group.rank() % g.tp, g);
      EXPECT_LT(decode::probe(layers[0], {}, rank), decode::probe_limit);
    });
  });
}

// The fast tail written out: a row adds its ranks' K-partials of a route in order, rounds, weights its
// routes; then the rows' tokens are added in order.
std::vector<std::uint16_t> tail_of(const decode::LayerResult& r, const Grid& g) {
  const auto summed = [&](int row, std::size_t route, std::int64_t h) {
    float sum = 0.0F;
    for (int s = 0; s < g.tp; ++s) {
      const decode::RankRows& rank = r.ranks[static_cast<std::size_t>(row * g.tp + s)];
      sum = sum + numeric::bf16_to_f32(rank.rows[static_cast<std::size_t>(rank.map[route] * r.hidden + h)]);
    }
    return numeric::round_to_bf16(sum);
  };
  std::vector<std::uint16_t> out;
  for (std::int64_t t = 0; t < r.tokens; ++t)
    for (std::int64_t h = 0; h < r.hidden; ++h) {
      float total = 0.0F;
      for (int row = 0; row < g.ep; ++row) {
        float acc = 0.0F;
        for (std::int64_t k = 0; k < r.top_k; ++k) {
          const auto route = static_cast<std::size_t>(t * r.top_k + k);
          const decode::RankRows& first = r.ranks[static_cast<std::size_t>(row * g.tp)];
          if (first.map[route] < 0) continue;
          acc = std::fma(first.weights[route], summed(row, route, h), acc);
        }
        total = g.ep == 1 ? acc : total + numeric::round_to_bf16(acc);
      }
      out.push_back(numeric::f32_to_bf16(total));
    }
  return out;
}

double rel_l2(const std::vector<std::uint16_t>& got, const std::vector<std::uint16_t>& wanted) {
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double want = numeric::bf16_to_f32(wanted[i]);
    const double d = numeric::bf16_to_f32(got[i]) - want;
    difference += d * d;
    size += want * want;
  }
  return std::sqrt(difference / size);
}

decode::LayerInputs inputs_of(const Grid& g, std::int64_t tokens) {
  const decode::Inputs made =
      decode::make_inputs(3, 0, tokens, checkpoint::ExpertKind::nvfp4, {g.experts, kHidden, 4});
  decode::LayerInputs in;
  in.rows_name = "x";
  in.routes_name = "topk_ids";
  in.tokens = tokens;
  in.x = made.x;
  in.ids = made.ids;
  in.weights = made.weights;
  return in;
}

// All ranks' results, which must be one.
decode::LayerResult run_on_grid(const Grid& g, const checkpoint::Checkpoint& from,
                                const decode::LayerInputs& inputs, Mode mode) {
  std::vector<decode::LayerResult> results(static_cast<std::size_t>(g.ep * g.tp));
  on_grid(g.ep, g.tp, [&](const decode::Rank& rank) {
    decode::LayerOptions options;
    options.mode = mode;
    options.unfinalized = true;
    options.fit.uneven = g.uneven;
    results[static_cast<std::size_t>(rank.group.rank())] = decode::run_layer(from, options, inputs, rank);
  });
  for (const decode::LayerResult& r : results) EXPECT_EQ(r.y, results[0].y);
  return results[0];
}

TEST_P(Hybrid, OutputsAreTheTailsOfTheRowsAndNearThoseOfWholeExperts) {
  const Grid& g = GetParam();
  const Synthetic model = model_of(g);
  const checkpoint::Checkpoint from = model.open();
  for (const std::int64_t tokens : {1, 7}) {
    const decode::LayerInputs inputs = inputs_of(g, tokens);
    const decode::LayerResult got = run_on_grid(g, from, inputs, Mode::tp);
    EXPECT_EQ(got.y, tail_of(got, g)) << tokens;
    EXPECT_EQ(run_on_grid(g, from, inputs, Mode::tp).y, got.y) << "another run";
    // Rows are within the probe's bound of whole ones (0.0039 where partials are unlike each other), outputs
    // have at most two roundings more, of 2^-8 / sqrt(3) each in the mean: sqrt(0.0039^2 + 2 * 0.0023^2).
    EXPECT_LT(rel_l2(got.y, run_on_grid(g, from, inputs, Mode::ep).y), 0.0051) << tokens;
    // Every route is on the ranks of one row.
    for (std::size_t route = 0; route < inputs.ids.size(); ++route)
      for (int r = 0; r < g.ep * g.tp; ++r)
        EXPECT_EQ(got.ranks[static_cast<std::size_t>(r)].map[route] >= 0,
                  inputs.ids[route] / (g.experts / g.ep) == r / g.tp);
  }
}

std::string grid_name(const testing::TestParamInfo<Grid>& made) {
  const Grid& g = made.param;
  return fmt::format("ep{}_tp{}_e{}_i{}{}", g.ep, g.tp, g.experts, g.intermediate, g.uneven ? "_uneven" : "");
}
INSTANTIATE_TEST_SUITE_P(Grids, Hybrid,
                         testing::Values(Grid{2, 2, 8, 256}, Grid{2, 3, 12, 192}, Grid{3, 2, 12, 256},
                                         Grid{2, 4, 8, 512}, Grid{4, 2, 16, 128}, Grid{1, 4, 8, 256}),
                         grid_name);
INSTANTIATE_TEST_SUITE_P(Uneven, Hybrid,
                         testing::Values(Grid{1, 8, 8, 768, true}, Grid{1, 2, 4, 320, true},
                                         Grid{1, 3, 6, 320, true}, Grid{1, 4, 8, 320, true},
                                         Grid{2, 3, 12, 320, true}, Grid{2, 2, 8, 192, true}),
                         grid_name);

// Exact tails have one rank's bits on a grid too, and where zeros make slices nodes that were none: 960 is no
// two slices of 512, 1024 is.
TEST(HybridExact, HasTheBitsOfOneRank) {
  for (const auto& [intermediate, pad] : {std::pair{1024, false}, std::pair{960, true}}) {
    const Grid one{1, 1, 8, intermediate};
    const Synthetic model = model_of(one);
    const checkpoint::Checkpoint from = model.open();
    const decode::LayerInputs inputs = inputs_of(one, 5);
    const auto run = [&, pad = pad](int ep, int tp) {
      std::vector<std::uint16_t> y;
      on_grid(ep, tp, [&](const decode::Rank& rank) {
        decode::LayerOptions options;
        options.mode = tp > 1 ? Mode::tp : Mode::ep;
        options.tail = tail::Kind::exact;
        options.fit.pad = pad && tp > 1;
        const decode::LayerResult r = decode::run_layer(from, options, inputs, rank);
        if (rank.group.rank() == ep * tp - 1) y = r.y;
      });
      return y;
    };
    const std::vector<std::uint16_t> wanted = run(1, 1);
    EXPECT_EQ(wanted.size(), 5U * kHidden);
    EXPECT_EQ(run(1, 2), wanted) << intermediate;
    EXPECT_EQ(run(2, 2), wanted) << intermediate;
    EXPECT_EQ(run(4, 2), wanted) << intermediate;
  }
}

// The main job over NVFP4 and BF16 layers with a norm: the report has the grid, and two runs one digest.
TEST(HybridRun, ReportsTheGridAndRepeats) {
  const checkpoint::Checkpoint from = small_model().open();
  const auto run = [&] {
    std::vector<decode::Report> reports(8);
    on_grid(2, 4, [&](const decode::Rank& rank) {
      decode::Options options;
      options.modes = {Mode::ep, Mode::tp};
      options.batches = {1, 5};
      options.seconds = 0;
      reports[static_cast<std::size_t>(rank.group.rank())] = decode::run(from, options, rank);
    });
    for (const decode::Report& r : reports)
      EXPECT_EQ(r.reshard->bytes_per_rank, reports[0].reshard->bytes_per_rank);
    return reports[3];
  };
  const decode::Report first = run();
  EXPECT_EQ(first.ranks, 8);
  EXPECT_EQ(first.ep, 2);
  EXPECT_EQ(first.tp, 4);
  EXPECT_EQ(first.slices, (std::vector<std::int64_t>{64, 64, 64, 64}));
  EXPECT_EQ(first.reshard->nvfp4_layers, 3);
  EXPECT_GT(first.reshard->min_rel_l2, 0.0);
  EXPECT_LT(first.reshard->max_rel_l2, decode::probe_limit);
  const decode::Report second = run();
  ASSERT_EQ(first.steps.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(first.steps[i].output_sha256, second.steps[i].output_sha256);
}

// One rank's slice is damaged: ranks of the other row hear of it as well.
TEST(HybridRefuses, AProbeThatFailsInOneRow) {
  const checkpoint::Checkpoint from = small_model().open();
  for (const int bad : {0, 3}) {
    std::vector<Verdict> verdicts(4);
    on_grid(2, 2, [&](const decode::Rank& rank) {
      verdicts[static_cast<std::size_t>(rank.group.rank())] = attempt([&] {
        std::vector<decode::Layer> layers = decode::build(from, stock_options(), rank);
        decode::cut(layers[0], "cpu", rank);
        if (rank.group.rank() == bad)
          for (std::byte& b : layers[0].sliced->w2.bytes()) b ^= std::byte{0x88};
        (void)decode::probe(layers[0], {}, rank);
      });
    });
    expect_all_refuse(verdicts, ErrorKind::probe, {"layer 0", "rel L2", "rank 3: "});
  }
}

// Memory that gives out on one rank, wherever in cut, probe and plan: the reason of all, by its number.
class Failing : public tensor::Memory {
 public:
  explicit Failing(int after) : left_(after) {}
  std::byte* allocate(std::size_t bytes) override {
    if (left_-- <= 0) fail(ErrorKind::memory, "no memory for a block of {} bytes", bytes);
    return host_.allocate(bytes);
  }
  void release(std::byte* block, std::size_t bytes) noexcept override { host_.release(block, bytes); }

 private:
  tensor::HostMemory host_;
  int left_;
};

TEST(HybridRefuses, MemoryThatGivesOutOnOneRank) {
  const checkpoint::Checkpoint from = small_model().open();
  int failed = 0;
  for (int after = 1; after < 60; after += 5) {
    std::vector<Verdict> verdicts(4);
    on_grid(2, 2, [&](const decode::Rank& rank) {
      Failing memory(rank.group.rank() == 2 ? after : 1 << 20);
      decode::Meter meter(memory);
      decode::RuntimeOptions options;
      options.build.layers = {0};
      options.expert_tp = true;
      verdicts[static_cast<std::size_t>(rank.group.rank())] = attempt([&] {
        (void)decode::Runtime::build(from, options, {rank.group, meter, rank.workers, rank.log, rank.grid});
      });
    });
    if (!verdicts[0] && !verdicts[2]) break;
    SCOPED_TRACE(after);
    expect_all_refuse(verdicts, ErrorKind::memory, {"rank 2: ", "no memory for a block"});
    ++failed;
  }
  EXPECT_GT(failed, 5);
}

// A row whose rank leaves in the middle of an exchange.
class Leaving : public ForwardingGroup {
 public:
  Leaving(comm::Group& below, std::string at) : ForwardingGroup(below), at_(std::move(at)) {}

 private:
  void before(std::string_view what) override {
    if (what == at_) fail(ErrorKind::memory, "no memory at '{}'", what);
  }
  std::string at_;
};

TEST(HybridRefuses, ARankThatLeavesInsideOneRowIsTheReasonOfAll) {
  const checkpoint::Checkpoint from = small_model().open();
  for (const char* at : {"w13", "w2_sf", "g1_alphas"}) {
    std::vector<std::string> waiting(4);
    const Verdict cause = attempt([&] {
      on_grid(2, 2, [&](const decode::Rank& rank) {
        const std::vector<decode::Layer> layers = decode::build(from, stock_options(), rank);
        Leaving row(rank.row(), rank.group.rank() == 3 ? at : "");
        try {
          (void)expert_tp::reshard(layers[0].nvfp4(), {rank.group, row}, 16, rank.memory);
          rank.group.barrier("the next step");
        } catch (const comm::GroupFailed& e) {
          waiting[static_cast<std::size_t>(rank.group.rank())] = e.what();
          throw;
        }
      });
    });
    ASSERT_TRUE(cause) << at;
    EXPECT_EQ(cause->text, fmt::format("no memory at '{}'", at));
    for (const std::size_t r : {0U, 1U, 2U})
      EXPECT_NE(waiting[r].find("rank 3 left"), std::string::npos) << r << ": " << waiting[r];
  }
}

TEST(HybridRefuses, WidthsThatNeedAnOption) {
  const Synthetic model(16, 256, 320, {}, 1);
  const checkpoint::Checkpoint from = model.open();
  const std::vector<std::int64_t> layers = {0};
  const Verdict plain = decode::shardable(from, layers, 4);
  ASSERT_TRUE(plain);
  EXPECT_NE(plain->text.find("--uneven would cut slices of 128 and 64"), std::string::npos) << plain->text;
  EXPECT_FALSE(decode::shardable(from, layers, 4, {true, false}));
  EXPECT_FALSE(decode::shardable(from, layers, 4, {false, true}));
  EXPECT_TRUE(decode::shardable(from, layers, 6, {true, false}));
  EXPECT_TRUE(decode::shardable(from, layers, 1, {true, true}));
  // Without leave, all ranks of all rows refuse before a weight is read.
  std::vector<Verdict> verdicts(8);
  on_grid(2, 4, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.expert_tp = true;
    verdicts[static_cast<std::size_t>(rank.group.rank())] =
        attempt([&] { (void)decode::Runtime::build(from, options, rank); });
    EXPECT_EQ(rank.memory.peak(), 0);
  });
  expect_all_refuse(verdicts, ErrorKind::unsupported, {"cannot be cut 4 ways", "--uneven"});
}

}  // namespace
}  // namespace kerf::test
