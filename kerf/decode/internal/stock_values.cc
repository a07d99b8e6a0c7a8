#include "kerf/decode/internal/stock_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string_view>

#include "kerf/base/format.h"
#include "kerf/numeric/bf16.h"

namespace kerf::decode::internal {

namespace {

bool is_scale(float v) { return v > 0 && std::isfinite(v); }
bool is_finite(float v) { return std::isfinite(v); }
bool is_limit(float v) { return v > 0; }

constexpr const char* scale_words = "a positive finite number";
constexpr const char* finite_words = "a finite number";
constexpr const char* limit_words = "a positive number (inf: no limit)";

// The bytes of an engine's tensor may lie anywhere.
std::vector<float> floats(const tensor::TensorView& view) {
  std::vector<float> out(view.bytes.size() / sizeof(float));
  std::memcpy(out.data(), view.bytes.data(), out.size() * sizeof(float));
  return out;
}

struct Values {
  std::vector<std::string>& faults;

  // The first value that is not sound. One a local expert, from `first` on; without it, the layer's only one.
  template <typename Sound>
  void look(std::string_view name, std::span<const float> values, Sound sound, const char* wanted,
            const std::int64_t* first) {
    const auto bad = std::find_if_not(values.begin(), values.end(), sound);
    if (bad == values.end()) return;
    const std::string of =
        first != nullptr ? fmt::format(" of expert {}", *first + (bad - values.begin())) : "";
    faults.push_back(fmt::format("{}{} is {}, wanted {}", name, of, *bad, wanted));
  }

  std::int64_t operator()(const layout::Nvfp4View& view) {
    look("g1_alphas", floats(view.g1_alphas), is_scale, scale_words, &view.first_expert);
    look("g1_scale_c", floats(view.g1_scale_c), is_scale, scale_words, &view.first_expert);
    look("g2_alphas", floats(view.g2_alphas), is_scale, scale_words, &view.first_expert);
    look("a1_gscale", floats(view.a1_gscale), is_scale, scale_words, nullptr);
    look("a2_gscale", floats(view.a2_gscale), is_scale, scale_words, nullptr);
    return view.first_expert;
  }
  std::int64_t operator()(const layout::Bf16View& view) { return view.first_expert; }
  std::int64_t operator()(const auto& /*no experts of kerf's*/) { return 0; }

  void look(const op::GatedParameters& gated, std::int64_t first) {
    look("alpha", gated.alpha, is_finite, finite_words, &first);
    look("beta", gated.beta, is_finite, finite_words, &first);
    look("limit_gate", gated.limit_gate, is_limit, limit_words, &first);
    look("limit_up", gated.limit_up, is_limit, limit_words, &first);
  }

  void look(const tail::RouteNorm& norm) {
    if (!(norm.eps >= 0) || !std::isfinite(norm.eps))
      faults.push_back(fmt::format("the norm's eps is {}, wanted a finite number of at least 0", norm.eps));
    const auto bad = std::find_if_not(norm.gain.begin(), norm.gain.end(), numeric::bf16_is_finite);
    if (bad != norm.gain.end())
      faults.push_back(fmt::format("the norm's gain is {} at {}, wanted finite numbers",
                                   numeric::bf16_to_f32(*bad), bad - norm.gain.begin()));
  }
};

}  // namespace

std::vector<std::string> unusable_values(const StockLayer& layer) {
  std::vector<std::string> faults;
  Values values{faults};
  const std::int64_t first = std::visit(values, layer.experts);
  values.look(layer.gated, first);
  if (layer.norm) values.look(*layer.norm);
  return faults;
}

}  // namespace kerf::decode::internal
