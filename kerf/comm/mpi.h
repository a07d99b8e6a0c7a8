// Ranks as processes of an MPI program, on one host or several: this process is one of them. Any MPI-3
// library whose thread level is at least MPI_THREAD_FUNNELED; one thread alone, the one that called
// start_mpi(), may use the group. In builds without MPI start_mpi() throws mpi_absent()'s reason.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "kerf/base/error.h"
#include "kerf/comm/group.h"
#include "kerf/comm/program.h"

#pragma GCC visibility push(default)
namespace kerf::comm {

// The most ranks of an MPI group: every rank keeps a message's room for every other.
inline constexpr int most_mpi_ranks = 512;

// How MPI's ranks wait.
struct MpiOptions {
  std::chrono::milliseconds timeout{60'000};  // how long a collective waits for a rank, at least 1
};

// What an MPI program's process is told about its host, and what it is part of.
using MpiHost = ProgramHost;
using MpiProgram = Program;

// Starts MPI, at most once in a process. Collective over all processes of the MPI program; their group is
// "mpi", ordered, of the host's memory. Errors: unsupported (not built, more than most_mpi_ranks, no thread
// support), usage (MPI was started before, a timeout below 1 ms), peer (not all processes came, as
// GroupFailed), bug (a call into MPI failed, in MPI's words).
std::unique_ptr<MpiProgram> start_mpi(const MpiOptions& options);

// Nothing where this build has MPI; otherwise why not, unsupported.
Verdict mpi_absent();

// The library's name and version, in a line; empty where there is none.
std::string mpi_library();

}  // namespace kerf::comm
#pragma GCC visibility pop
