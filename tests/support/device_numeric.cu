#include "tests/support/device_numeric.h"

#include "kerf/cuda/check.h"
#include "kerf/cuda/device.h"

namespace kerf::test {
namespace {

__global__ void evaluate_all(Numeric function, std::size_t n, const float* x, const float* y,
                             std::uint32_t* out) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) out[i] = evaluate(function, x[i], y[i]);
}

}  // namespace

std::vector<std::uint32_t> evaluate_on_device(Numeric function, std::span<const float> x,
                                              std::span<const float> y) {
  cuda::DeviceMemory memory;
  const tensor::Tensor buffer(memory, tensor::Dtype::u8, {static_cast<std::int64_t>(3 * x.size_bytes())});
  auto* const device = reinterpret_cast<float*>(buffer.bytes().data());
  cuda::copy(device, x.data(), x.size_bytes());
  cuda::copy(device + x.size(), y.data(), y.size_bytes());
  auto* const results = reinterpret_cast<std::uint32_t*>(device + 2 * x.size());
  evaluate_all<<<static_cast<unsigned>((x.size() + 255) / 256), 256>>>(function, x.size(), device,
                                                                       device + x.size(), results);
  cuda::check_launch("evaluating");
  std::vector<std::uint32_t> out(x.size());
  cuda::copy(out.data(), results, x.size_bytes());
  return out;
}

}  // namespace kerf::test
