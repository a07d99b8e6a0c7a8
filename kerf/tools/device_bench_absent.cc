// Without the CUDA part there is no device to measure on.
#include "kerf/cuda/absent.h"
#include "kerf/tools/device_bench.h"

namespace kerf::tools {

Verdict device_bench_refused(const BenchRequest& /*request*/, const decode::Rank& /*rank*/) {
  return cuda::library();
}

BenchReport device_bench(const BenchRequest& /*request*/, const decode::Rank& /*rank*/) { cuda::absent(); }

std::vector<BusiestStep> busiest_rank(const BenchRequest& /*request*/, int /*ranks*/,
                                      const decode::Rank& /*rank*/) {
  cuda::absent();
}

}  // namespace kerf::tools
