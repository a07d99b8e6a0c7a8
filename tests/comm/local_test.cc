// The local group: what collectives compute, and that a rank which fails, leaves or sleeps never leaves
// another one waiting.
#include "kerf/comm/local.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/comm/all_reduce.h"
#include "kerf/numeric/rank_sum.h"
#include "tests/support/count_allocations.h"
#include "tests/support/npy.h"

namespace kerf::comm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::array kSizes = {1, 2, 3, 4, 5, 6, 7, 8, 16, 19};

std::byte mark(int rank, std::size_t i) {
  return static_cast<std::byte>(31 * rank + 7 * static_cast<int>(i));
}

// What run_local throws, as a verdict.
Verdict outcome(int ranks, const std::function<void(Group&)>& body, std::chrono::milliseconds timeout = 20s) {
  return attempt([&] { run_local(ranks, {.timeout = timeout}, body); });
}

// Each rank's own error, from inside.
struct Seen {
  explicit Seen(int ranks) : verdicts(static_cast<std::size_t>(ranks)) {}
  void run(Group& group, const std::function<void()>& step) {
    verdicts[static_cast<std::size_t>(group.rank())] = attempt(step);
  }
  std::vector<Verdict> verdicts;
};

bool contains(const Verdict& verdict, const std::string& part) {
  return verdict && verdict->text.find(part) != std::string::npos;
}

TEST(RunLocal, EveryRankRunsOnceOnAThreadOfItsOwn) {
  for (const int ranks : kSizes) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(ranks));
    const auto caller = std::this_thread::get_id();
    run_local(ranks, {}, [&](Group& group) {
      EXPECT_EQ(group.size(), ranks);
      EXPECT_EQ(group.name(), "local");
      EXPECT_TRUE(group.ordered());
      EXPECT_NE(std::this_thread::get_id(), caller);
      ++runs[static_cast<std::size_t>(group.rank())];
    });
    for (const auto& run : runs) EXPECT_EQ(run.load(), 1);
  }
}

TEST(RunLocal, RefusesSizesThatMakeNoSense) {
  for (const int ranks : {0, -1}) {
    const Verdict verdict = outcome(ranks, [](Group&) { FAIL(); });
    ASSERT_TRUE(verdict);
    EXPECT_EQ(verdict->kind, ErrorKind::usage);
    EXPECT_TRUE(contains(verdict, std::to_string(ranks)));
  }
  EXPECT_EQ(outcome(
                1, [](Group&) { FAIL(); }, 0ms)
                ->kind,
            ErrorKind::usage);
}

TEST(LocalGroup, AllGatherIsInRankOrder) {
  for (const int ranks : kSizes)
    for (const std::size_t bytes : {0U, 1U, 5U, 4096U})
      run_local(ranks, {}, [&](Group& group) {
        std::vector<std::byte> mine(bytes);
        for (std::size_t i = 0; i < bytes; ++i) mine[i] = mark(group.rank(), i);
        std::vector<std::byte> all(bytes * static_cast<std::size_t>(ranks));
        group.all_gather(mine, all, "bytes");
        for (int s = 0; s < ranks; ++s)
          for (std::size_t i = 0; i < bytes; ++i)
            ASSERT_EQ(all[static_cast<std::size_t>(s) * bytes + i], mark(s, i))
                << ranks << " " << s << " " << i;
      });
}

// Everybody reads what all lend; what a rank's work throws comes out of it once its peers are done.
TEST(LocalGroup, LendsMemoryToAllRanks) {
  for (const int ranks : kSizes) {
    std::atomic<int> right{0};
    const Verdict verdict = outcome(ranks, [&](Group& group) {
      ASSERT_TRUE(group.shares_memory());
      const std::vector<int> held(3, 100 + group.rank());
      group.lend(
          std::as_bytes(std::span(held)),
          [&](Lent lent) {
            for (int r = 0; r < ranks; ++r) {
              int seen = 0;
              std::memcpy(&seen, lent(r).data() + sizeof(int), sizeof(int));
              if (seen == 100 + r) ++right;
            }
            if (group.rank() == ranks - 1) throw Error(ErrorKind::memory, "no room here");
          },
          "lending");
    });
    ASSERT_TRUE(verdict);
    EXPECT_EQ(verdict->kind, ErrorKind::memory);
    EXPECT_EQ(right.load(), ranks * ranks);
  }
}

