// The MPI program that this process is part of: its start, what its ranks tell each other at its end.
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"
#include "kerf/comm/mpi.h"
#include "kerf/comm/mpi/datatype.h"
#include "kerf/comm/mpi/group.h"
#include "kerf/comm/mpi/process.h"

namespace kerf::comm {

namespace {

using mpi::check;
using mpi::Clock;
using mpi::Left;
using mpi::Process;

// A host's name, and the cores that a process may run on: equal bytes, equal cores.
struct Where {
  std::array<char, 256> host{};
  cpu_set_t cores{};
};

void init() {
  int before = 0;
  check(MPI_Initialized(&before), "MPI_Initialized");
  if (before != 0) fail(ErrorKind::usage, "MPI was started before in this process");
  int level = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level), "MPI_Init_thread");
  if (level < MPI_THREAD_FUNNELED)
    fail(ErrorKind::unsupported, "this MPI library knows no threads: its level is {}, wanted {} (funneled)",
         level, static_cast<int>(MPI_THREAD_FUNNELED));
}

// The lowest rank's own error before what only tells of another; of equal ones it says nothing who has it.
Verdict root_cause(const std::vector<Left>& ends, int me) {
  const auto own = std::ranges::find_if(ends, [](const Left& l) { return l.reason && !l.group_failed; });
  const auto any = std::ranges::find_if(ends, [](const Left& l) { return l.reason.has_value(); });
  const auto found = own != ends.end() ? own : any;
  if (found == ends.end()) return std::nullopt;
  const auto rank = static_cast<int>(found - ends.begin());
  const bool alone = !std::ranges::all_of(ends, [&](const Left& l) { return l.reason == found->reason; });
  if (found == own && alone && rank != me)
    return because(found->reason->kind, "rank {}: {}", rank, found->reason->text);
  return found->reason;
}

class Program final : public MpiProgram {
 public:
  explicit Program(const MpiOptions& options) : process_(options.timeout) {
    if (process_.size() > most_mpi_ranks)
      fail(ErrorKind::unsupported, "an MPI group of {} ranks, at most {}", process_.size(), most_mpi_ranks);
    std::vector<int> all(static_cast<std::size_t>(process_.size()));
    std::iota(all.begin(), all.end(), 0);
    group_ = mpi::make_group(process_, std::move(all), 0);
  }

  [[nodiscard]] Group& group() override { return *group_; }

  [[nodiscard]] MpiHost host() override {
    Where mine;
    std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
    int length = 0;
    check(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name");
    std::memcpy(mine.host.data(), name.data(),
                std::min<std::size_t>(static_cast<std::size_t>(length), mine.host.size() - 1));
    (void)sched_getaffinity(0, sizeof(mine.cores), &mine.cores);
    const std::vector<Where> all = gathered(*group_, std::span<const Where>(&mine, 1), "the ranks' hosts");
    MpiHost out{0, 0, 0};
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r].host != mine.host) continue;
      if (static_cast<int>(r) < process_.rank()) ++out.rank;
      ++out.ranks;
      if (CPU_EQUAL(&all[r].cores, &mine.cores)) ++out.sharers;
    }
    return out;
  }

  [[nodiscard]] Verdict settle(const Verdict& mine, bool group_failed) noexcept override {
    Verdict cause = mine;
    const Verdict failed = attempt([&] {
      constexpr std::chrono::milliseconds longest{4'000};
      process_.leave(mine, group_failed);
      const auto wait = mine ? std::min(process_.timeout(), longest) : process_.timeout();
      const bool all = process_.all_left(Clock::now() + wait);
      std::vector<Left> ends(static_cast<std::size_t>(process_.size()));
      std::vector<int> missing;
      for (int r = 0; r < process_.size(); ++r) {
        if (const Left* left = process_.left(r))
          ends[static_cast<std::size_t>(r)] = *left;
        else if (r != process_.rank())
          missing.push_back(r);
      }
      ends[static_cast<std::size_t>(process_.rank())].reason = mine;
      ends[static_cast<std::size_t>(process_.rank())].group_failed = group_failed;
      cause = root_cause(ends, process_.rank());
      const std::string who =
          fmt::format("{} {}", missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "));
      const bool own_reason =
          std::ranges::any_of(ends, [](const Left& l) { return l.reason && !l.group_failed; });
      if (!all && !cause)
        cause = because(ErrorKind::peer, "{} did not reach the end within {:g} s", who,
                        std::chrono::duration<double>(wait).count());
      else if (!missing.empty() && cause && !own_reason)
        // Whoever still waited for a missing rank was late for the others, who name both.
        cause = Reason{cause->kind, fmt::format("{} did not say how it ended: {}", who, cause->text)};
    });
    if (failed && !cause) cause = failed;
    return cause;
  }

  void end(int code) noexcept override {
    if (ended_) return;
    ended_ = true;
    group_.reset();
    process_.end(code);
  }

 private:
  Process process_;
  std::unique_ptr<Group> group_;
  bool ended_ = false;
};

}  // namespace

Verdict mpi_absent() { return std::nullopt; }

std::unique_ptr<MpiProgram> start_mpi(const MpiOptions& options) {
  if (options.timeout < std::chrono::milliseconds{1})
    fail(ErrorKind::usage, "an MPI group with a timeout of {} ms, wanted 1 or more", options.timeout.count());
  init();
  return std::make_unique<Program>(options);
}

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) return {};
  std::string out(text.data(), static_cast<std::size_t>(length));
  return out.substr(0, out.find_first_of(",\n"));
}

}  // namespace kerf::comm
