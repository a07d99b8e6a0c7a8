#include "kerf/cuda/device.h"

#include <new>

#include "kerf/base/format.h"
#include "kerf/cuda/check.h"

namespace kerf::cuda {

void check(cudaError_t result, std::string_view what, std::source_location where) {
  if (result == cudaSuccess) return;
  fail(result == cudaErrorMemoryAllocation ? ErrorKind::memory : ErrorKind::device, "{}: {} ({}), at {}:{}",
       what, cudaGetErrorString(result), cudaGetErrorName(result), where.file_name(), where.line());
}

bool built() { return true; }

Verdict library() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaErrorInsufficientDriver)
    return because(ErrorKind::device, "no NVIDIA driver, or one too old for CUDA {}.{}",
                   CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  if (result != cudaSuccess)
    return because(ErrorKind::device, "no CUDA device: {}", cudaGetErrorString(result));
  if (count == 0) return because(ErrorKind::device, "no CUDA device");
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "the device's architecture");
  if (major != 9)
    return because(ErrorKind::device,
                   "device 0 is of compute capability {}.x; kerf's kernels are for 9.0 (Hopper)", major);
  return std::nullopt;
}

DeviceFacts facts() {
  require(library());
  int device = 0;
  check(cudaGetDevice(&device), "the current device");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "the device's properties");
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "the device's memory");
  return {properties.name,
          properties.major,
          properties.minor,
          properties.multiProcessorCount,
          static_cast<std::int64_t>(total),
          static_cast<std::int64_t>(free)};
}

std::byte* DeviceMemory::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  void* block = nullptr;
  if (const cudaError_t result = cudaMalloc(&block, bytes); result != cudaSuccess) {
    (void)cudaGetLastError();  // not sticky
    if (result != cudaErrorMemoryAllocation) check(result, "allocating device memory");
    std::size_t free = 0;
    std::size_t total = 0;
    (void)cudaMemGetInfo(&free, &total);
    fail(ErrorKind::memory, "no {} bytes of device memory: {} are in use here, {} of {} are free", bytes,
         usage_.current(), free, total);
  }
  usage_.add(static_cast<std::int64_t>(bytes));
  return static_cast<std::byte*>(block);
}

void DeviceMemory::release(std::byte* block, std::size_t bytes) noexcept {
  if (block == nullptr) return;
  (void)cudaFree(block);
  usage_.remove(static_cast<std::int64_t>(bytes));
}

std::byte* PinnedMemory::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  void* block = nullptr;
  check(cudaMallocHost(&block, bytes), fmt::format("allocating {} bytes of page-locked memory", bytes));
  return static_cast<std::byte*>(block);
}

void PinnedMemory::release(std::byte* block, std::size_t /*bytes*/) noexcept {
  if (block != nullptr) (void)cudaFreeHost(block);
}

Stream::Stream() {
  cudaStream_t made = nullptr;
  check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "making a stream");
  handle_.reset(made);
}
void Stream::Free::operator()(CUstream_st* stream) const noexcept { (void)cudaStreamDestroy(stream); }
void Stream::synchronize() const { check(cudaStreamSynchronize(handle()), "waiting for the device"); }

Event::Event() {
  cudaEvent_t made = nullptr;
  check(cudaEventCreate(&made), "making an event");
  handle_.reset(made);
}
void Event::Free::operator()(CUevent_st* event) const noexcept { (void)cudaEventDestroy(event); }
void Event::record(StreamHandle stream) const {
  check(cudaEventRecord(handle_.get(), stream), "recording an event");
}
void Event::make_wait(StreamHandle stream) const {
  check(cudaStreamWaitEvent(stream, handle_.get(), 0), "waiting for an event");
}
void Event::synchronize() const { check(cudaEventSynchronize(handle_.get()), "waiting for the device"); }
double Event::us_since(const Event& earlier) const {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, earlier.handle_.get(), handle_.get()), "timing events");
  return static_cast<double>(ms) * 1e3;
}

void Graph::begin(StreamHandle stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
}
void Graph::abandon(StreamHandle stream) noexcept {
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(stream, &graph);
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  (void)cudaGetLastError();
}
Graph Graph::end(StreamHandle stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "ending a capture");
  cudaGraphExec_t made = nullptr;
  const cudaError_t result = cudaGraphInstantiate(&made, graph, 0);
  (void)cudaGraphDestroy(graph);
  check(result, "instantiating a graph");
  Graph out;
  out.handle_.reset(made);
  return out;
}
void Graph::Free::operator()(CUgraphExec_st* graph) const noexcept { (void)cudaGraphExecDestroy(graph); }
void Graph::launch(StreamHandle stream) const {
  check(cudaGraphLaunch(handle_.get(), stream), "launching a graph");
}

bool on_device(const void* pointer) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

void copy(void* to, const void* from, std::size_t bytes, StreamHandle stream) {
  if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copying");
}
void zero(void* at, std::size_t bytes, StreamHandle stream) {
  if (bytes > 0) check(cudaMemsetAsync(at, 0, bytes, stream), "zeroing");
}
void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "copying");
  // It returns early where the bytes come from memory that is not page-locked, or stay on the device; and our
  // streams do not wait for the default one.
  check(cudaStreamSynchronize(cudaStreamLegacy), "copying");
}
void zero(void* at, std::size_t bytes) {
  zero(at, bytes, cudaStreamLegacy);
  check(cudaStreamSynchronize(cudaStreamLegacy), "clearing memory");
}

}  // namespace kerf::cuda