TEST(LocalGroup, AllGatherInPlace) {
  run_local(4, {}, [](Group& group) {
    std::vector<std::int32_t> all(4 * 3, -1);
    const auto mine = std::span(all).subspan(static_cast<std::size_t>(group.rank()) * 3, 3);
    std::iota(mine.begin(), mine.end(), 100 * group.rank());
    group.all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)), "in place");
    for (int s = 0; s < 4; ++s)
      for (int i = 0; i < 3; ++i) EXPECT_EQ(all[static_cast<std::size_t>(3 * s + i)], 100 * s + i);
  });
}

TEST(LocalGroup, AllToAllTakesStridedBlocksInOrder) {
  for (const int ranks : kSizes) {
    const auto n = static_cast<std::size_t>(ranks);
    // Each rank holds 2 planes of 3 rows of ranks * 5 bytes; rank d gets 5 columns of every row.
    run_local(ranks, {}, [&](Group& group) {
      const std::size_t row = n * 5;
      std::vector<std::byte> held(2 * 3 * row);
      for (std::size_t i = 0; i < held.size(); ++i) held[i] = mark(group.rank(), i);
      std::vector<tensor::StridedBytes> send;
      for (std::size_t d = 0; d < n; ++d)
        send.push_back({held.data() + 5 * d, 2, static_cast<std::int64_t>(3 * row), 3,
                        static_cast<std::int64_t>(row), 5});
      std::vector<std::byte> received(n * 30);
      all_to_all(group, send, received, "columns");
      const auto me = static_cast<std::size_t>(group.rank());
      for (std::size_t s = 0; s < n; ++s)
        for (std::size_t r = 0; r < 6; ++r)
          for (std::size_t c = 0; c < 5; ++c)
            ASSERT_EQ(received[s * 30 + r * 5 + c], mark(static_cast<int>(s), r * row + 5 * me + c));
    });
  }
}

// Rank s sends s + 2 * d bytes to rank d, none at all from rank 0 to itself.
TEST(LocalGroup, AllToAllOfUnequalSizes) {
  for (const int ranks : kSizes) {
    const auto n = static_cast<std::size_t>(ranks);
    run_local(ranks, {}, [&](Group& group) {
      const auto me = static_cast<std::size_t>(group.rank());
      std::vector<std::byte> held(3 * n);
      for (std::size_t i = 0; i < held.size(); ++i) held[i] = mark(group.rank(), i);
      std::vector<tensor::StridedBytes> send;
      std::vector<std::vector<std::byte>> taken;
      for (std::size_t r = 0; r < n; ++r) {
        send.push_back({held.data(), 1, 0, 1, 0, static_cast<std::int64_t>(me + 2 * r)});
        taken.emplace_back(r + 2 * me);
      }
      const std::vector<std::span<std::byte>> received(taken.begin(), taken.end());
      group.all_to_all(send, received, "unequal");
      for (std::size_t s = 0; s < n; ++s)
        for (std::size_t i = 0; i < taken[s].size(); ++i)
          ASSERT_EQ(taken[s][i], mark(static_cast<int>(s), i)) << s << " to " << me;
    });
  }
}

