// Ranks as processes of an MPI program, on one host or several: this process is one of them. Any MPI-3
// library whose thread level is at least MPI_THREAD_FUNNELED; one thread alone, the one that called
// start_mpi(), may use the group. In builds without MPI start_mpi() throws mpi_absent()'s reason.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "kerf/base/error.h"
#include "kerf/comm/group.h"

namespace kerf::comm {

// The most ranks of an MPI group: every rank keeps a message's room for every other.
inline constexpr int most_mpi_ranks = 512;

struct MpiOptions {
  std::chrono::milliseconds timeout{60'000};  // how long a collective waits for a rank
};

// What the host of this process holds, for dividing it.
struct MpiHost {
  int rank = 0;     // of this process among those of its host
  int ranks = 1;    // of this host
  int sharers = 1;  // of these, those that may run on exactly the cores of this process, itself included
};

class MpiProgram {
 public:
  MpiProgram() = default;
  virtual ~MpiProgram() = default;
  MpiProgram(const MpiProgram&) = delete;
  MpiProgram& operator=(const MpiProgram&) = delete;
  MpiProgram(MpiProgram&&) = delete;
  MpiProgram& operator=(MpiProgram&&) = delete;

  // All processes: "mpi", ordered. Data move between them without being packed.
  [[nodiscard]] virtual Group& group() = 0;
  // Collective over the group, once.
  [[nodiscard]] virtual MpiHost host() = 0;

  // Tells all others how this rank's work ended (`group_failed`: because of another rank) and hears the same
  // from them; afterwards the group is of no use. The cause to report, as run_local() finds it: the lowest
  // rank's error that is not itself about another rank, led by "rank R: " where it is another's alone. Waits
  // for the others as long as a collective does, or only for some seconds where this rank failed.
  [[nodiscard]] virtual Verdict settle(const Verdict& mine, bool group_failed) noexcept = 0;

  // Ends MPI in this process, the last thing that it does: all that is to be told has been written. Returns
  // where `code` is 0 and all ranks have settled. Otherwise the process ends here, its streams flushed, with
  // `code` (peer's for 0): where all have settled once all are here, so that no launcher stops one that still
  // writes why it failed, otherwise with the whole program.
  virtual void end(int code) noexcept = 0;
};

// Starts MPI, at most once in a process. Errors: unsupported (not built, too many ranks, no thread support),
// peer (not all processes came).
std::unique_ptr<MpiProgram> start_mpi(const MpiOptions& options);

// Nothing where this build has MPI; otherwise why not.
Verdict mpi_absent();

// The library's name and version, in a line; empty where there is none.
std::string mpi_library();

}  // namespace kerf::comm
