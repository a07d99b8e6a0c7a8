#include "kerf/cuda/library.h"
#include "kerf/tools/tune.h"

namespace kerf::tools {

TuneResult device_tune(const TuneRequest& /*request*/, const decode::Rank& /*rank*/) {
  require(cuda::library());
  fail(ErrorKind::bug, "the CUDA part is absent and says nothing");
}

}  // namespace kerf::tools