// 6 ranks as 2 rows of 3 and as 3 columns of 2; each part reduces, and parts of parts too.
TEST(LocalGroup, SplitsIntoParts) {
  run_local(6, {}, [](Group& group) {
    const auto row = group.split(group.rank() / 3, "rows");
    const auto column = group.split(group.rank() % 3, "columns");
    EXPECT_EQ(row->size(), 3);
    EXPECT_EQ(row->rank(), group.rank() % 3);
    EXPECT_EQ(column->size(), 2);
    EXPECT_EQ(column->rank(), group.rank() / 3);
    EXPECT_TRUE(row->ordered());
    const std::vector<std::uint16_t> mine = {numeric::f32_to_bf16(static_cast<float>(1 << group.rank()))};
    std::vector<std::uint16_t> sum(1);
    row->all_reduce_sum(mine, sum, "sum of a row");
    EXPECT_EQ(numeric::bf16_to_f32(sum[0]), group.rank() < 3 ? 7.0F : 56.0F);
    column->all_reduce_sum(mine, sum, "sum of a column");
    EXPECT_EQ(numeric::bf16_to_f32(sum[0]), static_cast<float>(9 << (group.rank() % 3)));
    const auto alone = row->split(row->rank(), "one each");
    EXPECT_EQ(alone->size(), 1);
    const auto same = row->split(7, "all together");
    EXPECT_EQ(same->size(), 3);
    same->all_reduce_sum(mine, sum, "sum again");
    EXPECT_EQ(numeric::bf16_to_f32(sum[0]), group.rank() < 3 ? 7.0F : 56.0F);
  });
}

// Messages of a part number the ranks as the whole group does, and a rank that leaves wakes every part it is
// in.
TEST(LocalGroup, PartsNameRanksOfTheWhole) {
  const auto text_of = [](const std::function<void(Group&, Group&)>& body) {
    std::mutex lock;
    std::string text;
    const Verdict verdict = attempt([&] {
      run_local(6, {std::chrono::milliseconds{2'000}}, [&](Group& group) {
        const auto row = group.split(group.rank() / 3, "rows");
        try {
          body(group, *row);
        } catch (const GroupFailed& e) {
          const std::lock_guard guard(lock);
          if (group.rank() == 3) text = e.what();
          throw;
        }
      });
    });
    EXPECT_TRUE(verdict.has_value());
    return text;
  };
  EXPECT_EQ(text_of([](Group& group, Group& row) {
              if (group.rank() == 5) throw Error(ErrorKind::memory, "no room here");
              row.barrier("the row");
            }),
            "rank 5 left while 'the row' was awaited: no room here");
  EXPECT_EQ(text_of([](Group& group, Group& row) {
              if (group.rank() == 4) std::this_thread::sleep_for(std::chrono::milliseconds{2'600});
              row.barrier("the row");
            }),
            "rank 4 did not reach 'the row' within 2 s");
  EXPECT_EQ(text_of([](Group& group, Group& row) {
              std::vector<std::byte> mine(group.rank() == 5 ? 3 : 2);
              std::vector<std::byte> all(3 * mine.size());
              row.all_gather(mine, all, "bytes");
            }),
            "all-gather 'bytes': rank 5 brings 3 bytes, rank 3 2");
}

// Rows that tell orders and roundings apart, one value a rank (ranks beyond the list bring -0.0).
std::vector<std::uint16_t> column(int ranks, std::initializer_list<float> values) {
  std::vector<std::uint16_t> out(static_cast<std::size_t>(ranks), 0x8000);
  std::size_t r = 0;
  for (const float v : values)
    if (r < out.size()) out[r++] = numeric::f32_to_bf16(v);
  return out;
}

// [elements][ranks]; the sum is written out here, not taken from the function under test.
std::vector<std::vector<std::uint16_t>> hard_columns(int ranks) {
  const float big = 16777216.0F;  // 2^24
  const float nan = std::nanf("");
  const float tiny = std::bit_cast<float>(0x80010000U);  // a negative subnormal of bf16
  std::vector<std::vector<std::uint16_t>> columns = {
      column(ranks, {big, 1, -big}),
      column(ranks, {1, big, -big}),
      column(ranks, {big, -big, 1}),
      column(ranks, {256, 1, 1, 1}),
      column(ranks, {}),
      column(ranks, {tiny, tiny, tiny}),
      column(ranks, {1, nan, 1}),
      column(ranks, {-0.0F, tiny}),
      column(ranks, {3e38F, 3e38F, -3e38F}),
      column(ranks, {1, -1, -0.0F}),
  };
  std::uint64_t state = 88172645463325252U;
  while (columns.size() < 3001) {
    std::vector<std::uint16_t> values;
    for (int r = 0; r < ranks; ++r) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      values.push_back(static_cast<std::uint16_t>((state & 0x8FFFU) | 0x3000U));
    }
    columns.push_back(values);
  }
  return columns;
}

std::uint16_t sum_of(const std::vector<std::uint16_t>& column) {
  volatile float sum = 0.0F;  // every add is rounded to f32
  for (const std::uint16_t v : column) sum = sum + numeric::bf16_to_f32(v);
  return numeric::f32_to_bf16(sum);
}

std::vector<std::uint16_t> row_of(const std::vector<std::vector<std::uint16_t>>& columns, int rank) {
  std::vector<std::uint16_t> row;
  for (const auto& c : columns) row.push_back(c[static_cast<std::size_t>(rank)]);
  return row;
}

TEST(LocalGroup, AllReduceIsTheSumOverRanksBitForBit) {
  for (const int ranks : kSizes) {
    const auto columns = hard_columns(ranks);
    run_local(ranks, {}, [&](Group& group) {
      std::vector<std::uint16_t> mine = row_of(columns, group.rank());
      std::vector<std::uint16_t> sum(mine.size(), 0xABCD);
      group.all_reduce_sum(mine, sum, "sum");
      for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], sum_of(columns[i])) << ranks << " " << i;
      group.all_reduce_sum(mine, mine, "sum in place");
      EXPECT_EQ(mine, sum);
    });
  }
}

