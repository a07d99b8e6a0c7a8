// The experts of one layer that one rank holds, in the converted layout. One type serves stock experts (E /
// ep whole experts, width I) and sliced ones (all E experts, width I'): to the op they are alike.
//
//   NVFP4: w13     U8      [n, 2I, H/2]    rows interleaved and shuffled, two codes a byte along K
//          w13_sf  F8_E4M3 [n, 2I, H/16]   same rows, 128x4 interleaved
//          w2      U8      [n, H, I/2]     rows shuffled
//          w2_sf   F8_E4M3 [n, H, I/16]    same rows, 128x4 interleaved
//          g1_alphas, g1_scale_c, g2_alphas F32 [n]; a1_gscale, a2_gscale F32 [1]
//   BF16:  w13 BF16 [n, H/64, 2I, 64], w2 BF16 [n, I/64, H, 64]: shuffled rows, block-major in K
//
// It is the layout of trtllm-gen's fused MoE kernels (rows.h).
#pragma once

#include <array>
#include <cstdint>

#include "kerf/base/error.h"
#include "kerf/tensor/storage.h"
#include "kerf/tensor/view.h"

#pragma GCC visibility push(default)
namespace kerf::layout {

// n experts of input/output width H and intermediate width I (a slice's own width).
struct ExpertsShape {
  std::int64_t experts = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;

  friend bool operator==(const ExpertsShape&, const ExpertsShape&) = default;
};

// NVFP4 experts that somebody else owns: kerf's own Nvfp4Experts, or an engine's resident tensors.
// The scalars, W4A4: g1_alphas = in13 * ws2_gate, g1_scale_c = in13 * ws2_up / in2, g2_alphas = in2 *
// ws2_down, a1_gscale = 1 / in13, a2_gscale = 1 / in2 (in13, in2: maxima of the layer's input scales, ALL
// experts counted; ws2_*: an expert's weight_scale_2). W4A16: ws2_gate, ws2_up, ws2_down, 1, 1.
struct Nvfp4View {
  tensor::TensorView w13, w13_sf, w2, w2_sf;
  tensor::TensorView g1_alphas, g1_scale_c, g2_alphas;
  tensor::TensorView a1_gscale, a2_gscale;
  std::int64_t first_expert = 0;  // global id of the first expert held here
};

// BF16 experts: w13 [n, H/64, 2I, 64], w2 [n, I/64, H, 64].
struct Bf16View {
  tensor::TensorView w13, w2;
  std::int64_t first_expert = 0;
};

// The shape that w13 implies. Error{unsupported} where w13 does not have the right number of dimensions
// (BF16: or a last one that is not 64), is empty, or is above 2^56 elements.
ExpertsShape shape_of(const Nvfp4View& view);
ExpertsShape shape_of(const Bf16View& view);

// Nothing where all nine (two) tensors have the dtype, shape and size that w13 implies and H, I suit the
// layout (H % 128, I % 64 for NVFP4; H % 64, I % 64 for BF16) and first_expert >= 0; otherwise an unsupported
// reason with the tensor's name, what was got and what is expected: w13's alone where that is at fault, else
// all others' that are.
Verdict malformed(const Nvfp4View& view);
Verdict malformed(const Bf16View& view);

// The tensors of matrices and block scales, in their order in memory and in files: what each is called, and
// what it is for such experts, which are taken to suit the layout.
struct WeightTensor {
  const char* name;
  tensor::Dtype dtype;
  tensor::Shape shape;
};
std::array<WeightTensor, 4> nvfp4_weights(const ExpertsShape& shape);  // w13, w13_sf, w2, w2_sf
std::array<WeightTensor, 2> bf16_weights(const ExpertsShape& shape);   // w13, w2

// Owned experts. Allocated for a shape, contents undefined until written. The memories must outlive them.
// Constructors: the memory's errors (Error{memory}); Error{unsupported} for a shape that does not suit the
// layout, fewer than 1 or more than 2^30 experts, and first < 0.
struct Nvfp4Experts {
  // In one memory, from expert `first` on.
  Nvfp4Experts(tensor::Memory& memory, const ExpertsShape& wanted, std::int64_t first)
      : Nvfp4Experts(memory, memory, wanted, first) {}
  // Matrices and block scales in one memory (a device's, say), the five tensors of scalars in another.
  Nvfp4Experts(tensor::Memory& weights, tensor::Memory& scalars, const ExpertsShape& wanted,
               std::int64_t first);

  // The tensors, which stay where they are.
  [[nodiscard]] Nvfp4View view() const;
  // Bytes of the four weight tensors and the five of scalars.
  [[nodiscard]] std::int64_t bytes() const;

  ExpertsShape shape;
  std::int64_t first_expert;
  tensor::Tensor w13, w13_sf, w2, w2_sf;
  tensor::Tensor g1_alphas, g1_scale_c, g2_alphas, a1_gscale, a2_gscale;
};

// The same of BF16 experts: w13, w2. The same errors.
struct Bf16Experts {
  // From expert `first_expert` on.
  Bf16Experts(tensor::Memory& memory, const ExpertsShape& shape, std::int64_t first_expert);

  // The tensors, and the bytes of both.
  [[nodiscard]] Bf16View view() const;
  [[nodiscard]] std::int64_t bytes() const;

  ExpertsShape shape;
  std::int64_t first_expert;
  tensor::Tensor w13, w2;
};

}  // namespace kerf::layout
#pragma GCC visibility pop
