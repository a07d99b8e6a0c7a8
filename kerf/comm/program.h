// A program whose ranks are processes: this process is one of them. Who starts them, and how they find each
// other, is for mpi.h and tcp.h.
#pragma once

#include "kerf/base/error.h"
#include "kerf/comm/group.h"

#pragma GCC visibility push(default)
namespace kerf::comm {

// What the host of this process holds, for dividing it.
struct ProgramHost {
  int rank = 0;     // of this process among those of its host
  int ranks = 1;    // of this host
  int sharers = 1;  // of these, those that may run on exactly the cores of this process, itself included
};

// This process's part in the program.
class Program {
 public:
  Program() = default;
  virtual ~Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  Program(Program&&) = delete;
  Program& operator=(Program&&) = delete;

  // All processes, for data in the host's memory. As long as the program; used by the thread that started it.
  [[nodiscard]] virtual Group& group() = 0;
  // Collective over the group, once; throws what the group does.
  [[nodiscard]] virtual ProgramHost host() = 0;

  // Tells all others how this rank's work ended (`group_failed`: because of another rank) and hears the same
  // from them; afterwards the group is of no use. Nothing where all ranks ended well; otherwise the cause to
  // report, as run_local() finds it: the lowest rank's error that is not itself about another rank, led by
  // "rank R: " where it is another's alone. Waits for the others as long as a collective does, or only for
  // some seconds where this rank failed.
  [[nodiscard]] virtual Verdict settle(const Verdict& mine, bool group_failed) noexcept = 0;

  // Ends this process's part in the program, the last thing that it does: all that is to be told has been
  // written. Returns where `code` is 0 and all ranks have settled. Otherwise the process may end here, its
  // streams flushed, with `code` (peer's for 0): where all have settled once all are here, so that no
  // launcher stops one that still writes why it failed, otherwise with the whole program, where it can be
  // ended.
  virtual void end(int code) noexcept = 0;
};

}  // namespace kerf::comm
#pragma GCC visibility pop
