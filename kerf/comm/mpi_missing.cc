// What answers in builds without MPI.
#include "kerf/comm/mpi.h"

namespace kerf::comm {

Verdict mpi_absent() {
  return Reason{ErrorKind::unsupported, "not built: configure with -DKERF_MPI=ON (needs an MPI-3 library)"};
}

std::unique_ptr<MpiProgram> start_mpi(const MpiOptions& /*options*/) {
  require(mpi_absent());
  return nullptr;
}

std::string mpi_library() { return {}; }

}  // namespace kerf::comm
