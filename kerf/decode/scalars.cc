#include "kerf/decode/scalars.h"

#include <cmath>
#include <string>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/numeric/nvfp4_range.h"

namespace kerf::decode {

namespace {

struct Scalars {
  float g1_alphas, g1_scale_c, g2_alphas;
};

Scalars scalars_of(const checkpoint::LayerScales& s, op::Input input, std::size_t expert) {
  if (input != op::Input::nvfp4) return {s.ws2_gate[expert], s.ws2_up[expert], s.ws2_down[expert]};
  return {s.in13 * s.ws2_gate[expert], s.in13 * s.ws2_up[expert] / s.in2, s.in2 * s.ws2_down[expert]};
}

// Sound scales can still have a product or quotient outside f32's range, or so near its end that the largest
// product of a weight and a value is outside.
bool usable(const Scalars& scalars, op::Input input) {
  const float most =
      input == op::Input::nvfp4 ? numeric::nvfp4_most * numeric::nvfp4_most : numeric::nvfp4_most;
  const auto one = [&](float scale) { return scale > 0 && std::isfinite(scale * most); };
  return one(scalars.g1_alphas) && one(scalars.g1_scale_c) && one(scalars.g2_alphas);
}

std::string unusable_text(const checkpoint::LayerScales& s, const Scalars& scalars, std::size_t expert) {
  return fmt::format(
      "expert {}: the global scales combine to g1_alphas {}, g1_scale_c {}, g2_alphas {}; positive and "
      "finite "
      "times the largest codes and block scales wanted (weight_scale_2 gate {}, up {}, down {}; input scales "
      "{}, {})",
      expert, scalars.g1_alphas, scalars.g1_scale_c, scalars.g2_alphas, s.ws2_gate[expert], s.ws2_up[expert],
      s.ws2_down[expert], s.in13, s.in2);
}

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

  for (std::size_t e = 0; e < count; ++e) {
    const Scalars scalars = scalars_of(scales, input, first + e);
    if (!usable(scalars, input)) fail(ErrorKind::checkpoint, "{}", unusable_text(scales, scalars, first + e));
    experts.g1_alphas.as<float>()[e] = scalars.g1_alphas;
    experts.g1_scale_c.as<float>()[e] = scalars.g1_scale_c;
    experts.g2_alphas.as<float>()[e] = scalars.g2_alphas;
  }
  experts.a1_gscale.as<float>()[0] = quantised ? 1.0F / scales.in13 : 1.0F;
  experts.a2_gscale.as<float>()[0] = quantised ? 1.0F / scales.in2 : 1.0F;
}

void check_scalars(const checkpoint::LayerScales& scales, op::Input input, std::int64_t layer,
                   checkpoint::Faults& faults) {
  const FpGuard guard;
  for (std::size_t e = 0; e < scales.ws2_gate.size(); ++e) {
    const Scalars scalars = scalars_of(scales, input, e);
    if (std::isnan(scalars.g1_alphas) || std::isnan(scalars.g1_scale_c) || std::isnan(scalars.g2_alphas))
      continue;
    if (!usable(scalars, input))
      faults.add("global scales that combine outside f32's range",
                 fmt::format("layer {}, {}", layer, unusable_text(scales, scalars, e)));
  }
}

}  // namespace kerf::decode
