// SwiGLU's parameters of a layer as the op takes them: a value a local expert, on raw accumulators, made of
// the model's (docs/numerics.md).
#pragma once

#include <cstdint>
#include <vector>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/op/op.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// Owns the values, f32 [experts] each; one that is what plain SwiGLU has is empty. Stays valid for those who
// have its spans when it is moved.
class SwigluValues {
 public:
  SwigluValues() = default;
  // BF16 experts: their accumulators are real values.
  SwigluValues(const checkpoint::SwigluConfig& from, std::int64_t experts);
  // NVFP4 experts [first, first + experts) of a layer with these scales, with rows of `input`: limits and
  // beta divided by what makes real values of gate's and up's accumulators, one f32 division each: ws2 of
  // gate or up, times in13 where rows are quantised. `scales` has all E experts. Error{unsupported} where a
  // quotient is not finite.
  SwigluValues(const checkpoint::SwigluConfig& from, const checkpoint::LayerScales& scales, op::Input input,
               std::int64_t first, std::int64_t experts);

  // The values, as the op takes them. They lie in this object.
  [[nodiscard]] op::GatedParameters all() const { return {alpha_, beta_, limit_gate_, limit_up_}; }
  // Other values in the place of these, as many of each, else Error{bug}.
  void assign(const op::GatedParameters& values);

 private:
  std::vector<float> alpha_, beta_, limit_gate_, limit_up_;
};

}  // namespace kerf::decode
#pragma GCC visibility pop
