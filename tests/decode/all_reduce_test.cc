// The all-reduce that is a step of its own: at which numbers of ranks, of what, resolved to what, and what
// every rank hears where one refuses.
#include "kerf/decode/all_reduce.h"

#include <gtest/gtest.h>

#include <memory>

#include "kerf/comm/engine_all_reduce.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

using comm::SumOrder;
using decode::AllReduceSpec;
using decode::StepAllReduce;

constexpr std::int64_t kWidth = 384;  // not the experts' 256

AllReduceSpec spec_for(int tp) {
  AllReduceSpec spec;
  spec.model_width = kWidth;
  spec.own_step_tps = {tp};
  return spec;
}

decode::AllReduceReport bound_on(int ranks, const AllReduceSpec& spec, std::int64_t tokens = 8) {
  std::vector<decode::AllReduceReport> reports(static_cast<std::size_t>(ranks));
  on_ranks({ranks, 1, {}}, [&](const decode::Rank& rank) {
    const StepAllReduce step = StepAllReduce::bind(spec, tokens, rank);
    step.warm_up(rank);
    reports[static_cast<std::size_t>(rank.group.rank())] = step.report();
  });
  for (const decode::AllReduceReport& r : reports) {
    EXPECT_EQ(r.resolved, reports[0].resolved);
    EXPECT_EQ(r.order, reports[0].order);
  }
  return reports[0];
}

TEST(AllReduceSpec, IsThatOfTheModelWithinSixteenRanks) {
  AllReduceSpec spec;
  for (const int tp : {8, 16}) {
    EXPECT_FALSE(spec.own_step(tp));  // a decode without a model width has no such step
    EXPECT_FALSE(spec.checked(tp));
  }
  spec.model_width = 8192;
  for (const int tp : {1, 2, 4, 8, 16, 32}) {
    EXPECT_EQ(spec.own_step(tp), tp == 16);
    EXPECT_EQ(spec.checked(tp), tp == 8 || tp == 16);
  }
}

// 256 on rank 0 and ones on all others: 2^8 + n - 1 in rank order, and each row another multiple.
TEST(StepAllReduce, SumsRowsInTheNamedOrder) {
  for (const char* backend : {"auto", "one-shot", "two-shot", "trtllm", "mnnvl"}) {
    AllReduceSpec spec = spec_for(4);
    spec.backend = backend;
    const bool each = std::string_view(backend) == "trtllm";
    on_ranks({4, 1, {}}, [&](const decode::Rank& rank) {
      const StepAllReduce step = StepAllReduce::bind(spec, 8, rank);
      for (const std::size_t rows : {0U, 1U, 5U, 8U}) {
        std::vector<std::uint16_t> mine(rows * kWidth);
        for (std::size_t i = 0; i < mine.size(); ++i)
          mine[i] = numeric::f32_to_bf16((rank.group.rank() == 0 ? 256.0F : 1.0F) *
                                         static_cast<float>(1U << (i / kWidth)));
        std::vector<std::uint16_t> sum(mine.size());
        step.run(mine, sum, rank);
        for (std::size_t i = 0; i < sum.size(); ++i)
          ASSERT_EQ(sum[i],
                    numeric::f32_to_bf16((each ? 256.0F : 260.0F) * static_cast<float>(1U << (i / kWidth))))
              << backend << " " << i;
        step.run(mine, mine, rank);
        EXPECT_EQ(mine, sum);
      }
    });
  }
}

TEST(StepAllReduce, AutoIsResolvedOnceAndReported) {
  EXPECT_EQ(bound_on(4, spec_for(4)).resolved, "one-shot");
  EXPECT_EQ(bound_on(4, spec_for(4), 400).resolved, "two-shot");  // 400 * 384 * 4 * 2 bytes: above 1 MiB
  AllReduceSpec spec = spec_for(16);
  spec.allowed = {"mnnvl"};
  const decode::AllReduceReport mnnvl = bound_on(16, spec);
  EXPECT_EQ(mnnvl.configured, "auto");
  EXPECT_EQ(mnnvl.resolved, "mnnvl");
  EXPECT_EQ(mnnvl.order, SumOrder::chunks_of_8);
  EXPECT_TRUE(mnnvl.own_step);
  // The first that takes this number of ranks.
  spec = spec_for(3);
  spec.allowed = {"trtllm", "mnnvl-two-shot"};
  EXPECT_EQ(bound_on(3, spec).resolved, "mnnvl-two-shot");
  // One whose bits cannot be had is passed over.
  spec.allowed = {"nccl", "two-shot"};
  EXPECT_EQ(bound_on(3, spec).resolved, "two-shot");
}

