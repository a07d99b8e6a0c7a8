// The devices of this host, and memory that processes on it share: a process exports a block that it has
// allocated, others open it. Everything here throws Error{device}, with CUDA's words, where a device fails;
// in a build without the CUDA part always, with library()'s reason.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "kerf/cuda/library.h"

#pragma GCC visibility push(default)
namespace kerf::cuda {

// How many devices this process sees, at least 1. Error{device} where there is no driver or no device.
int device_count();
// The current device of this thread, by number: each thread begins with device 0. use_device(): Error{device}
// for one that is not there.
int current_device();
void use_device(int device);
// Of the current device, by its place on the bus ("0000:3B:00.0"): the same in every process of this host.
std::string device_id();

// Lets the current device reach `peer`'s memory; nothing to do for itself, or a second time. Error{device}
// where it cannot.
void enable_peer(int peer);

// A block's name (CUDA's IPC handle) for other processes of this host. `block`: the beginning of what
// DeviceMemory handed out.
using IpcName = std::array<std::byte, 64>;
IpcName export_block(const std::byte* block);

// Another process's block, mapped for the current device as long as this lives. The other process keeps it at
// least as long.
class ImportedBlock {
 public:
  ImportedBlock() = default;
  // Maps it. Error{device} where it cannot be, as in the process that named it.
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
