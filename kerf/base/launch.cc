#include "kerf/base/launch.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>

#include "kerf/base/format.h"

namespace kerf {

namespace {

constexpr std::array<Launcher, 4> kLaunchers = {{
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "", "", "", "PMIX_NAMESPACE", ""},
    {"PMI (MPICH, Intel MPI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "", "", "", "",
     ""},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "",
     "TORCHELASTIC_RUN_ID", ""},  // not with its number of restarts, which each host counts for itself
    // A batch script has rank 0 of as many as were asked for, and is one process: srun's steps have a number.
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "", "", "SLURM_STEP_ID", "SLURM_JOB_ID",
     "SLURM_STEP_ID"},
}};

// All of its variables, each once.
std::vector<std::string_view> variables_of(const Launcher& l) {
  std::vector<std::string_view> out;
  for (const std::string_view name :
       {l.rank, l.size, l.local_rank, l.local_size, l.host, l.port, l.started, l.job, l.job_part})
    if (!name.empty() && std::ranges::find(out, name) == out.end()) out.push_back(name);
  return out;
}

class Reader {
 public:
  Reader(const Environment& environment, const Launcher& launcher) : all_(environment), of_(launcher) {}

  // The variable's value, nothing where it is unset or empty.
  [[nodiscard]] std::optional<std::string> text(std::string_view name) const {
    if (name.empty()) return std::nullopt;
    const auto found = all_.find(name);
    if (found == all_.end() || found->second.empty()) return std::nullopt;
    return found->second;
  }

  [[nodiscard]] std::optional<int> number(std::string_view name) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int out = 0;
    const auto [end, code] = std::from_chars(value->data(), value->data() + value->size(), out);
    if (code != std::errc() || end != value->data() + value->size() || out < 0)
      fail(ErrorKind::usage, "{} is '{}' ({}), wanted a whole number from 0 to {}", name, *value, of_.name,
           std::numeric_limits<int>::max());
    return out;
  }

  // A rank and a number of ranks that it must be below.
  void fits(std::string_view rank, std::string_view size) const {
    const auto r = number(rank);
    const auto n = number(size);
    if (r && n && *r >= *n)
      fail(ErrorKind::usage, "{} is '{}' and {} is '{}' ({}): a rank is below the number of ranks", rank,
           *text(rank), size, *text(size), of_.name);
  }

  void note(std::string_view name, std::vector<std::string>& to) const {
    if (const auto value = text(name)) to.push_back(fmt::format("{}={}", name, *value));
  }

 private:
  const Environment& all_;
  const Launcher& of_;
};

}  // namespace

std::span<const Launcher> launchers() { return kLaunchers; }

Launch find_launch(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    const Reader read(environment, launcher);
    const auto rank = read.number(launcher.rank);
    // Where something else says that processes were started, a number alone is an allocation's.
    const auto size = rank || launcher.started.empty() ? read.number(launcher.size) : std::nullopt;
    if (!rank && !size) continue;
    if (!rank || !size) {
      const std::string_view have = rank ? launcher.rank : launcher.size;
      fail(ErrorKind::usage, "{} is '{}' ({}), but {} is not set: set both, or neither", have,
           *read.text(have), launcher.name, rank ? launcher.size : launcher.rank);
    }
    read.fits(launcher.rank, launcher.size);
    read.fits(launcher.local_rank, launcher.local_size);
    read.fits(launcher.local_rank, launcher.size);
    Launch out;
    out.launcher = launcher.name;
    out.rank = *rank;
    out.size = *size;
    out.local_rank = read.number(launcher.local_rank);
    out.local_size = read.number(launcher.local_size);
    out.host = read.text(launcher.host).value_or("");
    out.port = read.text(launcher.port).value_or("");
    out.started = launcher.started.empty() || read.text(launcher.started);
    if (const auto job = read.text(launcher.job))
      out.job = fmt::format("{} {} {}", launcher.name, *job, read.text(launcher.job_part).value_or(""));
    for (const std::string_view name : variables_of(launcher)) read.note(name, out.variables);
    return out;
  }
  return {};
}

Environment launch_environment() {
  Environment out;
  for (const Launcher& l : kLaunchers)
    for (const std::string_view name : variables_of(l))
      if (const char* value = std::getenv(std::string(name).c_str()))  // NOLINT(concurrency-mt-unsafe)
        out.emplace(name, value);
  return out;
}

}  // namespace kerf
