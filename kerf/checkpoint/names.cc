#include "kerf/checkpoint/internal/names.h"

#include <algorithm>
#include <charconv>

namespace kerf::checkpoint::internal {

namespace {

constexpr std::array<std::string_view, 4> kPrefixes = {"model.language_model.", "language_model.model.",
                                                       "model.", "backbone."};
constexpr std::array<std::string_view, 3> kProjections = {"gate_proj", "up_proj", "down_proj"};
constexpr std::array<std::string_view, 4> kParts = {"weight", "weight_scale", "weight_scale_2",
                                                    "input_scale"};
constexpr std::array<std::string_view, 8> kFused = {
    "gate_up_proj", "gate_up_proj_weight_scale", "gate_up_proj_weight_scale_2", "gate_up_proj_input_scale",
    "down_proj",    "down_proj_weight_scale",    "down_proj_weight_scale_2",    "down_proj_input_scale"};

// Takes `head` off the front of `text`.
bool take(std::string_view& text, std::string_view head) {
  if (!text.starts_with(head)) return false;
  text.remove_prefix(head.size());
  return true;
}

// Takes "12." off the front: one spelling a number, so that no two names mean the same tensor.
std::optional<std::int64_t> take_number(std::string_view& text) {
  constexpr std::size_t most_digits = 9;
  std::size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  if (digits == 0 || digits > most_digits || digits == text.size() || text[digits] != '.')
    return std::nullopt;
  if (digits > 1 && text[0] == '0') return std::nullopt;
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + digits, value);
  text.remove_prefix(digits + 1);
  return value;
}

bool known_suffix(std::string_view suffix) {
  for (const std::string_view projection : kProjections) {
    std::string_view rest = suffix;
    if (take(rest, projection) && take(rest, "."))
      return std::find(kParts.begin(), kParts.end(), rest) != kParts.end();
  }
  return false;
}

}  // namespace

std::string_view name(Projection projection) { return kProjections[static_cast<std::size_t>(projection)]; }
std::string_view name(Part part) { return kParts[static_cast<std::size_t>(part)]; }

std::optional<LayerName> parse_layer_name(std::string_view name) {
  for (const std::string_view prefix : kPrefixes) {
    std::string_view rest = name;
    if (!take(rest, prefix) || !take(rest, "layers.")) continue;
    const auto layer = take_number(rest);
    if (!layer) return std::nullopt;
    return LayerName{name.substr(0, name.size() - rest.size()), *layer, rest};
  }
  return std::nullopt;
}

ExpertName parse_expert_name(std::string_view rest) {
  if (!take(rest, "mlp.experts.")) return {};
  if (rest == "post_expert_norm.weight") return {ExpertNaming::post_norm, -1, {}};
  if (std::find(kFused.begin(), kFused.end(), rest) != kFused.end()) return {ExpertNaming::fused, -1, {}};
  const auto expert = take_number(rest);
  if (!expert || !known_suffix(rest)) return {ExpertNaming::unknown, -1, {}};
  return {ExpertNaming::per_expert, *expert, rest};
}

}  // namespace kerf::checkpoint::internal