TEST(LocalGroup, KnownSums) {
  // Written out: what the sum is where order, rounding and zeros matter.
  const auto sum = [](int ranks, std::initializer_list<float> values) {
    const auto terms = column(ranks, values);
    std::uint16_t out = 0;
    run_local(ranks, {}, [&](Group& group) {
      std::uint16_t mine = terms[static_cast<std::size_t>(group.rank())];
      std::uint16_t total = 0;
      group.all_reduce_sum({&mine, 1}, {&total, 1}, "one");
      if (group.rank() == 0) out = total;
    });
    return out;
  };
  EXPECT_EQ(sum(3, {16777216.0F, 1, -16777216.0F}), 0x0000);
  EXPECT_EQ(sum(3, {16777216.0F, -16777216.0F, 1}), 0x3F80);
  EXPECT_EQ(sum(4, {256, 1, 1, 1}),
            numeric::f32_to_bf16(260));  // 259, rounded once; 256 where rounded thrice
  for (const int ranks : {1, 2, 8}) EXPECT_EQ(sum(ranks, {}), 0x0000) << "all -0.0";
  EXPECT_EQ(sum(2, {std::bit_cast<float>(0x80010000U), std::bit_cast<float>(0x80010000U)}), 0x8002);
  EXPECT_EQ(sum(2, {std::bit_cast<float>(0xFFC10000U), 1}), numeric::bf16_nan);
}

TEST(LocalGroup, ReduceScatterGivesEachRankItsPart) {
  for (const int ranks : kSizes)
    for (const std::size_t part_size : {0U, 1U, 37U, 1025U}) {
      auto columns = hard_columns(ranks);
      const std::size_t n = part_size * static_cast<std::size_t>(ranks);
      for (std::size_t i = 0; columns.size() < n; ++i) columns.push_back(std::vector(columns[i]));
      columns.resize(n);
      run_local(ranks, {}, [&](Group& group) {
        const auto mine = row_of(columns, group.rank());
        std::vector<std::uint16_t> part(part_size, 0xABCD);
        group.reduce_scatter_sum(mine, part, "part");
        for (std::size_t i = 0; i < part_size; ++i)
          ASSERT_EQ(part[i], sum_of(columns[static_cast<std::size_t>(group.rank()) * part_size + i]));
      });
    }
}

