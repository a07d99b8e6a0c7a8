// Expert TP over a stack of layers, and everything that can go wrong on one rank: all ranks must say the
// same.
#include "kerf/decode/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/runtime.h"
#include "kerf/decode/traffic.h"
#include "kerf/expert_tp/expert_tp.h"
#include "kerf/numeric/nvfp4.h"
#include "tests/decode/forwarding_group.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

using decode::Mode;

decode::BuildOptions layers_of(std::vector<std::int64_t> layers) {
  decode::BuildOptions options;
  options.layers = std::move(layers);
  return options;
}

TEST(Shard, KeepsTheStockAndLeavesBf16LayersAlone) {
  const checkpoint::Checkpoint from = small_model().open();
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    std::vector<decode::Layer> layers = decode::build(from, layers_of({0, 1}), rank);
    const std::span<const std::byte> w13 = layers[0].nvfp4().w13.bytes;
    const std::vector<std::byte> before(w13.begin(), w13.end());
    const decode::ShardReport report = decode::shard(layers, {}, rank);
    EXPECT_EQ(report.nvfp4_layers, 1);
    EXPECT_EQ(report.bf16_layers, 1);
    EXPECT_EQ(layers[0].nvfp4().w13.bytes.data(), w13.data());
    EXPECT_TRUE(std::equal(before.begin(), before.end(), w13.begin()));
    EXPECT_EQ(layers[0].sliced->shape, (layout::ExpertsShape{16, 256, 128}));
    EXPECT_EQ(layers[0].sliced->first_expert, 0);
    EXPECT_TRUE(layers[0].sliced_in(Mode::tp));
    EXPECT_FALSE(layers[0].sliced_in(Mode::ep));
    EXPECT_FALSE(layers[1].sliced_in(Mode::tp));
    EXPECT_EQ(&layers[1].experts(Mode::tp), layers[1].ep.get());
  });
}

// One rank's slice is damaged after the exchange: every rank hears of it, with the numbers.
TEST(Shard, AProbeThatFailsThrowsOnEveryRank) {
  const checkpoint::Checkpoint from = small_model().open();
  const auto verdicts = thrown_on({4, 1, {}}, [&](const decode::Rank& rank) {
    std::vector<decode::Layer> layers = decode::build(from, layers_of({2}), rank);
    decode::cut(layers[0], "cpu", rank);
    EXPECT_LT(decode::probe(layers[0], {}, rank), decode::probe_limit);
    if (rank.group.rank() == 2) {
      const std::span<std::byte> w2 = layers[0].sliced->w2.bytes();
      for (std::byte& b : w2.first(w2.size() / 2)) b ^= std::byte{0x88};  // signs of half the experts
    }
    (void)decode::probe(layers[0], {}, rank);
  });
  expect_all_refuse(verdicts, ErrorKind::probe,
                    {"layer 2", "rel L2", "limit 0.01", "rank 0: 8 of 8", "EP rows finite", "TP rows finite",
                     "rank 3: ", "largest magnitude"});
}

TEST(Shard, AProbeThatMeetsNanThrowsAndCounts) {
  const checkpoint::Checkpoint from = small_model().open();
  const auto verdicts = thrown_on({2, 1, {}}, [&](const decode::Rank& rank) {
    std::vector<decode::Layer> layers = decode::build(from, layers_of({0}), rank);
    decode::cut(layers[0], "cpu", rank);
    if (rank.group.rank() == 1) {  // a backend may read the scalars when it binds, so it binds again
      std::ranges::fill(layers[0].sliced->g2_alphas.as<float>(), std::nanf(""));
      layers[0].tp =
          op::backend("cpu").bind(op::Nvfp4Args{layers[0].sliced->view(), 16, 4, layers[0].input, {}});
    }
    (void)decode::probe(layers[0], {}, rank);
  });
  expect_all_refuse(verdicts, ErrorKind::probe,
                    {"layer 0", "nan", "rank 1: 16 of 16 EP rows finite", "0 of 32 TP rows"});
}

