// Launches of kernels that follow one another in a stream and may overlap at their ends: a kernel's blocks
// may begin while the one before still runs, and wait for it where they first touch memory ("programmatic
// dependent launch"). For .cu files.
#pragma once

#include <cuda_runtime.h>

#include <string_view>
#include <utility>

#include "kerf/cuda/check.h"
#include "kerf/cuda/device.h"

namespace kerf::cuda {

// The kernel behind this one may begin once all blocks have come here. It counts on nothing but a place to
// run: what it reads it waits for. So every kernel that is launched by launch() calls both, in this order,
// before it reads or writes device memory that another kernel writes or reads; then the kernels before the
// one before have ended too.
__device__ inline void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void begin_overlapped() {
  let_next_begin();
  wait_for_previous();
}

// Loads kernels onto the current device. Otherwise a kernel is loaded when it is first launched, which may
// wait for everything that runs there: for a kernel, too, that waits for what stands behind the one to be
// loaded.
template <typename... Kernels>
void load(Kernels*... kernels) {
  cudaFuncAttributes attributes{};
  (check(cudaFuncGetAttributes(&attributes, kernels), "loading a kernel"), ...);
}

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared = 0;  // bytes
  unsigned cluster = 1;    // blocks, along x
};

// Error{device} with the kernel's name in words.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, StreamHandle stream,
            std::string_view what, Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = shape.cluster;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = shape.cluster > 1 ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), what);
}

}  // namespace kerf::cuda
