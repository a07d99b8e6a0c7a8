// Without the CUDA part there is no device to measure on.
#include "kerf/cuda/library.h"
#include "kerf/tools/device_bench.h"

namespace kerf::tools {

Verdict device_bench_refused(const BenchRequest& /*request*/, const decode::Rank& /*rank*/) {
  return cuda::library();
}

BenchReport device_bench(const BenchRequest& request, const decode::Rank& rank) {
  require(device_bench_refused(request, rank));
  fail(ErrorKind::bug, "the CUDA part is absent and says nothing");
}

std::vector<BusiestStep> busiest_rank(const BenchRequest& request, int /*ranks*/, const decode::Rank& rank) {
  require(device_bench_refused(request, rank));
  fail(ErrorKind::bug, "the CUDA part is absent and says nothing");
}

}  // namespace kerf::tools
