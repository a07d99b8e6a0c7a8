// What mpirun is started with, wherever a test starts it.
#pragma once

#include <string>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace kerf::test {

// Root may run it, and ranks share cores. (Names that Open MPI reads, and other libraries do not mind.)
inline Words mpi_environment() {
  Words out = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
               "OMPI_MCA_rmaps_base_oversubscribe=1"};
#if defined(__SANITIZE_ADDRESS__)
  // What the MPI library leaves behind is not kerf's. Whose a block is stands far up its stack, behind
  // plug-ins that are unloaded by then and have no frame pointers.
  out.emplace_back("ASAN_OPTIONS=fast_unwind_on_malloc=0");
  out.push_back("LSAN_OPTIONS=print_suppressions=0:suppressions=" + std::string(source_folder) +
                "/tests/support/lsan.supp");
#endif
  return out;
}

}  // namespace kerf::test
