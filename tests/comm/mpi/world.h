// The MPI program whose rank this process is, for all tests.
#pragma once

#include "kerf/comm/mpi.h"

namespace kerf::test {

comm::MpiProgram*& program();
inline comm::Group& world() { return program()->group(); }

}  // namespace kerf::test
