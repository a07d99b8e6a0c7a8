#include "kerf/comm/local.h"

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/comm/internal/meeting.h"
#include "kerf/comm/internal/reduce.h"

namespace kerf::comm {

namespace {

using internal::Collective;
using internal::Meeting;
using internal::Post;

const std::uint16_t* as_bf16(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint16_t*>(bytes.data());
}

// Every meeting of a process's ranks: that of all of them, and those of the parts they split into. A rank
// that leaves, leaves all it belongs to.
class World {
 public:
  World(int ranks, const LocalOptions& options)
      : copier_(*options.copier), all_(open({}, ranks, options.timeout)) {}

  [[nodiscard]] const tensor::Copier& copier() const { return copier_; }

  [[nodiscard]] Meeting& all() { return all_; }

  // A meeting of the ranks with these numbers (of all ranks, ascending).
  Meeting& open(std::vector<int> members, std::chrono::milliseconds timeout) {
    const std::lock_guard lock(lock_);
    return *meetings_.emplace_back(std::make_unique<Meeting>(std::move(members), timeout));
  }

  void leave(int rank, std::string_view reason) noexcept {
    const std::lock_guard lock(lock_);
    for (const auto& meeting : meetings_) {
      const auto names = meeting->names();
      const auto at = std::find(names.begin(), names.end(), rank);
      if (at != names.end()) meeting->leave(static_cast<int>(at - names.begin()), reason);
    }
  }

 private:
  Meeting& open(std::vector<int> members, int ranks, std::chrono::milliseconds timeout) {
    for (int r = 0; r < ranks; ++r) members.push_back(r);
    return open(std::move(members), timeout);
  }

  const tensor::Copier& copier_;
  std::mutex lock_;
  std::vector<std::unique_ptr<Meeting>> meetings_;
  Meeting& all_;
};

// A collective is: meet (all posts are there and fit), read the peers' memory, part (nobody reads any more).
class LocalGroup final : public Group {
 public:
  LocalGroup(World& world, Meeting& meeting, int rank)
      : world_(world), meeting_(meeting), rank_(rank), terms_(static_cast<std::size_t>(meeting.ranks())) {}

  [[nodiscard]] std::string_view name() const override { return "local"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return meeting_.ranks(); }
  [[nodiscard]] bool ordered() const override { return true; }
  [[nodiscard]] int number(int rank) const override {
    return meeting_.names()[static_cast<std::size_t>(rank)];
  }

  void barrier(std::string_view what) override { meeting_.meet(rank_, {.what = what}); }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) override {
    meeting_.meet(rank_, {.collective = Collective::all_gather, .what = what, .mine = mine, .out = all});
    for_each_peer([&](std::size_t s) {
      std::byte* to = all.data() + s * mine.size();
      if (const auto from = meeting_.posts()[s].mine; !from.empty() && from.data() != to)
        world_.copier().copy(from, to);
    });
    meeting_.part();
  }

  void all_to_all(std::span<const tensor::StridedBytes> send, std::span<const std::span<std::byte>> received,
                  std::string_view what) override {
    meeting_.meet(rank_,
                  {.collective = Collective::all_to_all, .what = what, .send = send, .received = received});
    // Straight from the sender's strided block to its final place.
    for_each_peer([&](std::size_t s) {
      if (!received[s].empty()) world_.copier().pack(meeting_.posts()[s].send[me()], received[s].data());
    });
    meeting_.part();
  }

  // Every rank sums its own part once and writes it to all: each value is read once a rank, not ranks times.
  void all_reduce_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum,
                      std::string_view what) override {
    meeting_.meet(rank_, {.collective = Collective::all_reduce,
                          .what = what,
                          .mine = std::as_bytes(mine),
                          .out = std::as_writable_bytes(sum)});
    const std::size_t ranks = terms_.size();
    const std::size_t first = mine.size() * me() / ranks;
    const std::size_t end = mine.size() * (me() + 1) / ranks;
    reduce(first, end, [&](std::size_t at, std::span<const std::uint16_t> run) {
      for (const Post& post : meeting_.posts())
        internal::copy_host(std::as_bytes(run), post.out.data() + 2 * at);
    });
    meeting_.part();
  }

