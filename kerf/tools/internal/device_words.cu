#include "kerf/cuda/check.h"
#include "kerf/tools/internal/device_words.h"

namespace kerf::tools::internal {

namespace {

__global__ void fill_kernel(std::uint64_t* words, std::uint64_t count, MadeWords made) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    words[i] = made[i];
}

// Weights are read once: they need not stay in the first cache.
__device__ uint4 read_once(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// Eight loads under way a thread.
__global__ void __launch_bounds__(512, 4)
    read_kernel(const uint4* data, std::uint64_t count, std::uint32_t* result) {
  constexpr int at_once = 8;
  std::uint32_t seen = 0;
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (at_once - 1) * step < count; i += at_once * step) {
    uint4 v[at_once];
#pragma unroll
    for (int j = 0; j < at_once; ++j) v[j] = read_once(data + i + j * step);
#pragma unroll
    for (int j = 0; j < at_once; ++j) seen ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < count; i += step) {
    const uint4 v = read_once(data + i);
    seen ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (seen == 0x12345678U) *result = seen;
}

}  // namespace

void fill_device(std::span<std::byte> tensor, const MadeWords& words) {
  if (tensor.empty()) return;
  fill_kernel<<<2048, 256, 0, cudaStreamPerThread>>>(reinterpret_cast<std::uint64_t*>(tensor.data()),
                                                     tensor.size() / 8, words);
  cuda::check_launch("filling a tensor");
  cuda::check(cudaStreamSynchronize(cudaStreamPerThread), "filling a tensor");
}

void read_device(std::span<const std::byte> bytes, std::uint32_t* result, cuda::StreamHandle stream) {
  if (bytes.size() < 16) return;
  read_kernel<<<1056, 512, 0, stream>>>(reinterpret_cast<const uint4*>(bytes.data()), bytes.size() / 16,
                                        result);
  cuda::check_launch("a plain read");
}

}  // namespace kerf::tools::internal
