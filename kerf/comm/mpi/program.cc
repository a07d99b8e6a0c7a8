// The MPI program that this process is part of: its start, what its ranks tell each other at its end.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/comm/internal/ended.h"
#include "kerf/comm/internal/host.h"
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

class Processes final : public Program {
 public:
  explicit Processes(const MpiOptions& options) : process_(options.timeout) {
    if (process_.size() > most_mpi_ranks)
      fail(ErrorKind::unsupported, "an MPI group of {} ranks, at most {}", process_.size(), most_mpi_ranks);
    std::vector<int> all(static_cast<std::size_t>(process_.size()));
    std::iota(all.begin(), all.end(), 0);
    group_ = mpi::make_group(process_, std::move(all), 0);
  }

  [[nodiscard]] Group& group() override { return *group_; }

  [[nodiscard]] MpiHost host() override {
    std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
    int length = 0;
    check(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name");
    return internal::host_of(*group_, {name.data(), static_cast<std::size_t>(length)});
  }

  [[nodiscard]] Verdict settle(const Verdict& mine, bool group_failed) noexcept override {
    Verdict cause = mine;
    const Verdict failed = attempt([&] {
      constexpr std::chrono::milliseconds longest{4'000};
      process_.leave(mine, group_failed);
      const auto wait = mine ? std::min(process_.timeout(), longest) : process_.timeout();
      (void)process_.all_left(Clock::now() + wait);
      std::vector<internal::Ended> ends(static_cast<std::size_t>(process_.size()));
      std::vector<int> missing;
      for (int r = 0; r < process_.size(); ++r) {
        if (const Left* left = process_.left(r))
          ends[static_cast<std::size_t>(r)] = *left;
        else if (r != process_.rank())
          missing.push_back(r);
      }
      ends[static_cast<std::size_t>(process_.rank())] = {mine, group_failed};
      cause = internal::settled_cause(ends, process_.rank(), missing, wait);
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
  return std::make_unique<Processes>(options);
}

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) return {};
  std::string out(text.data(), static_cast<std::size_t>(length));
  return out.substr(0, out.find_first_of(",\n"));
}

}  // namespace kerf::comm