TEST(LocalGroup, GoldenSums) {
  for (const int ranks : {4, 8, 16}) {
    const std::string prefix = "ar_w" + std::to_string(ranks);
    const auto x = test::golden<std::uint16_t>(prefix + "_x");
    const auto want = test::golden<std::uint16_t>(prefix + "_fp32");
    ASSERT_EQ(x.size(), want.size() * static_cast<std::size_t>(ranks));
    run_local(ranks, {}, [&](Group& group) {
      const auto mine =
          std::span(x).subspan(static_cast<std::size_t>(group.rank()) * want.size(), want.size());
      std::vector<std::uint16_t> sum(want.size());
      group.all_reduce_sum(mine, sum, "golden");
      EXPECT_EQ(sum, want);
    });
  }
}

TEST(LocalGroup, ManyCollectivesInARow) {
  constexpr int kRounds = 400;
  run_local(8, {}, [](Group& group) {
    for (int i = 0; i < kRounds; ++i) {
      const std::int32_t mine = 1000 * i + group.rank();
      std::array<std::int32_t, 8> all{};
      group.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), "round");
      for (int r = 0; r < 8; ++r) ASSERT_EQ(all[static_cast<std::size_t>(r)], 1000 * i + r);
      const std::uint16_t one = numeric::f32_to_bf16(static_cast<float>(group.rank() + i % 3));
      std::uint16_t sum = 0;
      group.all_reduce_sum({&one, 1}, {&sum, 1}, "round");
      ASSERT_EQ(sum, numeric::f32_to_bf16(static_cast<float>(28 + 8 * (i % 3))));
      if (i % 7 == 0) group.barrier("round");
    }
  });
}

TEST(LocalGroup, CollectivesAllocateNothing) {
  std::atomic<std::int64_t> seen{0};
  run_local(4, {}, [&](Group& group) {
    std::vector<std::uint16_t> mine(4096, 0x3F80);
    std::vector<std::uint16_t> all(4 * mine.size());
    const std::vector<tensor::StridedBytes> send(
        4, {std::as_bytes(std::span(mine)).data(), 2, 4096, 16, 256, 128});
    std::vector<std::span<std::byte>> received;
    for (std::size_t r = 0; r < 4; ++r)
      received.push_back(std::as_writable_bytes(std::span(all)).subspan(r * 4096, 4096));
    std::vector<const AllReduce*> by_name;
    for (const std::string& name : all_reduce_names()) by_name.push_back(&all_reduce(name));
    const std::int64_t before = test::allocations;
    for (int i = 0; i < 3; ++i) {
      for (const AllReduce* reduce : by_name)
        reduce->run(group, std::span(mine).first(1000), std::span(mine).first(1000), all, "sum by name");
      group.barrier("a name that is too long to be stored in place");
      group.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), "gather");
      group.all_to_all(send, received, "exchange");
      group.all_reduce_sum(mine, std::span(all).first(mine.size()), "sum");
      group.reduce_scatter_sum(mine, std::span(all).first(mine.size() / 4), "part");
    }
    seen += test::allocations - before;
  });
  EXPECT_EQ(seen.load(), 0);
}

TEST(LocalGroup, BarrierHoldsUntilAllAreThere) {
  std::atomic<int> reached{0};
  run_local(8, {}, [&](Group& group) {
    for (int round = 1; round <= 20; ++round) {
      if (group.rank() == round % 8) std::this_thread::sleep_for(1ms);
      ++reached;
      group.barrier("before");
      EXPECT_EQ(reached.load(), 8 * round);
      group.barrier("after");
    }
  });
}

