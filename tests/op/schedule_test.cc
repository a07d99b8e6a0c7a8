// The order of a step's pieces: every one once, none before what it reads, and each thread told its next.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "kerf/op/cpu/schedule.h"

namespace kerf::op::cpu {
namespace {

bool same(const Piece& a, const Piece& b) {
  return a.stage == b.stage && a.group == b.group && a.index == b.index;
}

struct Shape {
  std::int64_t tokens;
  std::size_t groups;
  std::int64_t first;
  std::int64_t second;
};

TEST(Schedule, RunsEveryPieceOnceAndNoneBeforeItsInputs) {
  for (const Shape s : {Shape{1, 1, 1, 1}, Shape{3, 2, 5, 7}, Shape{64, 40, 3, 2}, Shape{2, 9, 16, 1}})
    for (const int threads : {1, 2, 7}) {
      const Workers workers(threads);
      std::vector<std::int32_t> done(s.groups, 99);  // whatever was there before
      std::vector<std::atomic<int>> expanded(static_cast<std::size_t>(s.tokens));
      std::vector<std::atomic<int>> first(s.groups);
      std::vector<std::atomic<int>> second(s.groups * static_cast<std::size_t>(s.second));
      std::atomic<int> early{0};
      std::mutex mutex;
      std::map<std::thread::id, Piece> promised;
      std::atomic<int> broken{0};
      Schedule schedule(s.tokens, s.groups, s.first, s.second, done);
      schedule.run(workers, [&](const Piece& piece, const Piece& next) {
        {
          const std::scoped_lock lock(mutex);
          const auto before = promised.find(std::this_thread::get_id());
          if (before != promised.end() && !same(before->second, piece)) ++broken;
          promised[std::this_thread::get_id()] = next;
        }
        if (piece.stage == Stage::expand) {
          ++expanded[static_cast<std::size_t>(piece.index)];
        } else if (piece.stage == Stage::first) {
          for (const auto& e : expanded) early += e == 1 ? 0 : 1;
          ++first[piece.group];
        } else {
          early += first[piece.group] == s.first ? 0 : 1;
          ++second[piece.group * static_cast<std::size_t>(s.second) + static_cast<std::size_t>(piece.index)];
        }
      });
      EXPECT_EQ(early, 0);
      // A pool may run two of its tasks on one thread, one after the other; the second starts anew.
      EXPECT_LE(broken, threads - 1);
      for (const auto& e : expanded) EXPECT_EQ(e, 1);
      for (const auto& f : first) EXPECT_EQ(f, s.first);
      for (const auto& x : second) EXPECT_EQ(x, 1);
    }
}

// GEMM2 of the first group does not wait for GEMM1 of the last: here that one only ends once it has been
// seen. (Two tiles: one of them may have been promised to the very thread that waits.)
TEST(Schedule, HasNoBarrierBetweenTheGemms) {
  const Workers workers(2);
  if (workers.size() < 2) GTEST_SKIP() << "one thread runs pieces in order";
  std::vector<std::int32_t> done(2);
  std::atomic<bool> second_ran{false};
  std::atomic<bool> seen{false};
  Schedule schedule(1, 2, 1, 2, done);
  schedule.run(workers, [&](const Piece& piece, const Piece&) {
    if (piece.stage == Stage::first && piece.group == 1) {
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!second_ran && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      seen = second_ran.load();
    }
    if (piece.stage == Stage::second && piece.group == 0) second_ran = true;
  });
  EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace kerf::op::cpu
