// The global scales of a layer: all of them are read on every rank, so that what is reduced over all experts
// has the same bits everywhere.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <map>
#include <string_view>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/checkpoint/internal/layer.h"
#include "kerf/numeric/nvfp4_range.h"

namespace kerf::checkpoint::internal {

namespace {

using Values = std::vector<std::optional<float>>;

std::string_view fault_of_number(const std::optional<float>& value) {
  if (!value) return "missing";
  if (std::isnan(*value)) return "NaN";
  if (std::isinf(*value)) return "infinite";
  if (*value == 0.0F) return "zero";
  if (*value < 0.0F) return "negative";
  if (std::isinf(1.0F / *value)) return "too small (infinite reciprocal)";
  return {};
}

// Why a scale cannot be used; empty where it can. A scale divides somewhere, so its reciprocal counts too,
// and the largest value that it can stand for has to be a number.
std::string_view fault_of(const std::optional<float>& value) {
  if (const std::string_view fault = fault_of_number(value); !fault.empty()) return fault;
  if (std::isinf(*value * numeric::nvfp4_most)) return "too large (infinite times 448 x 6)";
  return {};
}

// The same of a stored divisor, whose scale is 1 / value.
std::string_view fault_of_divisor(const std::optional<float>& value) {
  if (const std::string_view fault = fault_of_number(value); !fault.empty()) return fault;
  const float scale = 1.0F / *value;
  if (std::isinf(1.0F / scale)) return "too large (as a scale, with an infinite reciprocal)";
  if (std::isinf(scale * numeric::nvfp4_most)) return "too small (as a scale, infinite times 448 x 6)";
  return {};
}

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

// Smallest and largest; both NaN where a value cannot be used.
struct Range {
  float least = std::numeric_limits<float>::infinity();
  float largest = -std::numeric_limits<float>::infinity();
};

Range range_of(std::initializer_list<const Values*> lists) {
  Range out;
  for (const Values* values : lists) {
    for (const auto& v : *values) {
      if (!v || !fault_of(v).empty()) return {kNone, kNone};
      out.least = std::min(out.least, *v);
      out.largest = std::max(out.largest, *v);
    }
  }
  return out;
}

std::vector<float> usable(const Values& values) {
  std::vector<float> out;
  out.reserve(values.size());
  for (const auto& v : values) out.push_back(v && fault_of(v).empty() ? *v : kNone);
  return out;
}

// Notes how gate and up differ; experts with an unusable scale are left out.
void compare_gate_up(LayerScales& scales) {
  for (std::size_t e = 0; e < scales.ws2_gate.size(); ++e) {
    const double gate = scales.ws2_gate[e];
    const double up = scales.ws2_up[e];
    if (std::isnan(gate) || std::isnan(up) || gate == up) continue;
    ++scales.gate_up_differ;
    scales.largest_gate_up_ratio = std::max({scales.largest_gate_up_ratio, gate / up, up / gate});
  }
}

}  // namespace

LayerScales Layer::scales(Faults& faults) const {
  if (kind() != ExpertKind::nvfp4)
    fail(ErrorKind::bug, "layer {} has BF16 experts, which have no scales", index());
  const FpGuard guard;  // with subnormals flushed, 1e-45 would look like 0
  const std::int64_t experts = source_.experts;
  const auto read = [&](Projection p, Part part) {
    Values values;
    values.reserve(static_cast<std::size_t>(experts));
    for (std::int64_t e = 0; e < experts; ++e) values.push_back(scalar(p, part, e));
    return values;
  };
  // What is stored as a divisor is multiplied by as 1 / stored: one division in f32, whose result is the
  // scale from here on. Faults are told of what is stored.
  const auto scales_of = [&](Values values) {
    if (source_.dialect->divisors)
      for (auto& value : values)
        if (value) value = 1.0F / *value;
    return values;
  };
  // A scale that is missing is named with the file of the weight that it goes with.
  const auto file = [&](Projection p, Part part, std::int64_t e) {
    const Located* own = located(p, part, e);
    return own != nullptr ? in_file(own)
                          : fmt::format(", weight{}", in_file(located(p, Part::weight, e)).substr(1));
  };
  const auto fault_in_file = [&](const std::optional<float>& value) {
    return source_.dialect->divisors ? fault_of_divisor(value) : fault_of(value);
  };
  const auto report = [&](Projection p, Part part, const Values& values) {
    std::map<std::string_view, std::int64_t> alike;
    for (const auto& value : values) ++alike[fault_in_file(value)];
    for (std::int64_t e = 0; e < experts; ++e) {
      const auto& value = values[static_cast<std::size_t>(e)];
      const std::string_view fault = fault_in_file(value);
      if (fault.empty()) continue;
      faults.add(fmt::format("{} {}", fault, part_name(part)),
                 fmt::format("layer {}, {}, expert {}, {} of {}, value {}{}", index(),
                             tensor_name(p, part, e), e, alike[fault], experts,
                             value ? fmt::format("{}", *value) : "missing", file(p, part, e)));
    }
  };

  std::array<Values, 3> weight_scales;
  std::array<Values, 3> input_scales;
  for (const Projection p : all_projections) {
    const auto i = static_cast<std::size_t>(p);
    weight_scales[i] = read(p, Part::global_scale);
    input_scales[i] = read(p, Part::input_scale);
    report(p, Part::global_scale, weight_scales[i]);
    weight_scales[i] = scales_of(std::move(weight_scales[i]));
  }

  LayerScales out;
  out.ws2_gate = usable(weight_scales[0]);
  out.ws2_up = usable(weight_scales[1]);
  out.ws2_down = usable(weight_scales[2]);
  compare_gate_up(out);

  // The configuration decides, as it does in vLLM: input scales beside weight-only experts are not used. That
  // they are sound is asked for all the same.
  out.weight_only = source_.quant_algo == "W4A16_NVFP4";
  if (has_input_scales()) {
    for (const Projection p : all_projections)
      report(p, Part::input_scale, input_scales[static_cast<std::size_t>(p)]);
    for (Values& values : input_scales) values = scales_of(std::move(values));
    out.in_gate = usable(input_scales[0]);
    out.in_up = usable(input_scales[1]);
    out.in_down = usable(input_scales[2]);
  }
  if (has_input_scales() && !out.weight_only) {
    const Range first = range_of({&input_scales[0], &input_scales[1]});
    const Range second = range_of({&input_scales[2]});
    out.in13 = first.largest;
    out.in2 = second.largest;
    out.least13 = first.least;
    out.least2 = second.least;
    return out;
  }
  if (!out.weight_only)
    faults.add(
        fmt::format("missing {}", part_name(Part::input_scale)),
        fmt::format("layer {}, {}, {} of {} experts, value missing: no expert has one; such a checkpoint is "
                    "weight-only (W4A16), but its configuration says {}{}",
                    index(), tensor_name(Projection::gate, Part::input_scale, 0), experts, experts,
                    source_.quant_algo, file(Projection::gate, Part::input_scale, 0)));
  out.in13 = out.in2 = out.least13 = out.least2 = kNone;
  return out;
}

}  // namespace kerf::checkpoint::internal
