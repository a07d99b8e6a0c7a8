#include "kerf/tail/device.h"

#include <bit>

#include "kerf/cuda/launch.cuh"
#include "kerf/tail/device_norm.cuh"
#include "kerf/tail/device_rows.cuh"
#include "kerf/tail/internal/device_checks.h"
#include "kerf/tail/internal/device_load.h"

namespace kerf::tail {

namespace device {
namespace {

constexpr int plain_threads = 256;

// Without a norm: a block for each slice of 2^log vectors of a token. All of the slice's rows are loaded at
// once, a thread a vector; then it is ended. Shared memory: [K][slice] vectors.
template <Making making, int most>
__global__ void __launch_bounds__(plain_threads) end_plain(const __grid_constant__ DeviceTail tail, int log) {
  extern __shared__ __align__(16) unsigned char room[];
  __shared__ Routes routes;
  cuda::begin_overlapped();
  const std::int64_t token = tail.first + blockIdx.y;
  const int vectors = static_cast<int>(tail.hidden) / values_per_vector;
  const int slice = 1 << log;
  const int first = static_cast<int>(blockIdx.x) << log;
  const int count = min(slice, vectors - first);
  auto* const rows = reinterpret_cast<Vector*>(room);

  read_routes<making>(tail, token, routes);
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(tail.top_k) << log;
       i += static_cast<int>(blockDim.x)) {
    const int k = i >> log;
    const int v = i & (slice - 1);
    if (routes.term[k].part < 0 || v >= count) continue;
    const int at[1] = {first + v};
    Vector row[1];
    row_vectors<making, most>(tail, routes, k, at, row);
    rows[i] = row[0];
  }
  __syncthreads();
  end_quads(tail, routes, token, first * 2, count * 2, reinterpret_cast<const uint2*>(rows), slice * 2,
            [](const Term&, int, float value, int) { return value; });
}

// Blocks of a launch that keep the whole chip busy; more than these only cost.
constexpr std::int64_t enough_blocks = 1024;

template <Making making, int most>
void launch_plain(const DeviceTail& tail, cuda::StreamHandle stream) {
  const std::int64_t vectors = tail.hidden / values_per_vector;
  // As many vectors as make every thread load one; more where there are many tokens.
  std::int64_t slice =
      plain_threads / static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(tail.top_k)));
  while (slice < vectors && slice * tail.top_k < 1024 &&
         (vectors + slice - 1) / slice * tail.count > enough_blocks)
    slice *= 2;
  const dim3 grid(static_cast<unsigned>((vectors + slice - 1) / slice), static_cast<unsigned>(tail.count));
  const auto shared = static_cast<std::size_t>(tail.top_k * slice) * sizeof(Vector);
  cuda::launch(end_plain<making, most>, {grid, dim3(plain_threads), shared}, stream, "the tail's kernel",
               tail, std::countr_zero(static_cast<std::uint64_t>(slice)));
}

// Shared memory that a block can have on Hopper, less what the kernel has of its own.
constexpr std::size_t most_shared = 227 * 1024 - 8 * 1024;

struct NormShape {
  int blocks;  // of a cluster
  int groups;  // of a block
  [[nodiscard]] std::size_t shared(const DeviceTail& tail) const {
    return static_cast<std::size_t>(groups * tail.hidden + tail.top_k * tail.hidden / blocks) * 2;
  }
};

// Multiprocessors of an H100 or H200.
constexpr std::int64_t multiprocessors = 132;

// A block for each of a token's rows while that gives every multiprocessor two blocks at most; otherwise
// fewer for a token, as many as there are multiprocessors for in all, and two rows of a block at a time. With
// more tokens than multiprocessors, small blocks, several of them on each. (All of this timed, H = 4096, K
// = 8.)
NormShape norm_shape(const DeviceTail& tail) {
  const bool many = tail.count > multiprocessors;
  const auto fits = [&](NormShape shape) { return shape.shared(tail) <= most_shared; };
  const auto rows = static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(tail.top_k)));
  NormShape shape{many ? 2 : 8, 1};
  if (!many && shape.blocks * tail.count > 2 * multiprocessors)
    while (shape.blocks > 1 && shape.blocks * tail.count > multiprocessors) shape.blocks /= 2;
  while (shape.blocks > rows) shape.blocks /= 2;
  while (shape.blocks < 8 && !fits(shape)) shape.blocks *= 2;
  if (!many && tail.top_k > shape.blocks && fits({shape.blocks, 2})) shape.groups = 2;
  return shape;
}

template <Making making, int most>
void launch_norm(const DeviceTail& tail, cuda::StreamHandle stream) {
  const NormShape shape = norm_shape(tail);
  auto* const kernel = norm_and_end<making, most>;
  const std::size_t shared = shape.shared(tail);
  if (shared > 40 * 1024)
    cuda::check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "shared memory for the tail's norm");
  cuda::launch(
      kernel,
      {dim3(static_cast<unsigned>(tail.count * shape.blocks)),
       dim3(static_cast<unsigned>(norm_threads * shape.groups)), shared, static_cast<unsigned>(shape.blocks)},
      stream, "the tail's kernel with a norm", tail, std::countr_zero(static_cast<unsigned>(shape.blocks)));
}

template <Making making, int most>
void launch(const DeviceTail& tail, cuda::StreamHandle stream) {
  if (tail.norm.present)
    launch_norm<making, most>(tail, stream);
  else
    launch_plain<making, most>(tail, stream);
}

template <Making making>
void launch_sum(const DeviceTail& tail, int terms, cuda::StreamHandle stream) {
  if (terms <= 8)
    launch<making, 8>(tail, stream);
  else
    launch<making, 16>(tail, stream);
}

template <Making making, int most>
void load() {
  cuda::load(end_plain<making, most>, norm_and_end<making, most>);
}

}  // namespace
}  // namespace device

void internal::load_tails() {
  using enum device::Making;
  device::load<taken, 1>();
  device::load<bf16_sum, 8>();
  device::load<bf16_sum, 16>();
  device::load<tree_sum, 8>();
  device::load<tree_sum, 16>();
}

void device_tail(const DeviceTail& tail, cuda::StreamHandle stream) {
  if (tail.count == 0) return;
  internal::check(tail);
  switch (tail.source) {
    case RowSource::local:
    case RowSource::any:
      return device::launch<device::Making::taken, 1>(tail, stream);
    case RowSource::bf16_sum:
      return device::launch_sum<device::Making::bf16_sum>(tail, tail.parts, stream);
    case RowSource::tree_sum:
      return device::launch_sum<device::Making::tree_sum>(tail, tail.parts, stream);
    case RowSource::tree_any:
      return device::launch_sum<device::Making::tree_sum>(tail, tail.slices, stream);
  }
}

}  // namespace kerf::tail
