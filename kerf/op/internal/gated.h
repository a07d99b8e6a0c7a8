// The gated activation between the GEMMs, in canonical arithmetic: all backends perform the f32 operations
// below one by one as they stand, each with its own rounding.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "kerf/numeric/exp.h"
#include "kerf/op/op.h"

namespace kerf::op::internal {

// One expert's factors: x0 is the raw up dot, x1 the raw gate dot.
struct ExpertScalars {
  float scale_gate = 1.0F;  // g1_alphas
  float scale_up = 1.0F;    // g1_scale_c
  float scale_down = 1.0F;  // g2_alphas
  float alpha = 1.0F;
  float beta = 0.0F;
  float limit_gate = std::numeric_limits<float>::infinity();
  float limit_up = std::numeric_limits<float>::infinity();
};

// h = u * (g * sigmoid(alpha * g)), g = x1 * scale_gate, u = (x0 + beta) * scale_up, after the clamps. NaN
// passes.
constexpr float gated(float x0, float x1, const ExpertScalars& s) {
  if (x1 > s.limit_gate) x1 = s.limit_gate;
  if (x0 > s.limit_up) x0 = s.limit_up;
  if (x0 < -s.limit_up) x0 = -s.limit_up;
  x0 = x0 + s.beta;
  const float g = x1 * s.scale_gate;
  const float u = x0 * s.scale_up;
  const float sg = 1.0F / (1.0F + numeric::exp_f32(-(s.alpha * g)));
  return u * (g * sg);
}

// Expert e's parameters where they are given, the defaults where not.
inline void read_gated(const GatedParameters& p, std::size_t e, ExpertScalars& s) {
  if (!p.alpha.empty()) s.alpha = p.alpha[e];
  if (!p.beta.empty()) s.beta = p.beta[e];
  if (!p.limit_gate.empty()) s.limit_gate = p.limit_gate[e];
  if (!p.limit_up.empty()) s.limit_up = p.limit_up[e];
}

}  // namespace kerf::op::internal
