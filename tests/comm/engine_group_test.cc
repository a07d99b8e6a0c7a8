// An engine's group: the contract of every group, over callbacks that know nothing of kerf's; what the
// callbacks are given; parts that step together; what goes wrong.
#include "kerf/comm/engine_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "kerf/comm/agree.h"
#include "kerf/comm/grid.h"
#include "kerf/comm/local.h"
#include "kerf/numeric/bf16.h"
#include "tests/comm/contract.h"
#include "tests/comm/engine.h"

namespace kerf::comm {
namespace {

using test::Contract;
using test::contracts;
using test::engine_of;
using testing::HasSubstr;

// What an engine may have, and what is made of it.
struct Kind {
  const char* name;
  bool sums, ordered, splits, barrier;
  EngineGroupOptions options;
};
const Kind kKinds[] = {
    {"Least", false, false, false, false, {}},
    {"OrderedSums", true, true, false, true, {}},
    {"UnorderedSums", true, false, true, false, {}},
    {"RankOrderAsked", true, false, true, true, {.rank_order = true}},
    {"Unchecked", false, false, false, false, {.checked = false}},
};

EngineGroupCalls calls_of(const Kind& kind, Group& host) {
  return engine_of(host, {kind.sums, kind.ordered, kind.splits, kind.barrier});
}

struct Case {
  Contract contract;
  Kind kind;
  int ranks;
};
std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Contract& contract : contracts())
    for (const Kind& kind : kKinds)
      for (const int ranks : {1, 2, 4, 5})
        // Who asks for no check is told nothing.
        if (kind.options.checked || std::string_view(contract.name) != "MismatchesAreRefusedOnAllRanks")
          out.push_back({contract, kind, ranks});
  return out;
}

class EngineContract : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Group, EngineContract, testing::ValuesIn(cases()), [](const auto& one) {
  return std::string(one.param.contract.name) + "_" + one.param.kind.name + "_" +
         std::to_string(one.param.ranks);
});

TEST_P(EngineContract, Holds) {
  const auto& [contract, kind, ranks] = GetParam();
  const auto check = contract.check;
  const Kind& of = kind;
  run_local(ranks, {}, [&](Group& host) {
    const auto group = make_engine_group(calls_of(of, host), of.options);
    EXPECT_EQ(group->ordered(), !of.sums || of.ordered || of.options.rank_order);
    check(*group);
    host.barrier("all are through");
  });
}

TEST(EngineGroup, SaysWhichSumsItForms) {
  run_local(2, {}, [](Group& host) {
    const auto said = [&](const Kind& kind) { return engine_sums(calls_of(kind, host), kind.options); };
    EXPECT_EQ(said(kKinds[0]), "kerf's, in rank order, on the engine's all_to_all");
    EXPECT_EQ(said(kKinds[1]), "the engine's all_reduce, in rank order");
    EXPECT_EQ(said(kKinds[2]), "the engine's all_reduce, in an order that it does not promise");
    EXPECT_EQ(said(kKinds[3]), "kerf's, in rank order, on the engine's all_to_all");
    host.barrier("all are through");
  });
}

// 2^24 - 2^24 + 1 in bf16: 1 in rank order, 0 where the engine adds from the last rank down and rounds.
TEST(EngineGroup, FormsTheSumsThatItSays) {
  run_local(3, {}, [](Group& host) {
    const float terms[] = {0x1p24F, -0x1p24F, 1.0F};
    const std::uint16_t mine = numeric::f32_to_bf16(terms[host.rank()]);
    const auto sum = [&](const Kind& kind) {
      const auto group = make_engine_group(calls_of(kind, host), kind.options);
      std::uint16_t out = 0;
      group->all_reduce_sum({&mine, 1}, {&out, 1}, "a sum");
      host.barrier("between groups");
      return numeric::bf16_to_f32(out);
    };
    EXPECT_EQ(sum(kKinds[0]), 1.0F);
    EXPECT_EQ(sum(kKinds[1]), 1.0F);
    EXPECT_EQ(sum(kKinds[2]), 0.0F);
    EXPECT_EQ(sum(kKinds[3]), 1.0F);
  });
}