TEST(Shard, ProbeTokensServeEveryRank) {
  EXPECT_EQ(decode::probe_tokens({}, 8, 16), 8);
  EXPECT_EQ(decode::probe_tokens({}, 1, 16), 32);
  EXPECT_EQ(decode::probe_tokens({}, 3, 16), 11);
}

TEST(Shard, RefusesWhatCannotBeCutBeforeAnyWeightIsRead) {
  const checkpoint::Checkpoint from = small_model().open();
  const std::vector<std::int64_t> all = {0, 1, 2, 3};
  EXPECT_FALSE(decode::shardable(from, all, 2));
  EXPECT_FALSE(decode::shardable(from, all, 4));
  const std::vector<std::int64_t> bf16 = {1};
  for (const auto& [layers, ranks, word] :
       {std::tuple{all, 8, "32"}, std::tuple{all, 1, "2, 4"}, std::tuple{bf16, 2, "NVFP4"}}) {
    const Verdict v = decode::shardable(from, layers, ranks);
    ASSERT_TRUE(v) << ranks;
    EXPECT_EQ(v->kind, ErrorKind::unsupported);
    EXPECT_NE(v->text.find(word), std::string::npos) << v->text;
    decode::RuntimeOptions options;
    options.build.layers = layers;
    options.expert_tp = true;
    expect_all_refuse(
        thrown_on({ranks, 1, {}},
                  [&](const decode::Rank& rank) { (void)decode::Runtime::build(from, options, rank); }),
        ErrorKind::unsupported, {word});
  }
}

TEST(Shard, ExpertsThatDoNotDivideAreRefusedOnEveryRank) {
  const checkpoint::Checkpoint from = small_model().open();
  expect_all_refuse(
      thrown_on({3, 1, {}}, [&](const decode::Rank& rank) { (void)decode::build(from, {}, rank); }),
      ErrorKind::unsupported, {"16", "3"});
}

// Memory that gives out on one rank after a number of blocks.
class Failing : public tensor::Memory {
 public:
  Failing(bool fails, int after) : fails_(fails), left_(after) {}
  std::byte* allocate(std::size_t bytes) override {
    if (fails_ && left_-- <= 0) fail(ErrorKind::memory, "no memory for a block of {} bytes", bytes);
    return host_.allocate(bytes);
  }
  void release(std::byte* block, std::size_t bytes) noexcept override { host_.release(block, bytes); }
  [[nodiscard]] std::int64_t current() const { return host_.current(); }

 private:
  tensor::HostMemory host_;
  bool fails_;
  int left_;
};

// Wherever in the build memory gives out, every rank throws that rank's reason, and nothing stays allocated.
TEST(Shard, MemoryThatGivesOutOnOneRankIsTheReasonOnAll) {
  const checkpoint::Checkpoint from = small_model().open();
  decode::RuntimeOptions options;
  options.build.layers = {0, 1};
  options.expert_tp = true;
  bool finished = false;
  int failed = 0;
  for (int after = 0; !finished; after += 3) {
    ASSERT_LT(after, 1000);
    std::vector<Verdict> verdicts(2);
    comm::run_local(2, {}, [&](comm::Group& group) {
      Failing memory(group.rank() == 1, after);
      decode::Meter meter(memory);
      verdicts[static_cast<std::size_t>(group.rank())] = attempt([&] {
        (void)decode::Runtime::build(from, options, {group, meter, Workers(1), {}});
      });
      EXPECT_EQ(memory.current(), 0) << "rank " << group.rank() << " after " << after;
    });
    finished = !verdicts[0] && !verdicts[1];
    if (finished) break;
    ++failed;
    SCOPED_TRACE(after);
    expect_all_refuse(verdicts, ErrorKind::memory, {"rank 1", "no memory for a block"});
  }
  EXPECT_GT(failed, 5);  // at several stages: loading two layers, cutting, probing, planning
}

// A group whose rank gives up at one collective, without telling anybody.
class Leaving : public ForwardingGroup {
 public:
  Leaving(comm::Group& below, std::string at) : ForwardingGroup(below), at_(std::move(at)) {}

 private:
  void before(std::string_view what) override {
    if (what == at_) fail(ErrorKind::memory, "no memory at '{}'", what);
  }
  std::string at_;
};

