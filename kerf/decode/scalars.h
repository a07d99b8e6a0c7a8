// The per-expert and per-layer scalars of NVFP4 experts, from a checkpoint's global scales. Operations
// are done in f32 from left to right and round one by one, so that all ranks and machines agree in every bit:
//
//   W4A4   g1_alphas  = in13 * ws2_gate          inside the sigmoid and outside it
//          g1_scale_c = (in13 * ws2_up) / in2    the up half, and the intermediate's own scale
//          g2_alphas  = in2 * ws2_down
//          a1_gscale  = 1 / in13, a2_gscale = 1 / in2
//   W4A16  ws2_gate, ws2_up, ws2_down, 1, 1
#pragma once

#include <cstdint>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/checkpoint/faults.h"
#include "kerf/layout/experts.h"
#include "kerf/op/op.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// Writes the five scalar tensors of `experts` (its own experts first_expert .. first_expert + n) for rows of
// kind `input`. `scales` holds all E experts of the layer. Error{checkpoint} where a result is not above
// zero, or not finite times the largest product of codes and block scales, naming the expert and what it was
// made from; Error{bug} for scales of fewer experts and for quantised rows of a weight-only layer. The
// tensors of scalars must be in host memory.
void write_scalars(const checkpoint::LayerScales& scales, op::Input input,
                   const layout::Nvfp4Experts& experts);

// Adds a fault for each of all E experts that write_scalars() would refuse, with the layer's number; experts
// whose own scales cannot be used (NaN here) are left out, as they have been told of.
void check_scalars(const checkpoint::LayerScales& scales, op::Input input, std::int64_t layer,
                   checkpoint::Faults& faults);

}  // namespace kerf::decode
#pragma GCC visibility pop
