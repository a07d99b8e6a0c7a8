#include "kerf/decode/gated.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"

namespace kerf::decode {

SwigluValues::SwigluValues(const checkpoint::SwigluConfig& from, std::int64_t experts) {
  const auto n = static_cast<std::size_t>(experts);
  if (from.alpha != 1.0) alpha_.assign(n, static_cast<float>(from.alpha));
  if (from.beta != 0.0) beta_.assign(n, static_cast<float>(from.beta));
  if (from.limit) limit_gate_.assign(n, static_cast<float>(*from.limit));
  if (from.limit) limit_up_.assign(n, static_cast<float>(*from.limit));
}

SwigluValues::SwigluValues(const checkpoint::SwigluConfig& from, const checkpoint::LayerScales& scales,
                           op::Input input, std::int64_t first, std::int64_t experts)
    : SwigluValues(from, experts) {
  const FpGuard guard;
  const bool quantised = input == op::Input::nvfp4;
  // A row's global scale takes part in its accumulators where it is quantised.
  const auto real = [&](float weight_scale) { return quantised ? scales.in13 * weight_scale : weight_scale; };
  const auto divide = [&](float& value, float by, std::int64_t expert, std::string_view what) {
    const float out = value / by;
    if (!std::isfinite(out))
      fail(ErrorKind::unsupported, "expert {}: {} of {} over the scale {} is not finite", expert, what, value,
           by);
    value = out;
  };
  for (std::int64_t e = 0; e < experts; ++e) {
    const auto at = static_cast<std::size_t>(e);
    const auto of_all = static_cast<std::size_t>(first + e);
    const float up = real(scales.ws2_up[of_all]);
    if (!beta_.empty()) divide(beta_[at], up, first + e, "SwiGLU's beta");
    if (!limit_up_.empty()) divide(limit_up_[at], up, first + e, "SwiGLU's limit");
    if (!limit_gate_.empty())
      divide(limit_gate_[at], real(scales.ws2_gate[of_all]), first + e, "SwiGLU's limit");
  }
}

void SwigluValues::assign(const op::GatedParameters& values) {
  const auto put = [](std::span<const float> from, std::vector<float>& to) {
    if (from.size() != to.size())
      fail(ErrorKind::bug, "{} gated parameters in the place of {}", from.size(), to.size());
    std::copy(from.begin(), from.end(), to.begin());
  };
  put(values.alpha, alpha_);
  put(values.beta, beta_);
  put(values.limit_gate, limit_gate_);
  put(values.limit_up, limit_up_);
}

}  // namespace kerf::decode
