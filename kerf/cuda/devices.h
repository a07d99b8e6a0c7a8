// The devices of this host, and memory that processes on it share: a process exports a block that it has
// allocated, others open it. In a build without the CUDA part everything here throws library()'s reason.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "kerf/cuda/library.h"

#pragma GCC visibility push(default)
namespace kerf::cuda {

// How many devices this process sees. Error{device} where there is no driver.
int device_count();
// The current device of this thread: each thread begins with device 0.
int current_device();
void use_device(int device);
// Of the current device, by its place on the bus: the same in every process of this host.
std::string device_id();

// Lets the current device reach `peer`'s memory. Error{device} where it cannot.
void enable_peer(int peer);

// A block's name for other processes of this host. `block`: the beginning of what DeviceMemory handed out.
using IpcName = std::array<std::byte, 64>;
IpcName export_block(const std::byte* block);

// Another process's block, mapped for the current device as long as this lives. The other process keeps it.
class ImportedBlock {
 public:
  ImportedBlock() = default;
  // Maps it. Error{device} where it cannot be.
  explicit ImportedBlock(const IpcName& name);
  // Takes the block over.
  ImportedBlock(ImportedBlock&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  ImportedBlock& operator=(ImportedBlock&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ImportedBlock(const ImportedBlock&) = delete;
  ImportedBlock& operator=(const ImportedBlock&) = delete;
  ~ImportedBlock();

  // Its beginning, on the device; null where nothing is mapped.
  [[nodiscard]] std::byte* data() const noexcept { return data_; }

 private:
  std::byte* data_ = nullptr;
};

}  // namespace kerf::cuda
#pragma GCC visibility pop
