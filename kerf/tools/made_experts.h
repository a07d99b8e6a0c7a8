// Seeded experts, directly in the converted layout and fast: what is measured where no checkpoint is given.
// An expert's bytes follow from the seed, its global id and its shape alone, wherever it is held. Codes are
// any, block scales regular (0.5 to 1.875), and the scalars keep rows that are given unit rows near unit
// size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kerf/base/function_ref.h"
#include "kerf/base/threads.h"
#include "kerf/layout/experts.h"
#include "kerf/op/op.h"
#include "kerf/tensor/storage.h"

#pragma GCC visibility push(default)
namespace kerf::tools {

namespace internal {
struct MadeWords;
}

// Where made-up experts lie, and who writes a tensor of whole 8-byte words there. All borrowed.
struct MadeIn {
  tensor::Memory& weights;
  tensor::Memory& scalars;  // host memory
  FunctionRef<void(std::span<std::byte> tensor, const internal::MadeWords& words)> fill;
};

// `input`: what the experts will be given, which decides what their scalars mean (layout/experts.h). `shape`:
// of the experts that are made, the model's from `first_expert` on; it must be convertible
// (layout/geometry.h). layout/experts.h has their tensors' dtypes and shapes. All four: Error{memory}.
layout::Nvfp4Experts made_nvfp4(const MadeIn& in, const layout::ExpertsShape& shape,
                                std::int64_t first_expert, op::Input input, std::uint64_t seed);
layout::Bf16Experts made_bf16(const MadeIn& in, const layout::ExpertsShape& shape, std::int64_t first_expert,
                              std::uint64_t seed);

// In host memory.
layout::Nvfp4Experts made_nvfp4(tensor::Memory& memory, const layout::ExpertsShape& shape,
                                std::int64_t first_expert, op::Input input, std::uint64_t seed,
                                const Workers& workers);
layout::Bf16Experts made_bf16(tensor::Memory& memory, const layout::ExpertsShape& shape,
                              std::int64_t first_expert, std::uint64_t seed, const Workers& workers);

}  // namespace kerf::tools
#pragma GCC visibility pop
