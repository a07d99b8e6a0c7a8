#include "kerf/decode/scalars.h"

#include <cmath>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"

namespace kerf::decode {

namespace {
bool usable(float scale) { return std::isfinite(scale) && scale > 0; }
}  // namespace

void write_scalars(const checkpoint::LayerScales& scales, op::Input input,
                   const layout::Nvfp4Experts& experts) {
  const FpGuard guard;  // products below the normal range are kept, whoever calls
  const auto first = static_cast<std::size_t>(experts.first_expert);
  const auto count = static_cast<std::size_t>(experts.shape.experts);
  if (first + count > scales.ws2_gate.size() || first + count > scales.ws2_up.size() ||
      first + count > scales.ws2_down.size())
    fail(ErrorKind::bug, "global scales of {} experts, wanted those of {}..{}", scales.ws2_gate.size(), first,
         first + count);
  const bool quantised = input == op::Input::nvfp4;
  if (quantised && scales.weight_only) fail(ErrorKind::bug, "no input scales for quantised rows");

  const auto gate = experts.g1_alphas.as<float>();
  const auto up = experts.g1_scale_c.as<float>();
  const auto down = experts.g2_alphas.as<float>();
  for (std::size_t e = 0; e < count; ++e) {
    const float ws_gate = scales.ws2_gate[first + e];
    const float ws_up = scales.ws2_up[first + e];
    const float ws_down = scales.ws2_down[first + e];
    gate[e] = quantised ? scales.in13 * ws_gate : ws_gate;
    up[e] = quantised ? scales.in13 * ws_up / scales.in2 : ws_up;
    down[e] = quantised ? scales.in2 * ws_down : ws_down;
  }
  experts.a1_gscale.as<float>()[0] = quantised ? 1.0F / scales.in13 : 1.0F;
  experts.a2_gscale.as<float>()[0] = quantised ? 1.0F / scales.in2 : 1.0F;
  // Sound scales can still have a product or quotient outside f32's range.
  for (std::size_t e = 0; e < count; ++e)
    if (!usable(gate[e]) || !usable(up[e]) || !usable(down[e]))
      fail(ErrorKind::checkpoint,
           "expert {}: the global scales combine to g1_alphas {}, g1_scale_c {}, g2_alphas {}; finite and "
           "positive wanted (weight_scale_2 gate {}, up {}, down {}; input scales {}, {})",
           first + e, gate[e], up[e], down[e], scales.ws2_gate[first + e], scales.ws2_up[first + e],
           scales.ws2_down[first + e], scales.in13, scales.in2);
}

}  // namespace kerf::decode
