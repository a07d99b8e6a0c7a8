// The answer of a build without the CUDA part.
#include "kerf/cuda/device.h"

#include "kerf/cuda/absent.h"

#include "kerf/base/format.h"

namespace kerf::cuda {

bool built() { return false; }

Verdict library() {
  return Reason{ErrorKind::device, "not built: configure with -DKERF_CUDA=ON (it needs nvcc, CUDA 13)"};
}

DeviceFacts facts() { absent(); }

std::byte* DeviceMemory::allocate(std::size_t /*bytes*/) { absent(); }
void DeviceMemory::release(std::byte* /*block*/, std::size_t /*bytes*/) noexcept {}
std::byte* PinnedMemory::allocate(std::size_t /*bytes*/) { absent(); }
void PinnedMemory::release(std::byte* /*block*/, std::size_t /*bytes*/) noexcept {}

Stream::Stream() { absent(); }
void Stream::Free::operator()(CUstream_st* /*stream*/) const noexcept {}
void Stream::synchronize() const { absent(); }

Event::Event() { absent(); }
void Event::Free::operator()(CUevent_st* /*event*/) const noexcept {}
void Event::record(StreamHandle /*stream*/) const { absent(); }
void Event::make_wait(StreamHandle /*stream*/) const { absent(); }
void Event::synchronize() const { absent(); }
double Event::us_since(const Event& /*earlier*/) const { absent(); }

void Graph::begin(StreamHandle /*stream*/) { absent(); }
void Graph::abandon(StreamHandle /*stream*/) noexcept {}
Graph Graph::end(StreamHandle /*stream*/) { absent(); }
void Graph::Free::operator()(CUgraphExec_st* /*graph*/) const noexcept {}
void Graph::launch(StreamHandle /*stream*/) const { absent(); }

bool on_device(const void* /*pointer*/) { return false; }
void copy(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/, StreamHandle /*stream*/) { absent(); }
void zero(void* /*at*/, std::size_t /*bytes*/, StreamHandle /*stream*/) { absent(); }
void zero(void* /*at*/, std::size_t /*bytes*/) { absent(); }
void copy(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) { absent(); }

}  // namespace kerf::cuda
