// What is planned from sizes alone is what a runtime then takes.
#include "kerf/decode/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kerf/base/format.h"
#include "kerf/decode/room.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

using decode::MemoryRequest;

// 16 experts of 256 x 256, top 4: small_model().
MemoryRequest small_request(std::int64_t nvfp4, std::int64_t bf16) {
  return {.experts = 16,
          .hidden = 256,
          .intermediate = 256,
          .top_k = 4,
          .nvfp4_layers = nvfp4,
          .bf16_layers = bf16};
}

struct Case {
  std::vector<std::int64_t> layers;
  int ranks;
  int threads;
  bool tp;
  std::int64_t tokens;
  op::Input input;
};

TEST(MemoryPlan, IsWhatARuntimeTakes) {
  using op::Input;
  const checkpoint::Checkpoint from = small_model().open();
  const std::vector<Case> cases = {{{0, 1, 2, 3}, 4, 1, true, 8, Input::nvfp4},
                                   {{0, 1}, 2, 3, true, 37, Input::bf16},
                                   {{0, 2}, 1, 2, false, 1, Input::nvfp4},
                                   {{1}, 2, 1, false, 64, Input::nvfp4}};
  for (const std::string backend : {"cpu", "reference"}) {
    for (const Case& c : cases) {
      SCOPED_TRACE(fmt::format("{}: {} layers, {} ranks, {} threads, {} tokens", backend, c.layers.size(),
                               c.ranks, c.threads, c.tokens));
      const std::int64_t bf16 = std::count(c.layers.begin(), c.layers.end(), 1);
      MemoryRequest request = small_request(static_cast<std::int64_t>(c.layers.size()) - bf16, bf16);
      request.ranks = c.ranks;
      request.tp = c.tp ? c.ranks : 1;
      request.tokens = c.tokens;
      request.input = c.input;
      request.backend = backend;
      request.workers = c.threads;
      const decode::MemoryPlan plan = decode::memory_plan(request);
      on_ranks({c.ranks, c.threads, {}}, [&](const decode::Rank& rank) {
        decode::RuntimeOptions options;
        options.build = {c.layers, c.input, backend, {}};
        options.expert_tp = c.tp;
        options.max_tokens = c.tokens;
        const auto runtime = decode::Runtime::build(from, options, rank);
        EXPECT_EQ(runtime.footprint().stock, plan.ep.total());
        EXPECT_EQ(runtime.footprint().sliced, plan.tp.total());
        EXPECT_EQ(runtime.footprint().steps, plan.buffers);
        EXPECT_EQ(rank.memory.current(), plan.steady);
      });
    }
  }
}

// Experts that are weight-only by their configuration are given bf16 rows whatever is asked for.
TEST(MemoryPlan, KnowsWeightOnlyExperts) {
  tools::SynthOptions o = tools::synth_defaults(tools::SynthModel::qwen3_moe);
  o.experts = 8;
  o.hidden = 256;
  o.intermediate = 1024;
  o.layers = 2;
  o.top_k = 2;
  o.weight_only = true;
  const TempDir dir;
  tools::synth(dir.path(), o, Workers(1));
  const checkpoint::Checkpoint from = checkpoint::Checkpoint::open(dir.path());
  EXPECT_EQ(checkpoint::weight_only_layers(from.config()), 2);
  MemoryRequest request = decode::request_for(from, {0, 1}, false);
  EXPECT_EQ(request.weight_only_layers, 2);
  request.tokens = 33;
  request.ranks = request.tp = 2;
  for (const op::Input input : {op::Input::nvfp4, op::Input::bf16}) {
    request.input = input;
    const decode::MemoryPlan plan = decode::memory_plan(request);
    on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
      decode::RuntimeOptions options;
      options.build.input = input;
      options.expert_tp = true;
      options.max_tokens = 33;
      const auto runtime = decode::Runtime::build(from, options, rank);
      EXPECT_EQ(runtime.footprint().steps, plan.buffers);
      EXPECT_EQ(rank.memory.current(), plan.steady);
    });
  }
  request.input = op::Input::nvfp4;
  request.tail.kind = tail::Kind::exact;
  const Verdict v = decode::unsupported(request);
  ASSERT_TRUE(v);
  EXPECT_NE(v->text.find("W4A16 does not have"), std::string::npos) << v->text;
  request.weight_only_layers = 1;  // of two kinds, the buffers are the larger ones'
  request.tail = {};
  MemoryRequest other = request;
  other.weight_only_layers = 0;
  EXPECT_GE(decode::memory_plan(request).buffers, decode::memory_plan(other).buffers);
  request.weight_only_layers = 3;
  EXPECT_EQ(decode::unsupported(request)->kind, ErrorKind::usage);
}

