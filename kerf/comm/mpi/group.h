// The group of an MPI program's processes, and its parts. A collective is: every rank tells every other what
// it brings (internal/wire.h: small data come along), all see whether that is one collective, then data go
// straight from where they lie to where they belong.
#pragma once

#include <memory>
#include <vector>

#include "kerf/comm/group.h"
#include "kerf/comm/mpi/process.h"

namespace kerf::comm::mpi {

// `members`: the ranks of the program that belong to it, ascending, this one among them; `number` is the
// group's, for tags. The process must outlive it.
std::unique_ptr<Group> make_group(Process& process, std::vector<int> members, int number);

}  // namespace kerf::comm::mpi
