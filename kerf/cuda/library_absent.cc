// The answer of a build without the CUDA part.
#include "kerf/cuda/library.h"

namespace kerf::cuda {

Verdict library() {
  return Reason{ErrorKind::device,
                "not built: configure with -DKERF_CUDA=ON (this version has no CUDA backend yet)"};
}

}  // namespace kerf::cuda