// The same where tails want more: sums of sliced experts, rows of other ranks, all ranks' summed rows.
TEST(MemoryPlan, KnowsWhatTailsTake) {
  const Synthetic model(8, 128, 1024, {1}, 2);
  const checkpoint::Checkpoint from = model.open();
  using tail::Kind;
  using tail::RowSum;
  for (const tail::Options tail :
       {tail::Options{Kind::exact, RowSum::reduce_scatter}, tail::Options{Kind::exact, RowSum::all_reduce},
        tail::Options{Kind::fast, RowSum::all_reduce}})
    for (const auto& [ranks, tp] : {std::pair{2, true}, std::pair{4, false}, std::pair{1, false}})
      for (const std::int64_t tokens : {1, 3, 37}) {
        MemoryRequest request{.experts = 8,
                              .hidden = 128,
                              .intermediate = 1024,
                              .top_k = 4,
                              .nvfp4_layers = 1,
                              .bf16_layers = 1};
        request.ranks = ranks;
        request.tp = tp ? ranks : 1;
        request.tokens = tokens;
        const std::int64_t fast = decode::memory_plan(request).buffers;
        request.tail = tail;
        const decode::MemoryPlan plan = decode::memory_plan(request);
        EXPECT_GE(plan.buffers, fast);
        on_ranks({ranks, 1, {}}, [&](const decode::Rank& rank) {
          decode::RuntimeOptions options;
          options.expert_tp = tp;
          options.max_tokens = tokens;
          options.tail = tail;
          const auto runtime = decode::Runtime::build(from, options, rank);
          EXPECT_EQ(runtime.footprint().steps, plan.buffers) << ranks << " ranks, " << tokens << " tokens";
          EXPECT_EQ(rank.memory.current(), plan.steady);
        });
      }
}

// With small experts the probe's rows are what a reshard's peak is made of.
TEST(MemoryPlan, PeaksOfAReshardCountTheProbe) {
  const Synthetic model(64, 128, 128, {}, 1);
  const checkpoint::Checkpoint from = model.open();
  for (const auto& [ep, tp] : {std::pair{4, 2}, std::pair{1, 2}, std::pair{2, 1}}) {
    MemoryRequest request{.experts = 64,
                          .hidden = 128,
                          .intermediate = 128,
                          .top_k = 4,
                          .nvfp4_layers = 1,
                          .ranks = ep * tp,
                          .rows = ep,
                          .tp = tp};
    request.tokens = 1;
    const decode::MemoryPlan plan = decode::memory_plan(request);
    if (tp == 1) {
      EXPECT_EQ(plan.reshard, plan.load);
      continue;
    }
    EXPECT_EQ(plan.probe > plan.packed, ep == 4);
    on_grid(ep, tp, [&](const decode::Rank& rank) {
      decode::RuntimeOptions options;
      options.expert_tp = true;
      options.max_tokens = 1;
      const auto runtime = decode::Runtime::build(from, options, rank);
      // Ranks of one process pack nothing.
      EXPECT_EQ(runtime.sharding()->peak_extra_bytes, plan.tp.total() + plan.probe) << ep << " x " << tp;
      EXPECT_LE(plan.tp.total() + plan.probe, plan.reshard - plan.load);
    });
  }
}

TEST(MemoryPlan, RefusesExactTailsWhereTheyCannotBe) {
  MemoryRequest request{.experts = 6, .hidden = 128, .intermediate = 3072, .top_k = 2, .nvfp4_layers = 1};
  request.tail.kind = tail::Kind::exact;
  request.ranks = request.tp = 3;
  EXPECT_FALSE(decode::unsupported(request));
  request.ranks = request.tp = 2;
  ASSERT_TRUE(decode::unsupported(request));
  EXPECT_EQ(decode::unsupported(request)->kind, ErrorKind::unsupported);
  EXPECT_NE(decode::unsupported(request)->text.find("exact tp: 1, 3, 6"), std::string::npos);
  request.tp = 1;
  EXPECT_FALSE(decode::unsupported(request));
  request.ranks = request.tp = 3;
  request.input = op::Input::bf16;
  ASSERT_TRUE(decode::unsupported(request));
  EXPECT_NE(decode::unsupported(request)->text.find("W4A16"), std::string::npos);
}

