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

// Of any object with w13, w13_sf, w2, w2_sf, g1_alphas, g1_scale_c, g2_alphas, a1_gscale, a2_gscale and
// first_expert. Error{usage} for what is no array in one piece; dtypes and shapes are layout::malformed()'s
// matter.
HeldNvfp4 held_nvfp4(nb::handle experts);
// With w13, w2 and first_expert.
HeldBf16 held_bf16(nb::handle experts);

// Owned experts as a dict of Arrays and first_expert.
nb::dict as_dict(std::shared_ptr<tensor::HostMemory> memory, layout::Nvfp4Experts experts);
nb::dict as_dict(std::shared_ptr<tensor::HostMemory> memory, layout::Bf16Experts experts);

// "nvfp4" or "bf16"; Error{usage} otherwise.
op::Input input_named(const std::string& act);

}  // namespace kerf::python
