// The parts that the sm_90a backend binds, a file each, and what they share.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kerf/op/sm90/experts.h"

namespace kerf::op::sm90 {

// A few values that a bound layer keeps in device memory, at one address.
template <typename T>
class DeviceValues {
 public:
  explicit DeviceValues(std::span<const T> values)
      : memory_(std::make_unique<cuda::DeviceMemory>()),
        tensor_(*memory_, tensor::Dtype::u8, {static_cast<std::int64_t>(values.size_bytes())}) {
    put(values);
  }
  // As many others, to the same place.
  void put(std::span<const T> values) {
    const cuda::Stream stream;
    cuda::copy(tensor_.bytes().data(), values.data(), values.size_bytes(), stream.handle());
    stream.synchronize();
  }
  [[nodiscard]] const T* get() const { return reinterpret_cast<const T*>(tensor_.bytes().data()); }

 private:
  std::unique_ptr<cuda::DeviceMemory> memory_;  // stays where it is when this is moved
  tensor::Tensor tensor_;
};

// Weights in device memory, scalars in host memory. Tactics: tactics.h.
std::unique_ptr<DeviceExperts> bind_w4a4(const Nvfp4Args& args);
std::unique_ptr<DeviceExperts> bind_w4a16(const Nvfp4Args& args);
std::unique_ptr<DeviceExperts> bind_bf16(const Bf16Args& args);

}  // namespace kerf::op::sm90