// A rank that fails in the middle of a collective is the cause, and the ranks that wait for it are not,
// whatever rank they are and whatever words their errors were given on the way.
TEST(Shard, ARankThatFailsInsideAReshardIsTheReasonOfAll) {
  const checkpoint::Checkpoint from = small_model().open();
  for (const char* at : {"reshard: can the experts be cut", "w13", "w2_sf", "g2_alphas"}) {
    std::string waiting;
    const Verdict cause = attempt([&] {
      on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
        std::vector<decode::Layer> layers = decode::build(from, layers_of({0}), rank);
        Leaving leaving(rank.group, rank.group.rank() == 1 ? at : "");
        try {
          decode::cut(layers[0], "cpu", {leaving, rank.memory, rank.workers, rank.log});
        } catch (const comm::GroupFailed& e) {
          waiting = e.what();
          throw;
        }
      });
    });
    ASSERT_TRUE(cause) << at;
    EXPECT_EQ(cause->kind, ErrorKind::memory) << cause->text;
    EXPECT_EQ(cause->text, fmt::format("layer 0: no memory at '{}'", at));
    EXPECT_NE(waiting.find(fmt::format("layer 0: rank 1 left while '{}' was awaited", at)), std::string::npos)
        << waiting;
  }
}

TEST(Traffic, CountsEachExpertOnceAndTheBusiestRank) {
  const checkpoint::Checkpoint from = small_model().open();
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    std::vector<decode::Layer> layers = decode::build(from, layers_of({0, 1}), rank);
    decode::cut(layers[0], "cpu", rank);
    // Experts 0-7 on rank 0 and 8-15 on rank 1: three distinct ones on rank 0, one on rank 1.
    const std::vector<std::int32_t> ids = {0, 3, 3, 7, 9, -1, 0, 0};
    const std::int64_t whole = 3 * 256 * 256 / 2 * 9 / 8;
    EXPECT_EQ(decode::busiest_rank_bytes(layers[0], Mode::ep, ids, rank), 3 * whole);
    EXPECT_EQ(decode::busiest_rank_bytes(layers[0], Mode::tp, ids, rank), 4 * whole / 2);
    EXPECT_EQ(decode::busiest_rank_bytes(layers[1], Mode::tp, ids, rank), 3 * 3 * 256 * 256 * 2);
    EXPECT_EQ(decode::busiest_rank_bytes(layers[0], Mode::ep, {}, rank), 0);
  });
}

// A row's busiest experts, at the widest slice; the same number on every rank.
TEST(Traffic, OfAGridIsThatOfTheBusiestRowAndTheWidestSlice) {
  const Synthetic model(12, 128, 320, {}, 1);
  const checkpoint::Checkpoint from = model.open();
  on_grid(2, 3, [&](const decode::Rank& rank) {
    std::vector<decode::Layer> layers = decode::build(from, layers_of({0}), rank);
    decode::cut(layers[0], "cpu", rank, true);
    // Row 0 has experts 0-5 (three of them routed to), row 1 6-11 (two); a rank has two whole ones.
    const std::vector<std::int32_t> ids = {0, 3, 4, 11, -1, 6, 11, 0};
    const std::int64_t width = 3 * 128 / 2 * 9 / 8;  // bytes of each of I
    EXPECT_EQ(decode::busiest_rank_bytes(layers[0], Mode::tp, ids, rank),
              3 * 128 * width);  // of 128, 128, 64
    EXPECT_EQ(decode::busiest_rank_bytes(layers[0], Mode::ep, ids, rank), 1 * 320 * width);
    EXPECT_EQ(decode::busiest_rank_bytes(layers[0], Mode::ep, std::vector<std::int32_t>{4, 5}, rank),
              2 * 320 * width);
  });
}