// The same of hybrids, uneven slices (each rank its own) and padding.
TEST(MemoryPlan, IsWhatARuntimeTakesOnAGrid) {
  struct GridCase {
    std::int64_t intermediate;
    int ep, tp;
    layout::Fit fit;
    std::int64_t slice0, last;
  };
  for (const GridCase& c :
       {GridCase{256, 2, 2, {}, 128, 128}, GridCase{192, 2, 3, {}, 64, 64},
        GridCase{320, 2, 3, {true, false}, 128, 64}, GridCase{320, 1, 4, {true, false}, 128, 64},
        GridCase{96, 2, 2, {false, true}, 64, 64}, GridCase{208, 1, 3, {true, true}, 128, 64},
        GridCase{80, 3, 1, {false, true}, 128, 128}}) {
    SCOPED_TRACE(fmt::format("{} on {} x {}", c.intermediate, c.ep, c.tp));
    const Synthetic model(12, 128, c.intermediate, {1}, 2);
    const checkpoint::Checkpoint from = model.open();
    MemoryRequest request{.experts = 12,
                          .hidden = 128,
                          .intermediate = c.intermediate,
                          .top_k = 4,
                          .nvfp4_layers = 1,
                          .bf16_layers = 1,
                          .ranks = c.ep * c.tp,
                          .rows = c.ep,
                          .tp = c.tp,
                          .fit = c.fit,
                          .tokens = 11};
    EXPECT_EQ(decode::memory_plan(request).slice, c.slice0);
    const auto body = [&](const decode::Rank& rank) {
      MemoryRequest mine = request;
      mine.part = c.tp > 1 ? rank.row().rank() : 0;
      const decode::MemoryPlan plan = decode::memory_plan(mine);
      EXPECT_TRUE(mine.part < c.tp - 1 || plan.slice == c.last) << plan.slice;
      decode::RuntimeOptions options;
      options.build.fit = c.fit;
      options.expert_tp = c.tp > 1;
      options.max_tokens = 11;
      const auto runtime = decode::Runtime::build(from, options, rank);
      EXPECT_EQ(runtime.footprint().stock, plan.ep.total());
      EXPECT_EQ(runtime.footprint().sliced, plan.tp.total());
      EXPECT_EQ(runtime.footprint().steps, plan.buffers);
      EXPECT_EQ(rank.memory.current(), plan.steady);
    };
    if (c.tp > 1)
      on_grid(c.ep, c.tp, body);
    else
      on_ranks({c.ep, 1, {}}, body);
  }
}

TEST(MemoryPlan, SaysWhatWouldHelp) {
  MemoryRequest request = small_request(1, 1);
  request.intermediate = 96;
  const Verdict whole = decode::unsupported(request);
  ASSERT_TRUE(whole);
  EXPECT_NE(whole->text.find("--pad would add zeros up to 128"), std::string::npos) << whole->text;
  request.fit.pad = true;
  EXPECT_FALSE(decode::unsupported(request));
  request.nvfp4_layers = 0;
  request.intermediate = 100;  // no scale groups to keep whole
  EXPECT_FALSE(decode::unsupported(request));
  EXPECT_EQ(decode::memory_plan(request).bf16_width, 128);
  request.fit.pad = false;
  const Verdict bf16 = decode::unsupported(request);
  ASSERT_TRUE(bf16);
  EXPECT_NE(bf16->text.find("--pad would add zeros up to 128"), std::string::npos) << bf16->text;
  request.nvfp4_layers = 1;
  request.fit.pad = true;
  EXPECT_TRUE(decode::unsupported(request));
  request.intermediate = 256;
  request.part = 1;
  ASSERT_TRUE(decode::unsupported(request));
  EXPECT_EQ(decode::unsupported(request)->kind, ErrorKind::usage);
}

// Plan, build and backend ask one question, so that nothing is planned which cannot be bound.
TEST(MemoryPlan, AsksTheBackendForTheShape) {
  MemoryRequest request = small_request(0, 1);
  request.hidden = 192;
  const Verdict cpu = decode::unsupported(request);
  ASSERT_TRUE(cpu);
  EXPECT_EQ(cpu->kind, ErrorKind::unsupported);
  EXPECT_NE(cpu->text.find("hidden 192 of BF16 experts is not a multiple of 128"), std::string::npos)
      << cpu->text;
  request.backend = "reference";
  EXPECT_FALSE(decode::unsupported(request));
  request.hidden = 96;
  ASSERT_TRUE(decode::unsupported(request));
  EXPECT_NE(decode::unsupported(request)->text.find("not a multiple of 64"), std::string::npos);
  request.backend = "abacus";
  ASSERT_TRUE(decode::unsupported(request));
  EXPECT_EQ(decode::unsupported(request)->kind, ErrorKind::usage);

  tensor::HostMemory memory;
  const layout::Bf16Experts experts(memory, {2, 192, 64}, 0);
  EXPECT_TRUE(op::backend("cpu").supports(op::Bf16Args{experts.view(), 2, 1, {}}));
  EXPECT_FALSE(op::backend("reference").supports(op::Bf16Args{experts.view(), 2, 1, {}}));
}

TEST(MemoryPlan, RefusesNumbersThatMakeNoSense) {
  MemoryRequest request = small_request(1, 0);
  request.tokens = decode::most_tokens + 1;
  ASSERT_TRUE(decode::unsupported(request));
  EXPECT_EQ(decode::unsupported(request)->kind, ErrorKind::usage);
  request = small_request(1, 0);
  request.workers = 0;
  ASSERT_TRUE(decode::unsupported(request));
  EXPECT_EQ(decode::unsupported(request)->kind, ErrorKind::usage);
  // One token, but as many rows as ranks: sums that no int64 holds.
  constexpr std::int64_t many = std::int64_t{1} << 20;
  request = {
      .experts = many, .hidden = many, .intermediate = 64, .top_k = many, .nvfp4_layers = 1, .ranks = many};
  request.tokens = 1;
  ASSERT_TRUE(decode::unsupported(request));
  EXPECT_NE(decode::unsupported(request)->text.find("more than 2^60 bytes"), std::string::npos);
}

}  // namespace
}  // namespace kerf::test
