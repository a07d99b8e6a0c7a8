// A build without the CUDA part has no sm_90a backend.
#include "kerf/op/sm90/sm90.h"

namespace kerf::op::sm90 {

std::vector<const Backend*> backends() { return {}; }

}  // namespace kerf::op::sm90
