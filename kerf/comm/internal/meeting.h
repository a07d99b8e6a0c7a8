// Where the ranks of a local group meet: one lock, one condition variable, one post a rank. A meeting is
// complete when every rank has posted; the last to arrive checks that all posts belong to one collective, so
// nobody touches a peer's buffer before that. The first fault (a rank that left, a rank that is late, posts
// that don't match) is final: every rank that waits then or meets later throws it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/comm/group.h"
#include "kerf/tensor/view.h"

namespace kerf::comm::internal {

// Bytes of host memory, which may be where they belong already.
inline void copy_host(std::span<const std::byte> from, std::byte* to) {
  if (!from.empty() && from.data() != to) std::memcpy(to, from.data(), from.size());
}

enum class Collective : std::uint8_t { barrier, all_gather, all_to_all, all_reduce, reduce_scatter, lend };

// What one rank brings to a collective: views of its caller's memory, valid until the collective ends.
struct Post {
  Collective collective = Collective::barrier;
  std::string_view what{};
  std::span<const std::byte> mine{};
  std::span<std::byte> out{};
  std::span<const tensor::StridedBytes> send{};  // all_to_all only, as is the next
  std::span<const std::span<std::byte>> received{};
};

// Nothing where the posts (one a rank, ranks ascending; `names`: what to call the ranks) are one collective
// with sizes that fit together.
// O(ranks^2), allocates only for a reason.
Verdict inconsistent(std::span<const Post> posts, std::span<const int> names);

// The part of it that rank `rank` sees in its own post.
Verdict inconsistent_alone(const Post& post, std::size_t rank, std::span<const int> names);

class Meeting {
 public:
  // `names`: the numbers that messages call the ranks by, one a rank.
  Meeting(std::vector<int> names, std::chrono::milliseconds timeout);

  // Waits until every rank has posted. Throws GroupFailed after a fault.
  void meet(int rank, const Post& post);

  // The second meeting of a collective whose first one succeeded. Every rank is then inside that collective,
  // copying, so it arrives for certain: no deadline, for a rank that gave up here would take its buffers
  // away from under a peer that still reads them.
  void part();

  // Rank `rank` takes part in nothing any more. `reason`: why, empty where it simply returned.
  void leave(int rank, std::string_view reason) noexcept;

  // The posts of the meeting that just succeeded, until part().
  [[nodiscard]] std::span<const Post> posts() const noexcept { return posts_; }
  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(posts_.size()); }
  // What messages call the ranks, ranks ascending.
  [[nodiscard]] std::span<const int> names() const noexcept { return names_; }
  [[nodiscard]] std::chrono::milliseconds timeout() const noexcept { return timeout_; }

 private:
  enum class Fault : std::uint8_t { none, left, late, mismatch };

  void open_next() noexcept;
  // Waits a little, without the lock, for the meeting that follows `after` completed ones.
  [[nodiscard]] bool opens_soon(std::uint64_t after) const noexcept;
  void declare_late() noexcept;
  [[noreturn]] void throw_fault(std::string_view what) const;

  std::mutex lock_;
  std::condition_variable changed_;
  std::vector<int> names_;
  std::vector<Post> posts_;
  std::vector<char> here_;  // which ranks have posted to the meeting that is open
  std::vector<char> late_;  // which had not when it was given up
  int arrived_ = 0;
  std::atomic<std::uint64_t> meeting_{0};  // counts completed meetings; read without the lock too
  std::chrono::milliseconds timeout_;

  Fault fault_ = Fault::none;
  int fault_rank_ = -1;
  Reason reason_;         // of the rank that left, or of the mismatch
  std::string late_for_;  // what the late ranks missed
};

}  // namespace kerf::comm::internal
