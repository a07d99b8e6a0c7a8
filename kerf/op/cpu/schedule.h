// The order in which a step's pieces run: one pass over all of them, with no barrier between the GEMMs.
// Threads claim pieces in order; GEMM2 of a group waits for GEMM1 of that group alone. Every claim is made
// one piece early, so that a thread knows what it will read next while it still works.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>

#include "kerf/base/threads.h"
#include "kerf/op/cpu/groups.h"

namespace kerf::op::cpu {

enum class Stage : std::uint8_t { expand, first, second };

// A piece of work: a token to expand, or a group and a 128-row tile of one of its expert's matrices.
struct Piece {
  Stage stage = Stage::expand;
  std::size_t group = 0;
  std::int64_t index = 0;  // token or tile
};

class Schedule {
 public:
  // done: a counter for each group, in the workspace.
  Schedule(std::int64_t tokens, std::size_t groups, std::int64_t first_tiles, std::int64_t second_tiles,
           std::span<std::int32_t> done)
      : tokens_(static_cast<std::size_t>(tokens)),
        first_tiles_(static_cast<std::size_t>(first_tiles)),
        second_tiles_(static_cast<std::size_t>(second_tiles)),
        first_end_(tokens_ + groups * first_tiles_),
        end_(first_end_ + groups * second_tiles_),
        done_(done) {
    for (std::size_t g = 0; g < groups; ++g) done_[g] = 0;
  }

  // Runs every piece: run(piece, next), next being this thread's next piece (the same one at the end). run
  // must not throw: others may be waiting for what it leaves undone.
  template <typename Run>
  void run(const Workers& workers, Run run_piece) {
    workers.for_each(static_cast<std::size_t>(workers.size()), [&](std::size_t, int) {
      for (std::size_t i = claim(), next = 0; i < end_; i = next) {
        next = claim();
        const Piece piece = at(i);
        wait_for_inputs(piece);
        run_piece(piece, next < end_ ? at(next) : piece);
        finish(piece);
      }
    });
  }

 private:
  std::size_t claim() { return next_.fetch_add(1, std::memory_order_relaxed); }

  [[nodiscard]] Piece at(std::size_t i) const {
    if (i < tokens_) return {Stage::expand, 0, static_cast<std::int64_t>(i)};
    const bool first = i < first_end_;
    const std::size_t tile = i - (first ? tokens_ : first_end_);
    const std::size_t tiles = first ? first_tiles_ : second_tiles_;
    return {first ? Stage::first : Stage::second, tile / tiles, static_cast<std::int64_t>(tile % tiles)};
  }

  // What a piece waits for was claimed before it, so it is done or a thread works on it: no cycle.
  void wait_for_inputs(const Piece& piece) {
    if (piece.stage == Stage::first)
      wait([&] { return expanded_.load(std::memory_order_acquire) == tokens_; });
    if (piece.stage == Stage::second)
      wait([&] {
        return std::atomic_ref(done_[piece.group]).load(std::memory_order_acquire) ==
               static_cast<std::int32_t>(first_tiles_);
      });
  }

  void finish(const Piece& piece) {
    if (piece.stage == Stage::expand) expanded_.fetch_add(1, std::memory_order_release);
    if (piece.stage == Stage::first)
      std::atomic_ref(done_[piece.group]).fetch_add(1, std::memory_order_release);
  }

  // For a moment by looking, since a piece takes microseconds; then by letting others run.
  template <typename Ready>
  static void wait(Ready ready) {
    for (int looks = 0; !ready(); ++looks)
      if (looks >= 1000) std::this_thread::yield();
  }

  std::size_t tokens_;
  std::size_t first_tiles_;
  std::size_t second_tiles_;
  std::size_t first_end_;
  std::size_t end_;
  std::span<std::int32_t> done_;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::size_t> expanded_{0};
};

}  // namespace kerf::op::cpu
