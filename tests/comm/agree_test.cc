// Agreement: all ranks end with one reason, and no rank waits for one that refused.
#include "kerf/comm/agree.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "kerf/comm/local.h"

namespace kerf::comm {
namespace {

constexpr std::array kSizes = {1, 2, 3, 8};

// Runs agree() on every rank with the verdicts given, returns what each rank got.
std::vector<Verdict> agree_on(const std::vector<Verdict>& verdicts) {
  std::vector<Verdict> got(verdicts.size());
  run_local(static_cast<int>(verdicts.size()), {}, [&](Group& group) {
    const auto me = static_cast<std::size_t>(group.rank());
    got[me] = agree(group, verdicts[me], "checks");
  });
  return got;
}

TEST(Agree, NothingWhereNobodyRefuses) {
  for (const int ranks : kSizes)
    for (const Verdict& got : agree_on(std::vector<Verdict>(static_cast<std::size_t>(ranks))))
      EXPECT_EQ(got, std::nullopt);
}

TEST(Agree, OneRefusalReachesAll) {
  for (const int ranks : {2, 3, 8})
    for (int refusing = 0; refusing < ranks; ++refusing) {
      std::vector<Verdict> verdicts(static_cast<std::size_t>(ranks));
      verdicts[static_cast<std::size_t>(refusing)] = Reason{ErrorKind::checkpoint, "layer 3 lacks w13"};
      const Reason want{ErrorKind::checkpoint, "rank " + std::to_string(refusing) + ": layer 3 lacks w13"};
      for (const Verdict& got : agree_on(verdicts)) EXPECT_EQ(got, want);
    }
}

TEST(Agree, TheLowestRankOfSeveral) {
  std::vector<Verdict> verdicts(5);
  verdicts[2] = Reason{ErrorKind::memory, "two"};
  verdicts[4] = Reason{ErrorKind::usage, "a longer reason than that of rank two"};
  for (const Verdict& got : agree_on(verdicts)) EXPECT_EQ(got, (Reason{ErrorKind::memory, "rank 2: two"}));
}

TEST(Agree, AReasonThatAllShareHasNoRank) {
  const Reason reason{ErrorKind::unsupported, "hidden 100 is not a multiple of 128"};
  for (const int ranks : kSizes)
    for (const Verdict& got : agree_on(std::vector<Verdict>(static_cast<std::size_t>(ranks), reason)))
      EXPECT_EQ(got, reason);
  // Equal texts of different kinds aren't the same reason.
  for (const Verdict& got : agree_on({Reason{ErrorKind::bug, "x"}, Reason{ErrorKind::device, "x"}}))
    EXPECT_EQ(got, (Reason{ErrorKind::bug, "rank 0: x"}));
}

TEST(Agree, AnEmptyTextIsStillARefusal) {
  for (const Verdict& got : agree_on({std::nullopt, Reason{ErrorKind::probe, ""}}))
    EXPECT_EQ(got, (Reason{ErrorKind::probe, "rank 1: "}));
}

TEST(Agreed, AFailedStepThrowsOnAllRanks) {
  for (const int ranks : kSizes) {
    std::vector<Verdict> seen(static_cast<std::size_t>(ranks));
    run_local(ranks, {}, [&](Group& group) {
      const bool last = group.rank() == ranks - 1;
      seen[static_cast<std::size_t>(group.rank())] = attempt([&] {
        agreed(group, "allocate", [&] {
          if (last) throw std::bad_alloc();
        });
      });
      group.barrier("the group is whole");
    });
    for (const Verdict& verdict : seen) {
      ASSERT_TRUE(verdict);
      EXPECT_EQ(verdict->kind, ErrorKind::memory);
      EXPECT_EQ(verdict->text, ranks == 1 ? std::string("out of memory")
                                          : "rank " + std::to_string(ranks - 1) + ": out of memory");
    }
  }
}

TEST(Agreed, StepsRunOnEveryRank) {
  std::vector<int> ran(4, 0);
  run_local(4, {}, [&](Group& group) {
    agreed(group, "step", [&] { ++ran[static_cast<std::size_t>(group.rank())]; });
  });
  EXPECT_EQ(ran, std::vector<int>(4, 1));
}

TEST(GatherText, AnyLengths) {
  const auto text = [](int rank) {
    return rank == 1
               ? std::string()
               : std::string(static_cast<std::size_t>(rank * rank * 50), 'a' + static_cast<char>(rank)) +
                     '\0' + "end";
  };
  for (const int ranks : kSizes)
    run_local(ranks, {}, [&](Group& group) {
      const auto all = gather_text(group, text(group.rank()), "texts");
      ASSERT_EQ(all.size(), static_cast<std::size_t>(ranks));
      for (int r = 0; r < ranks; ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], text(r));
      EXPECT_EQ(gather_text(group, "", "empty"), std::vector<std::string>(static_cast<std::size_t>(ranks)));
    });
}

TEST(AllMinMax, OverRanks) {
  constexpr auto kLowest = std::numeric_limits<std::int64_t>::min();
  for (const int ranks : kSizes)
    run_local(ranks, {}, [&](Group& group) {
      const std::int64_t mine = (group.rank() * 5) % 7 - 3;
      std::int64_t low = 99;
      std::int64_t high = -99;
      for (int r = 0; r < ranks; ++r) {
        low = std::min<std::int64_t>(low, (r * 5) % 7 - 3);
        high = std::max<std::int64_t>(high, (r * 5) % 7 - 3);
      }
      EXPECT_EQ(all_min(group, mine, "min"), low);
      EXPECT_EQ(all_max(group, mine, "max"), high);
      EXPECT_EQ(all_min(group, group.rank() == ranks - 1 ? kLowest : 0, "extreme"), kLowest);
    });
}

TEST(AllSum, InRankOrder) {
  // 2^53 + 1 + 1 is 2^53 in this order; the other order would give 2^53 + 2.
  run_local(3, {}, [](Group& group) {
    std::array<double, 3> values = {group.rank() == 0 ? 9007199254740992.0 : 1.0,
                                    group.rank() == 2 ? 9007199254740992.0 : 1.0, -0.0};
    all_sum(group, values, "sums");
    EXPECT_EQ(values[0], 9007199254740992.0);
    EXPECT_EQ(values[1], 9007199254740994.0);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(values[2]), 0U);
  });
  run_local(2, {}, [](Group& group) { all_sum(group, {}, "none"); });
}

}  // namespace
}  // namespace kerf::comm
