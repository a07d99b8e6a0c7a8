#include "kerf/base/threads.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kerf/base/error.h"

namespace kerf {
namespace {

TEST(Workers, EveryTaskRunsOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    const Workers workers(threads);
    std::vector<std::atomic<int>> seen(1000);
    workers.for_each(seen.size(), [&](std::size_t i, int worker) {
      ++seen[i];
      if (worker < 0 || worker >= workers.size()) ++seen[0];
    });
    for (const auto& n : seen) ASSERT_EQ(n, 1) << threads;
  }
}

// A pool larger than the machine is still a pool: thread counts can be tested anywhere.
TEST(Workers, MoreThreadsThanCoresReallyRun) {
  const int threads = available_cores() + 3;
  const Workers workers(threads);
  ASSERT_EQ(workers.size(), threads);
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  workers.for_each(64, [&](std::size_t, int) {
    const int now = ++inside;
    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    --inside;
  });
  EXPECT_GT(most, available_cores());
}

TEST(Workers, TheFirstErrorComesBack) {
  for (const int threads : {1, 4}) {
    const Workers workers(threads);
    try {
      workers.for_each(100, [](std::size_t i, int) {
        if (i == 17) throw Error(ErrorKind::memory, "task 17");
      });
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()), "task 17");
    }
    std::atomic<int> ran{0};
    workers.for_each(10, [&](std::size_t, int) { ++ran; });  // and the pool still works
    EXPECT_EQ(ran, 10);
  }
}

// Many short loops with fewer and more tasks than threads: no thread runs a task of another loop.
TEST(Workers, LoopsFollowEachOther) {
  const Workers workers(4);
  for (std::size_t loop = 0; loop < 2000; ++loop) {
    std::vector<std::size_t> seen(loop % 9);
    workers.for_each(seen.size(), [&](std::size_t i, int) { seen[i] += loop; });
    for (const std::size_t n : seen) ASSERT_EQ(n, loop);
  }
}

TEST(Workers, NoTasksNoWork) {
  Workers(2).for_each(0, [](std::size_t, int) { FAIL(); });
}

// What the process holds in memory, in bytes.
long resident() {
  std::ifstream statm("/proc/self/statm");
  long size = 0;
  long pages = 0;
  statm >> size >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// A process that goes on makes a pool for each of the things it is asked for. oneTBB keeps 12 KiB for each
// that had an arena of its own: 24 MiB.
TEST(Workers, PoolsOneAfterAnotherTakeNoMoreMemory) {
  long before = 0;
  for (int pool = 0; pool < 2100; ++pool) {
    if (pool == 100) before = resident();
    const Workers workers(4);
    std::atomic<int> ran{0};
    workers.for_each(8, [&](std::size_t, int) { ++ran; });
    ASSERT_EQ(ran, 8);
  }
  ASSERT_GT(before, 0);
  EXPECT_LT(resident() - before, 6L << 20);
}

// A pool that comes after another of its size is as good as a new one, and two at a time share nothing.
TEST(Workers, PoolsAtTheSameTimeShareNoThreads) {
  for (int round = 0; round < 3; ++round) {
    const Workers one(3);
    const Workers other(3);
    std::vector<std::atomic<int>> inside(2);
    std::atomic<bool> fine{true};
    const auto loop = [&](const Workers& workers, std::size_t which) {
      workers.for_each(50, [&](std::size_t, int worker) {
        if (++inside[which] > 3 || worker < 0 || worker >= 3) fine = false;
        std::this_thread::yield();
        --inside[which];
      });
    };
    std::thread beside([&] { loop(other, 1); });
    loop(one, 0);
    beside.join();
    EXPECT_TRUE(fine);
  }
}

TEST(Workers, ThreadCountsAreBounded) {
  for (const int threads : {0, -1, most_threads + 1, 2000000000}) {
    try {
      const Workers workers(threads);
      FAIL() << threads;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::usage);
      EXPECT_NE(std::string(e.what()).find(std::to_string(threads)), std::string::npos);
    }
  }
}

TEST(Threads, RanksShareTheCores) {
  EXPECT_EQ(threads_per_rank(8, 4), 2);
  EXPECT_EQ(threads_per_rank(2, 4), 1);
  EXPECT_EQ(threads_per_rank(0, 1), available_cores());
}

}  // namespace
}  // namespace kerf
