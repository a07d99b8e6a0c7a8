// An engine's own all-reduce: known by its backend's name, checked before it is called.
#include "kerf/comm/engine_all_reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "kerf/comm/local.h"

namespace kerf::comm {
namespace {

EngineCalls calls(std::string backend, int ranks) {
  return {std::move(backend), ranks, {}, [](std::span<const std::uint16_t>, std::span<std::uint16_t>) {}};
}

TEST(EngineAllReduce, TakesWhatItsBackendAndTheEngineTake) {
  EngineCalls made = calls("mnnvl", 16);
  made.takes = [](std::int64_t values) -> Verdict {
    if (values <= 8 * 8192) return std::nullopt;
    return Reason{ErrorKind::unsupported, "the workspace holds 65536 values"};
  };
  const EngineAllReduce engine(made);
  EXPECT_EQ(engine.name(), "mnnvl");
  EXPECT_FALSE(engine.supports({16, 8 * 8192}));
  EXPECT_EQ(engine.supports({16, 9 * 8192}),
            (Reason{ErrorKind::unsupported,
                    "the engine's all-reduce 'mnnvl' does not take 73728 bf16 values: "
                    "the workspace holds 65536 values"}));
  EXPECT_EQ(engine.supports({8, 8192}),
            (Reason{ErrorKind::unsupported,
                    "the engine's all-reduce 'mnnvl' has a communicator of 16 ranks, wanted 8"}));
  EXPECT_EQ(engine.order({16, 4 * 2048}), SumOrder::chunks_of_8);
  EXPECT_EQ(engine.order({16, 8 * 8192}), SumOrder::rank_order);
}

TEST(EngineAllReduce, ABackendWithoutAKnownOrderIsNotTaken) {
  for (const auto& [backend, kind] : {std::pair{"quick-ring", ErrorKind::usage},
                                      {"auto", ErrorKind::usage},
                                      {"", ErrorKind::usage},
                                      {"nccl", ErrorKind::unsupported}}) {
    const Verdict v = EngineAllReduce(calls(backend, 8)).supports({8, 8});
    ASSERT_TRUE(v) << backend;
    EXPECT_EQ(v->kind, kind) << v->text;
    EXPECT_NE(v->text.find("the engine's all-reduce"), std::string::npos) << v->text;
    EXPECT_NE(v->text.find(backend), std::string::npos) << v->text;
  }
  // TRT-LLM's is not built for 3 ranks.
  EXPECT_TRUE(EngineAllReduce(calls("trtllm", 3)).supports({3, 8}));
  EXPECT_THROW(EngineAllReduce({"mnnvl", 8, {}, {}}), Error);
}

TEST(EngineAllReduce, CallsTheEngineAndNotTheGroup) {
  run_local(2, {}, [](Group& group) {
    // This engine's communicator is the group itself, with all values doubled, so that its sum is told apart.
    EngineCalls made = calls("trtllm", 2);
    made.sum = [&](std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum) {
      group.all_reduce_sum(mine, sum, "the engine's");
      for (std::uint16_t& v : sum) v = numeric::f32_to_bf16(2 * numeric::bf16_to_f32(v));
    };
    const EngineAllReduce engine(made);
    EXPECT_EQ(engine.scratch_values({2, 100}), 0U);
    const std::array<std::uint16_t, 2> mine = {numeric::f32_to_bf16(1), numeric::f32_to_bf16(3)};
    std::array<std::uint16_t, 2> sum{};
    engine.run(group, mine, sum, {}, "x");
    EXPECT_EQ(sum, (std::array{numeric::f32_to_bf16(4), numeric::f32_to_bf16(12)}));
    EXPECT_THROW(engine.run(group, mine, std::span(sum).first(1), {}, "x"), Error);
  });
}

}  // namespace
}  // namespace kerf::comm