TEST(Execute, RefusesMoreTokensThanPreparedWithBothNumbers) {
  const checkpoint::Checkpoint from = small_model().open();
  decode::RuntimeOptions options;
  options.build.layers = {0};
  options.max_tokens = 4;
  expect_all_refuse(
      thrown_on({2, 1, {}},
                [&](const decode::Rank& rank) {
                  const auto runtime = decode::Runtime::build(from, options, rank);
                  const decode::Inputs in =
                      decode::make_inputs(1, 0, 5, checkpoint::ExpertKind::nvfp4, {16, 256, 4});
                  (void)runtime.execute(0, Mode::ep, {5, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}});
                }),
      ErrorKind::usage, {"5 tokens", "at most 4"});
}

TEST(Execute, RefusesARouterOfAnotherModel) {
  const checkpoint::Checkpoint from = small_model().open();
  decode::RuntimeOptions options;
  options.build.layers = {0};
  expect_all_refuse(thrown_on({2, 1, {}},
                              [&](const decode::Rank& rank) {
                                const auto runtime = decode::Runtime::build(from, options, rank);
                                routing::Router half = runtime.router();
                                half.experts = 8;
                                half.top_k = 2;
                                const std::vector<std::uint16_t> x(256);
                                const std::vector<float> logits(16);  // 2 tokens of 8, or 1 of 16
                                (void)runtime.execute(0, Mode::ep, {1, x, {}, {}, {}, {}, &half, logits, {}});
                              }),
                    ErrorKind::usage, {"a router of 8 experts, top 2", "16 experts, top 4"});
}

// The prepared body and the public op give the same rows.
TEST(Execute, TheBodyFromMetadataIsThePublicOp) {
  const checkpoint::Checkpoint from = small_model().open();
  decode::RuntimeOptions options;
  options.build.layers = {0, 2};
  options.max_tokens = 8;
  on_ranks({}, [&](const decode::Rank& rank) {
    const auto runtime = decode::Runtime::build(from, options, rank);
    const decode::Layer& layer = runtime.layers()[1];
    for (const std::int64_t t : {1, 3, 8}) {
      const decode::Inputs in = decode::make_inputs(1, 2, t, checkpoint::ExpertKind::nvfp4, {16, 256, 4});
      const decode::StepInputs step{t, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
      const auto body =
          expert_tp::route_rows(decode::run_experts(layer, Mode::ep, step, runtime.plan(), rank.workers));
      std::vector<std::uint8_t> codes(in.x.size() / 2);
      std::vector<std::uint8_t> scales(in.x.size() / 16);
      numeric::quantise_rows(in.x, 256, layer.nvfp4().a1_gscale.as<float>()[0], codes, scales);
      const auto direct = expert_tp::route_rows(op::routed_experts(
          *layer.ep, {t, codes, scales, {}}, {in.ids, in.weights}, runtime.plan().resolve(layer, Mode::ep, t),
          rank.workers, runtime.plan().buffers()));
      EXPECT_EQ(body.rows, direct.rows) << t;
      EXPECT_EQ(body.local, direct.local) << t;
    }
  });
}

// More tokens than prepared: the stock experts and the public op take the step, with the bits of a prepared
// one.
TEST(Execute, MoreTokensThanPreparedStillRun) {
  const checkpoint::Checkpoint from = small_model().open();
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.build.layers = {0, 1};
    options.max_tokens = 2;
    options.expert_tp = true;
    const auto small = decode::Runtime::build(from, options, rank);
    options.max_tokens = 40;
    options.expert_tp = false;
    const auto large = decode::Runtime::build(from, options, rank);
    const std::int64_t in_use = rank.memory.current();
    for (const std::size_t position : {0U, 1U}) {
      const auto kind = small.layers()[position].kind;
      const decode::Inputs in =
          decode::make_inputs(1, small.layers()[position].index, 40, kind, {16, 256, 4});
      decode::StepInputs step{40, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
      if (kind == checkpoint::ExpertKind::bf16)
        step = {40, in.x, {}, {}, {}, {}, &small.router(), in.logits, {}};
      const auto prepared = large.execute(position, Mode::ep, step);
      const std::vector<std::uint16_t> wanted(prepared.begin(), prepared.end());
      EXPECT_EQ(small.execute_unprepared(position, step), wanted) << position;
    }
    EXPECT_EQ(rank.memory.current(), in_use);
  });
}

}  // namespace
}  // namespace kerf::test
