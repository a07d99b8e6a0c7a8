// Owned memory: who hands it out (Memory, which counts), and tensors that live in it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "kerf/tensor/view.h"

#pragma GCC visibility push(default)
namespace kerf::tensor {

// Hands out blocks, and mostly counts them. One per rank; passed in, so that a test can hand in one that
// fails or counts.
class Memory {
 public:
  virtual ~Memory() = default;
  // `bytes` bytes, aligned to 64 at least, contents undefined; null for none. Error{memory} that says how
  // much was asked and, where it is counted, how much is in use.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  // Takes back what allocate() gave for as many bytes; null is nothing.
  virtual void release(std::byte* block, std::size_t bytes) noexcept = 0;
};

// Bytes in use, and the most that were since the last reset. Any thread may call it.
class Usage {
 public:
  // Counts bytes that were taken.
  void add(std::int64_t bytes) noexcept {
    const std::int64_t now = current_ += bytes;
    for (std::int64_t seen = peak_; now > seen && !peak_.compare_exchange_weak(seen, now);) {
    }
  }
  // Counts bytes that were given back.
  void remove(std::int64_t bytes) noexcept { current_ -= bytes; }
  // Bytes in use, the most that were since the last reset, and the reset.
  [[nodiscard]] std::int64_t current() const noexcept { return current_; }
  [[nodiscard]] std::int64_t peak() const noexcept { return peak_; }
  void reset_peak() noexcept { peak_ = current_.load(); }

 private:
  std::atomic<std::int64_t> current_{0};
  std::atomic<std::int64_t> peak_{0};
};

// Host memory: pages from the system for large blocks (huge pages where the kernel gives them), counted. Any
// thread may call it.
class HostMemory : public Memory {
 public:
  std::byte* allocate(std::size_t bytes) override;
  void release(std::byte* block, std::size_t bytes) noexcept override;

  // As of Usage.
  [[nodiscard]] std::int64_t current() const noexcept { return usage_.current(); }
  [[nodiscard]] std::int64_t peak() const noexcept { return usage_.peak(); }
  void reset_peak() noexcept { usage_.reset_peak(); }

 private:
  Usage usage_;
};

// A tensor that owns its bytes. Movable; the Memory must outlive it. Empty after default construction.
class Tensor {
 public:
  Tensor() = default;
  // bytes_of(dtype, shape) bytes of `memory`, contents undefined. Its errors, Error{memory} first of all;
  // Error{unsupported} for a shape whose bytes cannot be counted.
  Tensor(Memory& memory, Dtype dtype, const Shape& shape);
  ~Tensor() { reset(); }
  // Takes the bytes over.
  Tensor(Tensor&& other) noexcept { *this = std::move(other); }
  Tensor& operator=(Tensor&& other) noexcept;
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  // The tensor, its bytes, its shape; they stay this tensor's, whose moving does not move the bytes.
  [[nodiscard]] TensorView view() const { return {dtype_, shape_, {data_, size_}}; }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, size_}; }
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  // The elements as T; the caller answers for the dtype.
  template <typename T>
  [[nodiscard]] std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }

 private:
  void reset() noexcept;

  Memory* memory_ = nullptr;
  Dtype dtype_ = Dtype::u8;
  Shape shape_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace kerf::tensor
#pragma GCC visibility pop
