// A Memory that passes requests on to another and counts what goes through: how a rank's peak is known
// whatever Memory its caller handed in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kerf/tensor/storage.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// Memory that counts what it hands on.
class Meter : public tensor::Memory {
 public:
  // Takes from `below`, which must outlive it.
  explicit Meter(tensor::Memory& below) : below_(&below) {}

  // As `below`, with its errors; counted. Any thread, where `below` allows it.
  std::byte* allocate(std::size_t bytes) override {
    std::byte* block = below_->allocate(bytes);
    usage_.add(static_cast<std::int64_t>(bytes));
    return block;
  }
  void release(std::byte* block, std::size_t bytes) noexcept override {
    below_->release(block, bytes);
    if (block != nullptr) usage_.remove(static_cast<std::int64_t>(bytes));
  }

  // Bytes in use, the most that were since the last reset, and the reset.
  [[nodiscard]] std::int64_t current() const noexcept { return usage_.current(); }
  [[nodiscard]] std::int64_t peak() const noexcept { return usage_.peak(); }
  void reset_peak() noexcept { usage_.reset_peak(); }

 private:
  tensor::Memory* below_;
  tensor::Usage usage_;
};

}  // namespace kerf::decode
#pragma GCC visibility pop
