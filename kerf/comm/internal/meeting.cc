#include "kerf/comm/internal/meeting.h"

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "kerf/base/format.h"

namespace kerf::comm::internal {

namespace {

// Keeps now + timeout inside the clock's range.
constexpr std::chrono::milliseconds kLongest = std::chrono::hours{24 * 365};

std::string ranks_text(const std::vector<char>& marked, std::span<const int> names) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < marked.size(); ++r)
    if (marked[r] != 0) ranks.push_back(names[r]);
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

// Copies as far as memory allows: a fault is declared even where its text cannot be kept.
void keep(std::string& to, std::string_view from) noexcept {
  try {
    to = from;
  } catch (const std::bad_alloc&) {
    to.clear();
  }
}

}  // namespace

Meeting::Meeting(std::vector<int> names, std::chrono::milliseconds timeout)
    : names_(std::move(names)),
      posts_(names_.size()),
      here_(posts_.size(), 0),
      late_(posts_.size(), 0),
      timeout_(std::min(timeout, kLongest)) {}

void Meeting::open_next() noexcept {
  std::fill(here_.begin(), here_.end(), char{0});
  arrived_ = 0;
  ++meeting_;
  changed_.notify_all();
}

// Ranks mostly arrive within a moment of each other. Looking on, and letting others run in between, spares
// the system's wake-ups, and above all the crowd at the lock behind them where there are more ranks than
// cores.
bool Meeting::opens_soon(std::uint64_t after) const noexcept {
  constexpr int looks = 1000;
  for (int i = 0; i < looks; ++i) {
    if (meeting_.load(std::memory_order_acquire) != after) return true;
    std::this_thread::yield();
  }
  return false;
}

void Meeting::meet(int rank, const Post& post) {
  const auto me = static_cast<std::size_t>(rank);
  std::unique_lock lock(lock_);
  if (fault_ != Fault::none) throw_fault(post.what);
  posts_[me] = post;
  here_[me] = 1;
  if (++arrived_ == ranks()) {
    if (Verdict verdict = attempt([&] { require(inconsistent(posts_, names_)); })) {
      fault_ = Fault::mismatch;
      reason_ = std::move(*verdict);
      changed_.notify_all();
      throw_fault(post.what);
    }
    open_next();
    return;
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  const std::uint64_t mine = meeting_;
  lock.unlock();
  if (opens_soon(mine)) return;
  lock.lock();
  const bool settled =
      changed_.wait_until(lock, deadline, [&] { return meeting_ != mine || fault_ != Fault::none; });
  if (meeting_ != mine) return;  // complete, whatever happened after
  if (!settled) {
    declare_late();
    keep(late_for_, post.what);
  }
  throw_fault(post.what);
}

void Meeting::part() {
  std::unique_lock lock(lock_);
  if (++arrived_ == ranks()) {
    open_next();
    return;
  }
  const std::uint64_t mine = meeting_;
  lock.unlock();
  if (opens_soon(mine)) return;
  lock.lock();
  changed_.wait(lock, [&] { return meeting_ != mine; });
}

void Meeting::leave(int rank, std::string_view reason) noexcept {
  const std::lock_guard lock(lock_);
  if (fault_ != Fault::none) return;
  fault_ = Fault::left;
  fault_rank_ = names_[static_cast<std::size_t>(rank)];
  keep(reason_.text, reason);
  changed_.notify_all();
}

void Meeting::declare_late() noexcept {
  fault_ = Fault::late;
  for (std::size_t r = 0; r < here_.size(); ++r) late_[r] = here_[r] == 0 ? 1 : 0;
  changed_.notify_all();
}

void Meeting::throw_fault(std::string_view what) const {
  switch (fault_) {
    case Fault::left:
      throw GroupFailed(
          ErrorKind::peer,
          reason_.text.empty()
              ? fmt::format("rank {} returned while '{}' was awaited", fault_rank_, what)
              : fmt::format("rank {} left while '{}' was awaited: {}", fault_rank_, what, reason_.text));
    case Fault::late:
      throw GroupFailed(ErrorKind::peer,
                        fmt::format("{} did not reach '{}' within {:g} s", ranks_text(late_, names_),
                                    late_for_, std::chrono::duration<double>(timeout_).count()));
    case Fault::mismatch:
    case Fault::none:
      break;
  }
  throw GroupFailed(reason_.kind, reason_.text);
}

}  // namespace kerf::comm::internal