// Parts of 1 and 3 ranks: while one gathers much, the other adds little, or nothing, or exchanges.
TEST(EngineGroup, PartsDoDifferentThingsInOneStep) {
  run_local(4, {}, [](Group& host) {
    const auto group = make_engine_group(calls_of(kKinds[0], host));
    const bool alone = host.rank() == 1;
    const auto part = group->split(alone ? 7 : -2, "uneven parts");
    ASSERT_EQ(part->size(), alone ? 1 : 3);
    EXPECT_EQ(part->number(part->rank()), host.rank());
    if (alone) {
      part->barrier("first");
      std::uint16_t one = 0x3F80;
      part->all_reduce_sum({&one, 1}, {&one, 1}, "second");
      EXPECT_EQ(one, 0x3F80);
      EXPECT_EQ(gathered(*part, std::span<const int>({41}), "third"), std::vector<int>{41});
    } else {
      const std::vector<int> many(5000, host.rank());
      const auto all = gathered(*part, std::span(many), "gather much");
      for (int s = 0; s < 3; ++s)
        EXPECT_EQ(all[static_cast<std::size_t>(5000 * s + 4999)], std::vector({0, 2, 3})[std::size_t(s)]);
      std::vector<std::uint16_t> values(50'000, 0x3F80);
      part->all_reduce_sum(values, values, "add much");
      EXPECT_EQ(values, std::vector<std::uint16_t>(50'000, 0x4040));
      part->barrier("wait");
    }
    EXPECT_EQ(all_max(*group, host.rank(), "together again"), 3);
    host.barrier("all are through");
  });
}

// A part's mismatch leaves the others their step.
TEST(EngineGroup, AMismatchOfOnePartIsItsOwn) {
  run_local(4, {}, [](Group& host) {
    const auto group = make_engine_group(calls_of(kKinds[0], host));
    const auto part = group->split(host.rank() / 2, "halves");
    const Verdict got = attempt([&] {
      if (host.rank() < 2) {
        part->barrier(host.rank() == 0 ? "a" : "b");
      } else {
        const std::vector<int> many(5000, host.rank());
        EXPECT_EQ(gathered(*part, std::span(many), "much").back(), 3);
      }
    });
    if (host.rank() < 2)
      EXPECT_EQ(got, (Reason{ErrorKind::bug, "rank 1 is in barrier 'b' while rank 0 is in barrier 'a'"}));
    else
      EXPECT_FALSE(got) << got->text;
    EXPECT_EQ(all_max(*group, host.rank(), "the whole group is sound"), 3);
    host.barrier("all are through");
  });
}

// What a rank can see by itself ends the group there, too, whether or not the ranks compare notes.
TEST(EngineGroup, AMisfitIsFinalWithAndWithoutChecks) {
  for (const Kind& kind : kKinds)
    run_local(1, {}, [&](Group& host) {
      const auto group = make_engine_group(calls_of(kind, host), kind.options);
      const std::vector<std::uint16_t> mine(8);
      std::vector<std::uint16_t> sum(7);
      EXPECT_THROW(group->all_reduce_sum(mine, sum, "uneven"), GroupFailed) << kind.name;
      EXPECT_THROW(group->barrier("afterwards"), GroupFailed) << kind.name;
    });
}

// Equal parts alone can be received into one piece of memory.
TEST(AllToAll, WhatDoesNotDivideIsRefused) {
  run_local(2, {}, [](Group& group) {
    const std::vector<std::byte> mine(4);
    std::vector<std::byte> all(5);
    const std::vector<tensor::StridedBytes> send(2, {mine.data(), 1, 2, 1, 2, 2});
    try {
      all_to_all(group, send, all, "parts");
      ADD_FAILURE();
    } catch (const GroupFailed& e) {
      EXPECT_THAT(e.what(), HasSubstr("'parts': 5 bytes to receive from 2 ranks, wanted equal parts"));
    }
    group.barrier("both are through");
  });
}

TEST(EngineGroup, PartsThatDoNotStepTogetherAreTold) {
  run_local(2, {}, [](Group& host) {
    const auto group = make_engine_group(calls_of(kKinds[0], host));
    const auto part = group->split(host.rank(), "apart");
    const Verdict got = attempt([&] {
      if (host.rank() == 0)
        part->barrier("on my own");
      else
        group->barrier("all of us");
    });
    if (host.rank() == 0) {
      EXPECT_FALSE(got);
    } else {
      ASSERT_TRUE(got);
      EXPECT_EQ(got->kind, ErrorKind::bug);
      EXPECT_THAT(got->text, HasSubstr("rank 0 is in 'on my own' of another group while 'all of us' was "
                                       "awaited: parts that the engine does not split itself"));
    }
    host.barrier("all are through");
  });
}

// What each rank throws where rank 1's callback throws `what`, and what it throws afterwards.
struct Thrown {
  Verdict first, later;
  bool group_failed = false;
};
std::vector<Thrown> thrown_where(const std::function<void()>& what) {
  std::vector<Thrown> out(2);
  run_local(2, {}, [&](Group& host) {
    EngineGroupCalls calls = engine_of(host, {});
    if (host.rank() == 1)
      calls.all_to_all = [&](auto...) { what(); };
    else
      calls.all_to_all = [](auto...) { throw std::runtime_error("connection closed by peer"); };
    const auto group = make_engine_group(std::move(calls));
    Thrown& mine = out[static_cast<std::size_t>(host.rank())];
    mine.first = attempt([&] {
      try {
        const std::vector<tensor::StridedBytes> send(2);
        std::vector<std::byte> received;
        all_to_all(*group, send, received, "layer 3");
      } catch (const GroupFailed&) {
        mine.group_failed = true;
        throw;
      }
    });
    mine.later = attempt([&] { group->barrier("later"); });
    host.barrier("all are through");
  });
  return out;
}

TEST(EngineGroup, WhatACallbackThrowsNamesTheRankAndWhatWasAwaited) {
  struct Callback {
    std::function<void()> what;
    ErrorKind kind;
    std::string text;
    bool group_failed;
  };
  const std::vector<Callback> callbacks = {
      {[] { throw std::runtime_error("Timed out after 600 s"); }, ErrorKind::peer, "Timed out after 600 s",
       true},
      {[] { throw std::bad_alloc(); }, ErrorKind::memory, "out of memory", false},
      {[] { throw Error(ErrorKind::device, "no device"); }, ErrorKind::device, "no device", false},
      {[] { throw GroupFailed(ErrorKind::peer, "rank 0 left"); }, ErrorKind::peer, "rank 0 left", true},
      {[] { throw 7; }, ErrorKind::peer, "an exception that is no std::exception", true},
  };
  for (const Callback& one : callbacks) {
    const auto thrown = thrown_where(one.what);
    EXPECT_EQ(thrown[1].first,
              (Reason{one.kind, "rank 1: the engine's all_to_all failed in 'layer 3': " + one.text}));
    EXPECT_EQ(thrown[1].group_failed, one.group_failed);
    EXPECT_EQ(thrown[1].later, thrown[1].first);
    EXPECT_TRUE(thrown[0].group_failed);
  }
}

TEST(EngineGroup, WhatIsMissingIsRefused) {
  run_local(1, {}, [](Group& host) {
    const auto refused = [&](const std::function<void(EngineGroupCalls&)>& spoil) {
      EngineGroupCalls calls = engine_of(host, {});
      spoil(calls);
      return attempt([&] { (void)make_engine_group(calls); }).value_or(Reason{});
    };
    EXPECT_EQ(refused([](auto& c) { c.all_gather = nullptr; }),
              (Reason{ErrorKind::usage, "the engine's group has no all_gather to call"}));
    EXPECT_EQ(refused([](auto& c) { c.all_to_all = nullptr; }),
              (Reason{ErrorKind::usage, "the engine's group has no all_to_all to call"}));
    EXPECT_EQ(refused([](auto& c) { c.rank = 1; }),
              (Reason{ErrorKind::usage, "the engine's group: rank 1 of 1 ranks"}));
    EXPECT_EQ(refused([](auto& c) { c.size = 0; }),
              (Reason{ErrorKind::usage, "the engine's group: rank 0 of 0 ranks"}));
  });
}

// One rank's wrong part ends the split on all.
TEST(EngineGroup, PartsOfTheEngineThatAreOthersAreRefused) {
  run_local(2, {}, [](Group& host) {
    EngineGroupCalls calls = engine_of(host, {});
    calls.split = [&](std::span<const int> colours, std::string_view) {
      EXPECT_EQ(std::vector<int>(colours.begin(), colours.end()), (std::vector{5, 5}));
      EngineGroupCalls part = engine_of(host, {});
      if (host.rank() == 1) part.rank = 0;
      return part;
    };
    const auto group = make_engine_group(calls);
    EXPECT_EQ(attempt([&] { (void)group->split(5, "parts"); }),
              (Reason{ErrorKind::usage,
                      "rank 1: 'parts': the engine's part has this rank as 0 of 2, wanted 1 of 2"}));
    host.barrier("all are through");
  });
}

// Memory that only its copier knows: nothing else may touch it. Here, bytes that are kept inverted.
class Inverting final : public tensor::Copier {
 public:
  explicit Inverting(std::span<const std::byte> memory) : memory_(memory) {}
  void pack(const tensor::StridedBytes& from, std::byte* to) const override {
    tensor::pack(from, to);
    if (inside(from.base) == inside(to)) return;
    for (std::int64_t i = 0; i < from.packed_bytes(); ++i) to[i] = ~to[i];
  }

 private:
  [[nodiscard]] bool inside(const std::byte* at) const {
    return at >= memory_.data() && at < memory_.data() + memory_.size();
  }
  std::span<const std::byte> memory_;
};

TEST(EngineGroup, MovesMemoryOfOtherKindsByTheCopier) {
  run_local(2, {}, [](Group& host) {
    std::vector<std::byte> memory(40'000);
    const Inverting copier(memory);
    const auto group = make_engine_group(engine_of(host, {}), {.copier = &copier});
    const auto value = [](int rank, std::size_t i) { return static_cast<std::byte>(100 * rank + i % 90); };
    for (const std::size_t bytes : {16U, 10'000U}) {  // in the message and on its own
      const auto mine = std::span(memory).first(bytes);
      const auto all = std::span(memory).subspan(bytes, 2 * bytes);
      for (std::size_t i = 0; i < bytes; ++i) mine[i] = ~value(host.rank(), i);
      group->all_gather(mine, all, "gather");
      for (std::size_t i = 0; i < 2 * bytes; ++i)
        ASSERT_EQ(~all[i], value(static_cast<int>(i / bytes), i % bytes));
      std::ranges::fill(all, std::byte{});
      const auto n = static_cast<std::int64_t>(bytes / 2);
      const std::vector<tensor::StridedBytes> send(2, {mine.data(), 1, 0, n, 2, 1});  // every other byte
      all_to_all(*group, send, all.first(bytes), "exchange");
      for (std::size_t i = 0; i < bytes; ++i)
        ASSERT_EQ(~all[i], value(static_cast<int>(i / (bytes / 2)), 2 * (i % (bytes / 2))));
    }
    host.barrier("all are through");
  });
}

}  // namespace
}  // namespace kerf::comm
