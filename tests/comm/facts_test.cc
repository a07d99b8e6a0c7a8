// What ranks compare before they start: one fact that differs, several, in any number of ranks.
#include "kerf/comm/facts.h"

#include <gtest/gtest.h>

#include <optional>

#include "kerf/comm/grid.h"
#include "kerf/comm/local.h"

namespace kerf::comm {
namespace {

Facts common() {
  return {{"kerf", "0.1.0", ErrorKind::unsupported},
          {"kernel package", "cpu-avx512-7", ErrorKind::unsupported},
          {"layout", "trtllm-gen-1", ErrorKind::unsupported},
          {"headers' digest", "00112233", ErrorKind::checkpoint},
          {"batches", "1,8", ErrorKind::usage},
          {"seed", "1", ErrorKind::usage}};
}

Fact& named(Facts& facts, const std::string& name) {
  for (Fact& f : facts)
    if (f.name == name) return f;
  throw std::logic_error(name);
}

// What every rank hears; all hear the same.
Verdict heard(int ranks, const std::function<Facts(int rank)>& facts) {
  std::vector<Verdict> all(static_cast<std::size_t>(ranks));
  run_local(ranks, {}, [&](Group& group) {
    const auto me = static_cast<std::size_t>(group.rank());
    all[me] = compare_facts(group, "comparing", [&] { return facts(group.rank()); });
  });
  for (const Verdict& v : all) EXPECT_EQ(v, all[0]);
  return all[0];
}

class FactsOverRanks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FactsOverRanks, testing::Values(1, 2, 4, 8));

TEST_P(FactsOverRanks, EqualOnesAreFine) {
  EXPECT_FALSE(heard(GetParam(), [](int) { return common(); }));
  EXPECT_FALSE(heard(GetParam(), [](int) { return Facts(); }));
}

// Every fact, on every rank.
TEST_P(FactsOverRanks, OneThatDiffersIsToldWithRanksAndBothValues) {
  const int ranks = GetParam();
  if (ranks == 1) GTEST_SKIP() << "one rank";
  for (const Fact& fact : common()) {
    for (int odd = 0; odd < ranks; ++odd) {
      const Verdict v = heard(ranks, [&](int rank) {
        Facts facts = common();
        if (rank == odd) named(facts, fact.name).value = "another";
        return facts;
      });
      ASSERT_TRUE(v) << fact.name;
      EXPECT_EQ(v->kind, fact.kind);
      std::string wanted = "the ranks do not start alike: " + fact.name + ": ";
      if (ranks > 2)
        wanted += "rank " + std::to_string(odd) + ": another, others: " + fact.value;
      else
        wanted += odd == 0 ? "rank 0: another, rank 1: " + fact.value
                           : "rank 0: " + fact.value + ", rank 1: another";
      EXPECT_EQ(v->text, wanted);
    }
  }
}

TEST(FactsThatDiffer, AreAllTold) {
  const Verdict v = heard(4, [](int rank) {
    Facts facts = common();
    if (rank == 1) named(facts, "seed").value = "2";
    if (rank == 1 || rank == 3) named(facts, "headers' digest").value = "ffff";
    return facts;
  });
  ASSERT_TRUE(v);
  EXPECT_EQ(v->kind, ErrorKind::checkpoint);  // the first of them in the list
  EXPECT_EQ(v->text,
            "the ranks do not start alike: headers' digest: ranks 0 2: 00112233, ranks 1 3: ffff; seed: rank "
            "1: 2, others: 1");
}

TEST(FactsThatDiffer, AsManyValuesAsRanks) {
  const Verdict v = heard(8, [](int rank) {
    return Facts{{"batch", std::string(static_cast<std::size_t>(rank % 4), 'x'), ErrorKind::usage}};
  });
  ASSERT_TRUE(v);
  EXPECT_EQ(
      v->text,
      "the ranks do not start alike: batch: ranks 0 4: '', ranks 1 5: x, ranks 2 6: xx, ranks 3 7: xxx");
}

// Values of any length: a long one is shown from a little before where they part.
TEST(FactsThatDiffer, LongValuesAreShownWhereTheyDiffer) {
  std::string a(5000, 'a');
  std::string b = a;
  b[3000] = 'Q';
  b += std::string(70'000, 'b');
  const Verdict v = heard(3, [&](int rank) {
    return Facts{{"tactics", rank == 2 ? b : a, ErrorKind::usage}};
  });
  ASSERT_TRUE(v);
  EXPECT_NE(
      v->text.find("rank 2: ..." + std::string(24, 'a') + "Q" + std::string(95, 'a') + "... (75000 bytes)"),
      std::string::npos)
      << v->text;
  EXPECT_NE(v->text.find("others: ..." + std::string(120, 'a') + "... (5000 bytes)"), std::string::npos);
  EXPECT_LT(v->text.size(), 500U);
}

// One that is the beginning of the other, both long; and bytes of any value.
TEST(FactsThatDiffer, ByTheirEndAlone) {
  const std::string a(4000, '\0');
  const Verdict v = heard(2, [&](int rank) {
    return Facts{{"x", rank == 1 ? a + "!" : a, ErrorKind::usage}};
  });
  ASSERT_TRUE(v);
  EXPECT_NE(v->text.find("(4000 bytes)"), std::string::npos);
  EXPECT_NE(v->text.find("! (4001 bytes)"), std::string::npos);
}

// Ranks of two programs: one has a fact that the other does not know, in another order.
TEST(FactsThatDiffer, OneThatIsMissing) {
  const Verdict v = heard(4, [](int rank) {
    Facts facts = common();
    if (rank == 2) facts = {facts[5], facts[4], facts[3], facts[2], facts[0]};
    return facts;
  });
  ASSERT_TRUE(v);
  EXPECT_EQ(v->text, "the ranks do not start alike: kernel package: rank 2: (none), others: cpu-avx512-7");
}

TEST(FactsThatDiffer, OfVeryManySomeAreTold) {
  const Verdict v = heard(2, [](int rank) {
    Facts facts;
    for (int i = 0; i < 100; ++i)
      facts.push_back({std::string("f").append(std::to_string(i)), std::to_string(rank), ErrorKind::usage});
    return facts;
  });
  ASSERT_TRUE(v);
  EXPECT_NE(v->text.find("f7: rank 0: 0, rank 1: 1; and 92 more"), std::string::npos) << v->text;
  EXPECT_EQ(v->text.find("f8:"), std::string::npos);
}

// A rank that cannot say what it starts from.
TEST(FactsThatDiffer, OneRankThatFails) {
  const auto failing = [](int odd) {
    return [odd](int rank) -> Facts {
      if (rank == odd || odd < 0) throw Error(ErrorKind::memory, "no memory");
      return common();
    };
  };
  EXPECT_EQ(heard(4, failing(3)), (Reason{ErrorKind::memory, "rank 3: no memory"}));
  EXPECT_EQ(heard(4, failing(-1)), (Reason{ErrorKind::memory, "no memory"}));
  EXPECT_EQ(heard(1, failing(0)), (Reason{ErrorKind::memory, "no memory"}));
}

// In a part of a group ranks are called by their numbers in the whole.
TEST(FactsThatDiffer, InAPartOfAGroup) {
  std::vector<Verdict> all(4);
  run_local(4, {}, [&](Group& group) {
    const Grid grid(group, 2, 2);
    all[static_cast<std::size_t>(group.rank())] = compare_facts(grid.row(), "comparing", [&] {
      return Facts{{"seed", group.rank() == 3 ? "2" : "1", ErrorKind::usage}};
    });
  });
  EXPECT_FALSE(all[0]);
  EXPECT_FALSE(all[1]);
  EXPECT_EQ(all[2], all[3]);
  ASSERT_TRUE(all[2]);
  EXPECT_EQ(all[2]->text, "the ranks do not start alike: seed: rank 2: 1, rank 3: 2");
}

}  // namespace
}  // namespace kerf::comm
