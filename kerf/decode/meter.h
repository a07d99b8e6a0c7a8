// A Memory that passes requests on to another and counts what goes through: how a rank's peak is known
// whatever Memory its caller handed in.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kerf/tensor/storage.h"

namespace kerf::decode {

class Meter : public tensor::Memory {
 public:
  explicit Meter(tensor::Memory& below) : below_(&below) {}

  std::byte* allocate(std::size_t bytes) override {
    std::byte* block = below_->allocate(bytes);
    const std::int64_t now = current_ += static_cast<std::int64_t>(bytes);
    for (std::int64_t seen = peak_; now > seen && !peak_.compare_exchange_weak(seen, now);) {
    }
    return block;
  }
  void release(std::byte* block, std::size_t bytes) noexcept override {
    below_->release(block, bytes);
    if (block != nullptr) current_ -= static_cast<std::int64_t>(bytes);
  }

  [[nodiscard]] std::int64_t current() const noexcept { return current_; }
  [[nodiscard]] std::int64_t peak() const noexcept { return peak_; }
  void reset_peak() noexcept { peak_ = current_.load(); }

 private:
  tensor::Memory* below_;
  std::atomic<std::int64_t> current_{0};
  std::atomic<std::int64_t> peak_{0};
};

}  // namespace kerf::decode
