#include "kerf/cuda/absent.h"
#include "kerf/tools/tune.h"

namespace kerf::tools {

TuneResult device_tune(const TuneRequest& /*request*/, const decode::Rank& /*rank*/) { cuda::absent(); }

}  // namespace kerf::tools