TEST(StepAllReduce, IsCheckedOnlyWhereItIsNoStepOfItsOwn) {
  std::string logged;  // by rank 0 alone
  AllReduceSpec spec = spec_for(16);
  spec.checked_tps = {2};
  spec.backend = "mnnvl";
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    const Log log([&](LogLevel, const std::string& line) { logged += line; });
    const std::int64_t before = rank.memory.current();
    const StepAllReduce step = StepAllReduce::bind(spec, 8, {rank.group, rank.memory, rank.workers, log});
    EXPECT_EQ(rank.memory.current(), before);
    EXPECT_TRUE(step.report().checked);
    EXPECT_FALSE(step.report().own_step);
    EXPECT_EQ(step.report().resolved, "mnnvl");
    step.warm_up(rank);
  });
  EXPECT_EQ(logged, "all-reduce of [8, 384] bf16 over 2 ranks: 'mnnvl', order rank-order, checked only");
}

TEST(StepAllReduce, ElsewhereItIsAnErrorThatSaysWhere) {
  AllReduceSpec spec = spec_for(16);
  spec.own_step_tps = {4, 16};
  std::vector<std::uint16_t> rows(kWidth);
  expect_all_refuse(thrown_on({2, 1, {}},
                              [&](const decode::Rank& rank) {
                                const StepAllReduce step = StepAllReduce::bind(spec, 8, rank);
                                EXPECT_TRUE(step.report().resolved.empty());
                                std::vector<std::uint16_t> sum(kWidth);
                                step.run(rows, sum, rank);
                              }),
                    ErrorKind::unsupported, {"on 4 or 16 ranks only, this group has 2"});
  spec.model_width = 0;
  expect_all_refuse(thrown_on({2, 1, {}},
                              [&](const decode::Rank& rank) {
                                std::vector<std::uint16_t> sum(kWidth);
                                StepAllReduce::bind(spec, 8, rank).run(rows, sum, rank);
                              }),
                    ErrorKind::unsupported, {"no all-reduce apart from its tails"});
}

TEST(StepAllReduce, RefusesOtherSizes) {
  for (const auto& [values, words] :
       {std::pair<std::size_t, std::string>{9 * kWidth, "9 rows, prepared for at most 8"},
        {kWidth + 1, "385 values, wanted rows of 384"}})
    expect_all_refuse(thrown_on({2, 1, {}},
                                [&, n = values](const decode::Rank& rank) {
                                  const StepAllReduce step = StepAllReduce::bind(spec_for(2), 8, rank);
                                  std::vector<std::uint16_t> mine(n);
                                  step.run(mine, mine, rank);
                                }),
                      ErrorKind::usage, {words});
  AllReduceSpec spec = spec_for(2);
  spec.model_width = -1;
  expect_all_refuse(
      thrown_on({2, 1, {}}, [&](const decode::Rank& rank) { (void)StepAllReduce::bind(spec, 8, rank); }),
      ErrorKind::usage, {"-1"});
}

// What one rank's specification says, every rank hears.
void expect_refused(ErrorKind kind, std::initializer_list<std::string> words,
                    const std::function<void(AllReduceSpec&)>& edit, bool on_one_rank = false,
                    int ranks = 4) {
  expect_all_refuse(thrown_on({ranks, 1, {}},
                              [&](const decode::Rank& rank) {
                                AllReduceSpec spec = spec_for(ranks);
                                if (!on_one_rank || rank.group.rank() == 2) edit(spec);
                                (void)StepAllReduce::bind(spec, 8, rank);
                              }),
                    kind, words);
}

