// Between route(), which checks, and its kernels.
#pragma once

#include "kerf/op/sm90/route.h"

namespace kerf::op::sm90 {

// route(), with arguments that are known to be good.
void launch_route(const routing::MetadataShape& shape, const RouteInputs& in, const RouteOutputs& out,
                  cuda::StreamHandle stream);

}  // namespace kerf::op::sm90
