// One NVIDIA GPU as a resource: its facts, memory, streams, events and graphs as values that free themselves.
// No CUDA header is needed to include this one. Everything that touches a device throws Error{device}, with
// CUDA's words and what was being done, where that fails; in a build without the CUDA part always, with
// library()'s reason. "The current device" is the calling thread's (use_device() of devices.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kerf/cuda/library.h"
#include "kerf/tensor/storage.h"

// The runtime's own handles; pointers to them are cudaStream_t and so on.
struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

#pragma GCC visibility push(default)
namespace kerf::cuda {

// A cudaStream_t, without CUDA's headers.
using StreamHandle = CUstream_st*;

// What a device says of itself.
struct DeviceFacts {
  std::string name;          // "NVIDIA H200"
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::int64_t memory = 0;  // bytes
  std::int64_t free = 0;    // bytes, now
};
// Of the current device. Error{device} with library()'s reason where it has one.
DeviceFacts facts();

// Memory of the device that is current where allocate() is called, counted. Blocks are aligned to 256 bytes.
// allocate(): Error{memory} says how much was asked, in use and free on the device. Any thread may call it.
class DeviceMemory final : public tensor::Memory {
 public:
  std::byte* allocate(std::size_t bytes) override;
  void release(std::byte* block, std::size_t bytes) noexcept override;
  // Bytes in use, and the most that ever were.
  [[nodiscard]] std::int64_t current() const noexcept { return usage_.current(); }
  [[nodiscard]] std::int64_t peak() const noexcept { return usage_.peak(); }

 private:
  tensor::Usage usage_;
};

// Page-locked host memory, which copies to and from the device overlap with. Not counted: Error{memory} says
// how much was asked. Any thread may call it.
class PinnedMemory final : public tensor::Memory {
 public:
  std::byte* allocate(std::size_t bytes) override;
  void release(std::byte* block, std::size_t bytes) noexcept override;
};

// A stream of its own on the current device (not ordered after the default stream). Movable.
class Stream {
 public:
  Stream();
  // For CUDA's own calls; valid as long as this is there.
  [[nodiscard]] StreamHandle handle() const noexcept { return handle_.get(); }
  // Waits for all that was enqueued. Error{device} with what failed since, also on the device.
  void synchronize() const;

 private:
  struct Free {
    void operator()(CUstream_st* stream) const noexcept;
  };
  std::unique_ptr<CUstream_st, Free> handle_;
};

// A point in a stream's work. Movable.
class Event {
 public:
  Event();
  // The point that `stream` has come to: behind all that was enqueued so far.
  void record(StreamHandle stream) const;
  // What is enqueued on `stream` from here on begins after the recorded point.
  void make_wait(StreamHandle stream) const;
  // Waits until the stream is there.
  void synchronize() const;
  // Microseconds between two recorded and finished points; Error{device} for others.
  [[nodiscard]] double us_since(const Event& earlier) const;

 private:
  struct Free {
    void operator()(CUevent_st* event) const noexcept;
  };
  std::unique_ptr<CUevent_st, Free> handle_;
};

// A captured, instantiated graph. Movable; empty after default construction.
class Graph {
 public:
  Graph() = default;
  // Captures what work() enqueues on `stream`, and on streams that it makes wait for it and joins again.
  // Nothing runs. What work throws is thrown again, and the capture given up.
  template <typename Work>
  static Graph capture(StreamHandle stream, Work work) {
    begin(stream);
    try {
      work();
    } catch (...) {
      abandon(stream);
      throw;
    }
    return end(stream);
  }
  // Enqueues all of it; not for an empty graph.
  void launch(StreamHandle stream) const;
  // Whether there is one.
  [[nodiscard]] explicit operator bool() const noexcept { return handle_ != nullptr; }

 private:
  static void begin(StreamHandle stream);
  static void abandon(StreamHandle stream) noexcept;
  static Graph end(StreamHandle stream);
  struct Free {
    void operator()(CUgraphExec_st* graph) const noexcept;
  };
  std::unique_ptr<CUgraphExec_st, Free> handle_;
};

// Whether the pointer is to device (or managed) memory. False for any other, and without the CUDA part.
bool on_device(const void* pointer);

// Copies bytes between host and device memory in any direction, in stream order. Host memory that is not
// page-locked must stay as it is until the stream has got there. zero(): so many bytes of device memory.
void copy(void* to, const void* from, std::size_t bytes, StreamHandle stream);
void zero(void* at, std::size_t bytes, StreamHandle stream);
// The same, done when it returns.
void copy(void* to, const void* from, std::size_t bytes);
void zero(void* at, std::size_t bytes);

}  // namespace kerf::cuda
#pragma GCC visibility pop
