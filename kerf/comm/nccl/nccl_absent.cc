// The answer of a build without the CUDA part.
#include "kerf/comm/nccl.h"

namespace kerf::comm {

Verdict nccl_absent(const std::string& /*library*/) {
  return Reason{
      ErrorKind::unsupported,
      "not built: configure with -DKERF_CUDA=ON (it needs nvcc, CUDA 13; NCCL's library only where it "
      "runs)"};
}

std::string nccl_library(const std::string& /*library*/) { return {}; }

std::unique_ptr<Group> make_nccl_group(Group& /*host*/, const NcclOptions& options) {
  require(nccl_absent(options.library));
  return nullptr;
}

}  // namespace kerf::comm
