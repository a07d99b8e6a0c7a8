// Experts as Python objects with the nine (two) tensors as attributes, and as the library's views of them.
#pragma once

#include <variant>
#include <vector>

#include "kerf/kerf.h"
#include "src/arrays.h"

namespace kerf::python {

// The views, and what keeps their memory.
struct HeldNvfp4 {
  layout::Nvfp4View view;
  std::vector<Argument> held;
};
struct HeldBf16 {
  layout::Bf16View view;
  std::vector<Argument> held;
};

// Memory for experts that are made of others: the matrices and block scales go where those of the others lie,
// the scalars to the host.
class ExpertsMemory {
 public:
  // `device`: a CUDA device's number, or host_memory.
  explicit ExpertsMemory(int device) : device_(device) {}
  [[nodiscard]] tensor::Memory& weights() {
    return device_ == host_memory ? static_cast<tensor::Memory&>(host_) : on_device_;
  }
  [[nodiscard]] tensor::Memory& scalars() { return host_; }
  [[nodiscard]] int device() const { return device_; }

 private:
  int device_;
  tensor::HostMemory host_;
  cuda::DeviceMemory on_device_;
};

// Where the held matrices and block scales lie, all of them: a CUDA device's number, the current one, or
// host_memory. Error{usage} for others.
int device_of(const HeldNvfp4& experts);

// Of any object with w13, w13_sf, w2, w2_sf, g1_alphas, g1_scale_c, g2_alphas, a1_gscale, a2_gscale and
// first_expert. Error{usage} for what is no array in one piece; dtypes and shapes are layout::malformed()'s
// matter.
HeldNvfp4 held_nvfp4(nb::handle experts);
// With w13, w2 and first_expert.
HeldBf16 held_bf16(nb::handle experts);

// Owned experts as a dict of Arrays and first_expert.
nb::dict as_dict(std::shared_ptr<ExpertsMemory> memory, layout::Nvfp4Experts experts);
nb::dict as_dict(std::shared_ptr<ExpertsMemory> memory, layout::Bf16Experts experts);

// "nvfp4" or "bf16"; Error{usage} otherwise.
op::Input input_named(const std::string& act);

}  // namespace kerf::python