  void reduce_scatter_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> part,
                          std::string_view what) override {
    meeting_.meet(rank_, {.collective = Collective::reduce_scatter,
                          .what = what,
                          .mine = std::as_bytes(mine),
                          .out = std::as_writable_bytes(part)});
    const std::size_t first = part.size() * me();
    reduce(first, first + part.size(), [&](std::size_t at, std::span<const std::uint16_t> run) {
      std::copy(run.begin(), run.end(), part.begin() + static_cast<std::ptrdiff_t>(at - first));
    });
    meeting_.part();
  }

  [[nodiscard]] bool shares_memory() const override { return true; }

  // An exception waits until the peers are done: they may be reading what unwinding takes away.
  void lend(std::span<const std::byte> mine, FunctionRef<void(Lent)> work, std::string_view what) override {
    meeting_.meet(rank_, {.collective = Collective::lend, .what = what, .mine = mine});
    std::exception_ptr thrown;
    try {
      work([&](int rank) { return meeting_.posts()[static_cast<std::size_t>(rank)].mine; });
    } catch (...) {
      thrown = std::current_exception();
    }
    meeting_.part();
    if (thrown) std::rethrow_exception(thrown);
  }

  // The lowest rank of each colour opens the part's meeting, and all learn where it is.
  [[nodiscard]] std::unique_ptr<Group> split(int colour, std::string_view what) override {
    const std::vector<int> colours = gathered(colour, what);
    std::vector<int> members;
    int rank = 0;
    for (std::size_t r = 0; r < colours.size(); ++r) {
      if (colours[r] != colour) continue;
      if (r == me()) rank = static_cast<int>(members.size());
      members.push_back(meeting_.names()[r]);
    }
    const auto first = std::find(colours.begin(), colours.end(), colour) - colours.begin();
    Meeting* part = rank == 0 ? &world_.open(std::move(members), meeting_.timeout()) : nullptr;
    part = gathered(part, what)[static_cast<std::size_t>(first)];
    return std::make_unique<LocalGroup>(world_, *part, rank);
  }

 private:
  template <typename T>
  std::vector<T> gathered(T mine, std::string_view what) {
    std::vector<T> all(terms_.size());
    all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), what);
    return all;
  }

  [[nodiscard]] std::size_t me() const { return static_cast<std::size_t>(rank_); }

  // This rank first, then the ones after it: at any moment the ranks read from different peers.
  template <typename Visit>
  void for_each_peer(Visit visit) const {
    for (std::size_t i = 0; i < terms_.size(); ++i) visit((me() + i) % terms_.size());
  }

  // Sums values [first, end) of every rank's post and hands them out run by run: give(index of the run, run).
  template <typename Give>
  void reduce(std::size_t first, std::size_t end, Give give) {
    const FpGuard guard;
    for (std::size_t r = 0; r < terms_.size(); ++r) terms_[r] = as_bf16(meeting_.posts()[r].mine);
    std::array<std::uint16_t, internal::reduce_chunk> run;
    for (std::size_t at = first; at < end; at += run.size()) {
      const auto part = std::span(run).first(std::min(run.size(), end - at));
      internal::sum_run(terms_, at, part);
      give(at, part);
    }
  }

  World& world_;
  Meeting& meeting_;
  int rank_;
  std::vector<const std::uint16_t*> terms_;  // where each rank's values lie, during a reduction
};

// How a rank's body ended.
struct Outcome {
  Verdict reason;             // nothing: it returned
  bool group_failed = false;  // it ended because of another rank
};

// Nothing that the body throws leaves the rank's thread.
Outcome run_body(Group& group, const std::function<void(Group&)>& body) noexcept {
  Outcome outcome;
  try {
    outcome.reason = attempt([&] {
      try {
        body(group);
      } catch (const GroupFailed&) {
        outcome.group_failed = true;
        throw;
      }
    });
  } catch (const std::bad_alloc&) {
    outcome.reason = Reason{ErrorKind::memory, "out of memory"};
  } catch (...) {
    outcome.reason = Reason{ErrorKind::bug, "not an error"};  // short texts: stored in place
  }
  if (outcome.reason && outcome.reason->text.empty()) outcome.reason->text = "no text given";
  return outcome;
}

// Threads are made of memory, and so is a text that says more than that there is none.
Reason no_thread(int rank, int ranks, const std::exception& error) noexcept {
  try {
    return because(ErrorKind::memory, "no thread for rank {} of {}: {}", rank, ranks, error.what());
  } catch (...) {
    return {ErrorKind::memory, "out of memory"};  // short: stored in place
  }
}

// The error to report: a rank's own before one that only says that the group failed; the lowest rank's.
Verdict root_cause(const std::vector<Outcome>& outcomes) {
  Verdict found;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.reason) continue;
    if (!outcome.group_failed) return outcome.reason;
    if (!found) found = outcome.reason;
  }
  return found;
}

}  // namespace

void run_local(int ranks, const LocalOptions& options, const std::function<void(Group&)>& body) {
  if (ranks < 1) fail(ErrorKind::usage, "a local group of {} ranks, wanted 1 or more", ranks);
  if (options.timeout < std::chrono::milliseconds{1})
    fail(ErrorKind::usage, "a local group with a timeout of {} ms, wanted 1 or more",
         options.timeout.count());
  World world(ranks, options);
  std::vector<LocalGroup> groups;
  groups.reserve(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) groups.emplace_back(world, world.all(), r);
  std::vector<Outcome> outcomes(groups.size());

  {
    std::vector<std::jthread> threads;  // joined on every way out of this block
    threads.reserve(groups.size());
    for (int r = 0; r < ranks; ++r) {
      const auto at = static_cast<std::size_t>(r);
      try {
        threads.emplace_back([&, r, at] {
          outcomes[at] = run_body(groups[at], body);
          world.leave(r, outcomes[at].reason ? std::string_view(outcomes[at].reason->text) : "");
        });
      } catch (const std::exception& error) {
        outcomes[at].reason = no_thread(r, ranks, error);
        world.leave(r, outcomes[at].reason->text);
        break;
      }
    }
  }
  require(root_cause(outcomes));
}

}  // namespace kerf::comm
