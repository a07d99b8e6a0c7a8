// What every test of the device begins with.
#pragma once

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "kerf/cuda/device.h"
#include "kerf/tensor/storage.h"

namespace kerf::test {

// Why there is no GPU here, which is what every command says; empty where there is one.
inline std::string why_no_gpu() {
  const Verdict why = cuda::library();
  return why ? why->text : std::string();
}

// A test of this kind is skipped, with the reason, where there is no device.
class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (const Verdict why = cuda::library()) GTEST_SKIP() << why->text;
  }
};

// Values in device memory, as a vector is in the host's.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(std::span<const T> values)
      : tensor_(memory(), tensor::Dtype::u8, {static_cast<std::int64_t>(values.size_bytes())}) {
    if (!values.empty()) cuda::copy(tensor_.bytes().data(), values.data(), values.size_bytes());
  }
  explicit OnDevice(const std::vector<T>& values) : OnDevice(std::span<const T>(values)) {}
  OnDevice(std::size_t count, T value) : OnDevice(std::vector<T>(count, value)) {}

  [[nodiscard]] T* get() const { return reinterpret_cast<T*>(tensor_.bytes().data()); }
  [[nodiscard]] std::span<T> span() const { return tensor_.as<T>(); }
  // Waits for nothing but the default stream: synchronise the stream in use first.
  [[nodiscard]] std::vector<T> host() const {
    std::vector<T> out(tensor_.bytes().size() / sizeof(T));
    if (!out.empty()) cuda::copy(out.data(), get(), out.size() * sizeof(T));
    return out;
  }

 private:
  static cuda::DeviceMemory& memory() {
    static cuda::DeviceMemory all;
    return all;
  }
  tensor::Tensor tensor_;
};

}  // namespace kerf::test