TEST(LocalGroup, ARankThatThrowsWakesTheOthers) {
  for (const int ranks : {2, 4, 8}) {
    Seen seen(ranks);
    const auto begin = Clock::now();
    const Verdict root = outcome(ranks, [&](Group& group) {
      if (group.rank() == 1) {
        std::this_thread::sleep_for(5ms);
        throw Error(ErrorKind::checkpoint, "layer 7 is damaged");
      }
      seen.run(group, [&] { group.barrier("weights"); });
      seen.run(group, [&] {  // later collectives fail in the same way
        std::byte mine{};
        std::vector<std::byte> all(static_cast<std::size_t>(ranks));
        group.all_gather({&mine, 1}, all, "scales");
      });
    });
    EXPECT_LT(Clock::now() - begin, 10s);
    ASSERT_TRUE(root);
    EXPECT_EQ(*root, (Reason{ErrorKind::checkpoint, "layer 7 is damaged"}));
    for (int r = 0; r < ranks; ++r) {
      if (r == 1) continue;
      const Verdict& mine = seen.verdicts[static_cast<std::size_t>(r)];
      ASSERT_TRUE(mine);
      EXPECT_EQ(mine->kind, ErrorKind::peer);
      EXPECT_EQ(mine->text, "rank 1 left while 'scales' was awaited: layer 7 is damaged");
    }
  }
}

TEST(LocalGroup, ARankThatReturnsEarlyWakesTheOthers) {
  const Verdict root = outcome(4, [&](Group& group) {
    if (group.rank() != 2) group.barrier("the second half");
  });
  ASSERT_TRUE(root);
  EXPECT_EQ(*root, (Reason{ErrorKind::peer, "rank 2 returned while 'the second half' was awaited"}));
}

TEST(LocalGroup, TheLowestRanksOwnErrorIsTheCause) {
  const Verdict root = outcome(6, [&](Group& group) {
    if (group.rank() == 4) throw Error(ErrorKind::usage, "four");
    if (group.rank() == 3) {
      std::this_thread::sleep_for(20ms);
      throw Error(ErrorKind::device, "three");
    }
    group.barrier("never");
  });
  EXPECT_EQ(root, (Reason{ErrorKind::device, "three"}));
}

TEST(LocalGroup, WhateverABodyThrowsIsAnError) {
  EXPECT_EQ(outcome(2, [](Group&) { throw std::bad_alloc(); })->kind, ErrorKind::memory);
  EXPECT_EQ(outcome(2, [](Group&) { throw std::runtime_error("odd"); }), (Reason{ErrorKind::bug, "odd"}));
  EXPECT_EQ(outcome(2,
                    [](Group& group) {
                      if (group.rank() == 0) throw 7;
                      group.barrier("x");
                    })
                ->kind,
            ErrorKind::bug);
  EXPECT_EQ(outcome(2, [](Group&) { throw Error(ErrorKind::probe, ""); })->kind, ErrorKind::probe);
}

TEST(LocalGroup, ARankThatSleepsIsNamed) {
  // Rank 3 sleeps until the others have given up.
  Seen seen(4);
  std::atomic<int> gave_up{0};
  const Verdict root = outcome(
      4,
      [&](Group& group) {
        while (group.rank() == 3 && gave_up.load() < 3) std::this_thread::sleep_for(1ms);
        seen.run(group, [&] { group.barrier("rows"); });
        ++gave_up;
        // The group stays broken, for the late rank too.
        seen.run(group, [&] { group.barrier("again"); });
        group.barrier("again");
      },
      100ms);
  for (const Verdict& verdict : seen.verdicts)
    EXPECT_EQ(verdict, (Reason{ErrorKind::peer, "rank 3 did not reach 'rows' within 0.1 s"}));
  EXPECT_EQ(root, seen.verdicts[0]);
}

TEST(LocalGroup, AllSleepersAreNamed) {
  std::atomic<int> gave_up{0};
  const Verdict root = outcome(
      5,
      [&](Group& group) {
        while (group.rank() % 2 == 1 && gave_up.load() < 3) std::this_thread::sleep_for(1ms);
        const Verdict mine = attempt([&] { group.barrier("odd"); });
        ++gave_up;
        require(mine);
      },
      250ms);
  EXPECT_EQ(root, (Reason{ErrorKind::peer, "ranks 1, 3 did not reach 'odd' within 0.25 s"}));
}

