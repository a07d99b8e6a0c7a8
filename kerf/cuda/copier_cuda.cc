#include "kerf/cuda/copier.h"

#include "kerf/cuda/check.h"
#include "kerf/cuda/device.h"

namespace kerf::cuda {

namespace {

class DeviceCopier final : public tensor::Copier {
 public:
  void pack(const tensor::StridedBytes& from, std::byte* to) const override {
    if (from.packed_bytes() == 0) return;
    if (!on_device(from.base) && !on_device(to)) return tensor::pack(from, to);
    // Ranks are threads, and each waits for its own copies alone.
    const auto run = static_cast<std::size_t>(from.run_bytes);
    for (std::int64_t p = 0; p < from.planes; ++p)
      check(cudaMemcpy2DAsync(to + p * from.runs * from.run_bytes, run, from.base + p * from.plane_stride,
                              static_cast<std::size_t>(from.run_stride), run,
                              static_cast<std::size_t>(from.runs), cudaMemcpyDefault, cudaStreamPerThread),
            "copying between ranks");
    check(cudaStreamSynchronize(cudaStreamPerThread), "copying between ranks");
  }
};

}  // namespace

const tensor::Copier& copier() {
  static const DeviceCopier all;
  return all;
}

}  // namespace kerf::cuda