TEST(StepAllReduce, BackendsThatDoNotFitAreRefused) {
  expect_refused(ErrorKind::usage, {"'ring'", "one-shot, two-shot"}, [](auto& s) { s.backend = "ring"; });
  expect_refused(ErrorKind::unsupported, {"nccl", "order"}, [](auto& s) { s.backend = "nccl"; });
  expect_refused(ErrorKind::unsupported, {"nccl", "order"}, [](auto& s) { s.allowed = {"nccl"}; });
  expect_refused(ErrorKind::usage, {"'ring'"}, [](auto& s) { s.allowed = {"ring", "two-shot"}; });
  expect_refused(ErrorKind::usage, {"wanted 0 (none) to"},
                 [](auto& s) { s.model_width = std::int64_t{1} << 50; });
  expect_refused(ErrorKind::unsupported, {"'one-shot'", "wanted mnnvl or trtllm"}, [](auto& s) {
    s.backend = "one-shot";
    s.allowed = {"mnnvl", "trtllm"};
  });
  const auto only_trtllm = [](auto& s) { s.allowed = {"trtllm"}; };
  expect_refused(ErrorKind::unsupported, {"not 3"}, only_trtllm, false, 3);
}

TEST(StepAllReduce, WhatOneRankIsToldReachesAll) {
  expect_refused(
      ErrorKind::usage, {"rank 2: ", "'ring'"}, [](auto& s) { s.backend = "ring"; }, true);
  expect_refused(
      ErrorKind::unsupported, {"rank 0 has 'one-shot'", "rank 2 has 'two-shot'"},
      [](auto& s) { s.backend = "two-shot"; }, true);
  expect_refused(
      ErrorKind::unsupported, {"[8, 384]", "rank 2 has 'one-shot' for [8, 512]"},
      [](auto& s) { s.model_width = 512; }, true);
  expect_refused(
      ErrorKind::unsupported, {"rank 2 has none"}, [](auto& s) { s.model_width = 0; }, true);
  expect_refused(
      ErrorKind::unsupported,
      {"rank 0 has 'one-shot' for [8, 384], as a step of its own, rank 2 has 'one-shot' for [8, 384]"},
      [](auto& s) {
        s.own_step_tps = {};
        s.checked_tps = {4};
      },
      true);
}

// An engine whose communicator is the group, summed in rank order, and which says that it is `backend`.
std::unique_ptr<comm::EngineAllReduce> engine_of(const decode::Rank& rank, std::string backend,
                                                 std::int64_t most = 1 << 20) {
  comm::Group& group = rank.group;
  return std::make_unique<comm::EngineAllReduce>(
      comm::EngineCalls{std::move(backend), group.size(),
                        [most](std::int64_t values) -> Verdict {
                          if (values <= most) return std::nullopt;
                          return Reason{ErrorKind::unsupported, "no room in the engine's workspace"};
                        },
                        [&group](std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum) {
                          group.all_reduce_sum(mine, sum, "the engine's sum");
                        }});
}

TEST(StepAllReduce, AnEnginesOwnIsBoundByItsBackend) {
  on_ranks({4, 1, {}}, [&](const decode::Rank& rank) {
    const auto engine = engine_of(rank, "trtllm-fp32");
    AllReduceSpec spec = spec_for(4);
    spec.engine = engine.get();
    for (const char* backend : {"auto", "trtllm-fp32"}) {
      spec.backend = backend;
      const StepAllReduce step = StepAllReduce::bind(spec, 8, rank);
      EXPECT_EQ(step.report().resolved, "trtllm-fp32");
      EXPECT_EQ(step.report().order, SumOrder::rank_order);
      step.warm_up(rank);
      std::vector<std::uint16_t> rows(kWidth, numeric::f32_to_bf16(2));
      step.run(rows, rows, rank);
      EXPECT_EQ(rows, std::vector<std::uint16_t>(kWidth, numeric::f32_to_bf16(8)));
    }
  });
}