TEST(LocalGroup, ASlowRankInTimeIsFine) {
  EXPECT_FALSE(outcome(
      3,
      [&](Group& group) {
        for (int i = 0; i < 3; ++i) {
          if (group.rank() == i) std::this_thread::sleep_for(30ms);
          group.barrier("slow");
        }
      },
      20s));
}

// Every rank sees the same refusal, and nothing is written.
void expect_mismatch(int ranks, const std::string& part, const std::function<void(Group&)>& body) {
  Seen seen(ranks);
  outcome(ranks, [&](Group& group) { seen.run(group, [&] { body(group); }); });
  for (const Verdict& verdict : seen.verdicts) {
    ASSERT_TRUE(verdict) << part;
    EXPECT_EQ(verdict->kind, ErrorKind::bug);
    EXPECT_EQ(verdict, seen.verdicts[0]);
    EXPECT_TRUE(contains(verdict, part)) << verdict->text;
  }
}

TEST(LocalGroup, MismatchesAreRefusedOnAllRanks) {
  expect_mismatch(4, "rank 2 is in barrier 'b' while rank 0 is in barrier 'a'",
                  [](Group& group) { group.barrier(group.rank() == 2 ? "b" : "a"); });
  expect_mismatch(3, "rank 1 is in barrier 'x' while rank 0 is in all-gather 'x'", [](Group& group) {
    std::array<std::byte, 3> all{};
    if (group.rank() == 1)
      group.barrier("x");
    else
      group.all_gather(std::span(all).first(0), std::span(all).first(0), "x");
  });
  expect_mismatch(3, "'x': rank 2 brings 8 bytes, rank 0 4", [](Group& group) {
    const std::size_t n = group.rank() == 2 ? 8 : 4;
    std::vector<std::byte> mine(n);
    std::vector<std::byte> all(3 * n);
    group.all_gather(mine, all, "x");
  });
  expect_mismatch(3, "'x': rank 0 receives into 11 bytes, wanted 12", [](Group& group) {
    std::vector<std::byte> mine(4);
    std::vector<std::byte> all(group.rank() == 0 ? 11 : 12);
    group.all_gather(mine, all, "x");
  });
  expect_mismatch(2, "rank 1 receives into 6 bytes, wanted 8", [](Group& group) {
    std::vector<std::uint16_t> mine(4);
    std::vector<std::uint16_t> sum(group.rank() == 1 ? 3 : 4);
    group.all_reduce_sum(mine, sum, "x");
  });
  expect_mismatch(2, "rank 1 brings 5 bf16 values, not a multiple of 2", [](Group& group) {
    std::vector<std::uint16_t> mine(group.rank() == 1 ? 5 : 4);
    std::vector<std::uint16_t> part(2);
    group.reduce_scatter_sum(mine, part, "x");
  });
  expect_mismatch(2, "rank 0 receives over what it sends", [](Group& group) {
    std::vector<std::uint16_t> values(5);
    group.all_reduce_sum(std::span(values).first(4), std::span(values).subspan(group.rank() == 0 ? 1 : 0, 4),
                         "x");
  });
  expect_mismatch(3, "rank 1 sends 2 blocks to 3 ranks", [](Group& group) {
    std::array<std::byte, 4> block{};
    const std::vector<tensor::StridedBytes> send(group.rank() == 1 ? 2 : 3, {block.data(), 1, 4, 1, 4, 4});
    std::vector<std::byte> received(12);
    all_to_all(group, send, received, "x");
  });
  expect_mismatch(3, "rank 2 sends 3 bytes to rank 1, which wants 4", [](Group& group) {
    std::array<std::byte, 4> block{};
    std::vector<tensor::StridedBytes> send(3, {block.data(), 1, 4, 1, 4, 4});
    if (group.rank() == 2) send[1].run_bytes = 3;
    std::vector<std::byte> received(12);
    all_to_all(group, send, received, "x");
  });
}

}  // namespace
}  // namespace kerf::comm
