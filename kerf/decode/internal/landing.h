// Values on their way into tensors that are in use, all of them gathered before the first one is written:
// what could fail for want of memory has not failed by then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kerf/cuda/device.h"

namespace kerf::decode::internal {

class Landing {
 public:
  // `on_device`: whether there are device copies.
  explicit Landing(bool on_device);

  // Bytes of `from` will be written to `to`: as many, both in host memory, or both in device memory.
  // Error{bug} for other sizes.
  void on_host(std::span<std::byte> to, std::span<const std::byte> from);
  void on_device(std::span<std::byte> to, std::span<const std::byte> from);
  template <typename T>
  void values(std::span<T> to, std::span<const T> from) {
    on_host(std::as_writable_bytes(to), std::as_bytes(from));
  }

  // Writes all; done when it returns. Allocates nothing. Error{device} where the device fails.
  void run() const;
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  struct Copy {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };
  void add(std::vector<Copy>& copies, std::span<std::byte> to, std::span<const std::byte> from);

  std::vector<Copy> host_, device_;
  std::optional<cuda::Stream> stream_;
  std::int64_t bytes_ = 0;
};

}  // namespace kerf::decode::internal