TEST(StepAllReduce, AnEngineThatDoesNotFitIsRefusedOnEveryRank) {
  const auto refused =
      [](ErrorKind kind, std::initializer_list<std::string> words, const char* asked,
         const std::function<std::unique_ptr<comm::EngineAllReduce>(const decode::Rank&)>& make) {
        expect_all_refuse(thrown_on({4, 1, {}},
                                    [&](const decode::Rank& rank) {
                                      const auto engine = make(rank);
                                      AllReduceSpec spec = spec_for(4);
                                      spec.backend = asked;
                                      spec.engine = engine.get();
                                      (void)StepAllReduce::bind(spec, 8, rank);
                                    }),
                          kind, words);
      };
  refused(ErrorKind::unsupported, {"the engine's all-reduce is 'trtllm', 'mnnvl' was asked for"}, "mnnvl",
          [](const decode::Rank& rank) { return engine_of(rank, "trtllm"); });
  refused(ErrorKind::usage, {"no all-reduce is named 'quick'"}, "auto",
          [](const decode::Rank& rank) { return engine_of(rank, "quick"); });
  // One rank's engine alone: too small a workspace, another backend.
  refused(ErrorKind::unsupported, {"rank 3: ", "3072 bf16 values", "no room in the engine's workspace"},
          "auto", [](const decode::Rank& rank) {
            return engine_of(rank, "mnnvl", rank.group.rank() == 3 ? 3071 : 3072);
          });
  refused(
      ErrorKind::unsupported, {"rank 0 has 'mnnvl'", "rank 1 has 'trtllm'"}, "auto",
      [](const decode::Rank& rank) { return engine_of(rank, rank.group.rank() == 1 ? "trtllm" : "mnnvl"); });
}

// The first run compares bits: an engine whose sum has another order than its backend's name stands for is
// found out. This one always sums in rank order.
TEST(StepAllReduce, TheFirstRunFindsAnOrderThatIsAnother) {
  const auto first_run = [](int ranks, const char* backend) {
    return thrown_on({ranks, 1, {}}, [&](const decode::Rank& rank) {
      const auto engine = engine_of(rank, backend);
      AllReduceSpec spec = spec_for(ranks);
      spec.engine = engine.get();
      StepAllReduce::bind(spec, 8, rank).warm_up(rank);
    });
  };
  expect_all_refuse(first_run(4, "trtllm"), ErrorKind::probe, {"'trtllm'", "'each-add'", "4 ranks"});
  expect_all_refuse(first_run(16, "mnnvl-one-shot"), ErrorKind::probe, {"'chunks-of-8'", "16 ranks"});
  for (const Verdict& v : first_run(8, "mnnvl")) EXPECT_FALSE(v) << v->text;
  for (const Verdict& v : first_run(16, "mnnvl-two-shot")) EXPECT_FALSE(v) << v->text;
  // On one rank alone the bits differ.
  expect_all_refuse(thrown_on({2, 1, {}},
                              [&](const decode::Rank& rank) {
                                comm::Group& group = rank.group;
                                const comm::EngineAllReduce engine(
                                    {"mnnvl", 2, {}, [&](auto mine, std::span<std::uint16_t> sum) {
                                       group.all_reduce_sum(mine, sum, "the engine's sum");
                                       if (group.rank() == 1) sum.back() ^= 1U;
                                     }});
                                AllReduceSpec spec = spec_for(2);
                                spec.engine = &engine;
                                StepAllReduce::bind(spec, 8, rank).warm_up(rank);
                              }),
                    ErrorKind::probe, {"rank 1: ", "value 383 of 384"});
}

// Built with the rest of the runtime: its scratch counts among the buffers of steps, and it runs in the
// warm-up.
TEST(StepAllReduce, IsPartOfTheRuntime) {
  const checkpoint::Checkpoint from = small_model().open();
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.build.layers = {0};
    const auto without = decode::Runtime::build(from, options, rank);
    options.all_reduce = spec_for(2);
    CallRecord calls;
    decode::Rank recorded = rank;
    recorded.calls = &calls;
    const auto runtime = decode::Runtime::build(from, options, recorded);
    EXPECT_EQ(runtime.all_reduce_report().resolved, "one-shot");
    EXPECT_EQ(runtime.footprint().steps - without.footprint().steps, 2 * 8 * kWidth * 2);
    EXPECT_FALSE(calls.seen().has(Call::all_reduce));
    runtime.warm_up();
    EXPECT_TRUE(calls.seen().has(Call::all_reduce));
    std::vector<std::uint16_t> rows(8 * kWidth, numeric::f32_to_bf16(1.5F));
    runtime.all_reduce(rows, rows);
    EXPECT_EQ(rows, std::vector<std::uint16_t>(rows.size(), numeric::f32_to_bf16(3)));
    EXPECT_THROW(without.all_reduce(rows, rows), Error);
  });
}

}  // namespace
}  // namespace kerf::test
