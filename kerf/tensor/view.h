// A tensor in memory: dtype, shape and contiguous bytes, row-major. Somebody else owns them, unless they were
// read for the view alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "kerf/tensor/dtype.h"

#pragma GCC visibility push(default)
namespace kerf::tensor {

// Up to 8 dimensions, in place. No dimensions: a scalar, one element.
class Shape {
 public:
  static constexpr int max_rank = 8;

  Shape() = default;
  // Of these dimensions, outermost first; more than 8: Error{unsupported}.
  Shape(std::initializer_list<std::int64_t> dims);
  explicit Shape(std::span<const std::int64_t> dims);  // more than 8: Error{unsupported}

  // How many dimensions, one of them (unchecked), all of them.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] std::int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] std::span<const std::int64_t> dims() const noexcept {
    return {dims_.data(), static_cast<std::size_t>(rank_)};
  }
  // Product of the dimensions; Error{unsupported} where it is above 2^62 or a dimension is negative.
  [[nodiscard]] std::int64_t elements() const;
  [[nodiscard]] std::string text() const;  // "[4, 256, 128]"

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, max_rank> dims_{};
  int rank_ = 0;
};

// Bytes that `shape` elements of `dtype` take, rounded up to a whole byte. Error{unsupported} where
// elements() has one or the bits are above 2^62.
std::int64_t bytes_of(Dtype dtype, const Shape& shape);

// A tensor whose bytes are elsewhere.
struct TensorView {
  Dtype dtype = Dtype::u8;
  Shape shape;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner = nullptr;  // keeps the bytes; null where somebody else does

  // The elements as T; the caller answers for the dtype. The pointer need not be aligned for T (what comes
  // from files is not): read those as bytes.
  template <typename T>
  [[nodiscard]] std::span<const T> as() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

// A block of bytes with two levels of stride, as a slice of a converted tensor is: `planes` planes, each of
// `runs` runs of `run_bytes` contiguous bytes. Packed, it is planes * runs * run_bytes bytes in that order.
struct StridedBytes {
  const std::byte* base = nullptr;
  std::int64_t planes = 0;
  std::int64_t plane_stride = 0;  // bytes
  std::int64_t runs = 0;
  std::int64_t run_stride = 0;  // bytes
  std::int64_t run_bytes = 0;

  // Bytes without those in between.
  [[nodiscard]] std::int64_t packed_bytes() const { return planes * runs * run_bytes; }
  // Whether it lies as it would packed.
  [[nodiscard]] bool packed() const {
    return (runs == 1 || run_stride == run_bytes) && (planes == 1 || plane_stride == runs * run_bytes);
  }
};

// Copies the packed form, of the host's memory, to `to` (packed_bytes() of them), which must not overlap it.
void pack(const StridedBytes& from, std::byte* to);

// Who moves bytes between ranks' memory, where that is not for memcpy. Any thread may call it, several at
// once.
class Copier {
 public:
  virtual ~Copier() = default;
  // pack(), for memory of any kind that this copier knows. Done when it returns. Error{device} where a device
  // fails.
  virtual void pack(const StridedBytes& from, std::byte* to) const = 0;
  // The same of contiguous bytes, to as many.
  void copy(std::span<const std::byte> from, std::byte* to) const {
    const auto bytes = static_cast<std::int64_t>(from.size());
    pack({from.data(), 1, bytes, 1, bytes, bytes}, to);
  }
};

// Of the host's memory alone. There for as long as the program runs.
const Copier& host_copier();

}  // namespace kerf::tensor
#pragma GCC visibility pop
