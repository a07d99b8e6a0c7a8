#include "kerf/checkpoint/internal/names.h"

#include <algorithm>
#include <charconv>

namespace kerf::checkpoint::internal {

namespace {

constexpr std::array<std::string_view, 8> kGates = {gate_name,
                                                    "block_sparse_moe.gate.weight",
                                                    "feed_forward.router.weight",
                                                    "mixer.gate.weight",
                                                    "mlp.router.weight",
                                                    "mlp.router.gate.weight",
                                                    "mlp.gate.wg.weight",
                                                    "feed_forward.gate.weight"};
constexpr std::array<std::string_view, 8> kBiases = {selection_bias_name,
                                                     "mlp.e_score_correction_bias",
                                                     "mlp.gate.expert_bias",
                                                     "mlp.expert_bias",
                                                     "block_sparse_moe.e_score_correction_bias",
                                                     "block_sparse_moe.gate.e_score_correction_bias",
                                                     "mixer.gate.e_score_correction_bias",
                                                     "feed_forward.expert_bias"};
// Added to the router's logits.
constexpr std::array<std::string_view, 5> kRouterBiases = {"mlp.gate.bias", "mlp.router.bias",
                                                           "block_sparse_moe.gate.bias",
                                                           "feed_forward.router.bias", "mixer.gate.bias"};
constexpr std::array<std::string_view, 4> kAlone = {post_norm_name, pre_proj_name, pre_norm_name,
                                                    post_proj_name};

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

}  // namespace

std::optional<LayerName> parse_layer_name(std::string_view name) {
  for (const std::string_view prefix : layer_bases) {
    std::string_view rest = name;
    if (!take(rest, prefix) || !take(rest, "layers.")) continue;
    const auto layer = take_number(rest);
    if (!layer) return std::nullopt;
    return LayerName{name.substr(0, name.size() - rest.size()), *layer, rest};
  }
  return std::nullopt;
}

std::optional<OddLayerName> parse_odd_layer_name(std::string_view name) {
  for (const std::string_view prefix : layer_bases) {
    std::string_view rest = name;
    if (!take(rest, prefix) || !take(rest, "layers.")) continue;
    const std::size_t dot = rest.find('.');
    std::string_view number = rest;
    if (dot == std::string_view::npos || take_number(number)) return std::nullopt;
    return OddLayerName{rest.substr(0, dot), rest.substr(dot + 1)};
  }
  return std::nullopt;
}

ExpertName parse_expert_name(std::string_view rest) {
  if (rest == post_norm_name) return {ExpertNaming::post_norm, -1, {}, {}, 0};
  for (const std::string_view root : expert_roots) {
    std::string_view below = rest;
    if (!take(below, root)) continue;
    const auto expert = take_number(below);
    const Dialects found = dialects_with(root, below, expert.has_value());
    if (found == 0) return {ExpertNaming::unknown, -1, {}, root, 0};
    if (expert) return {ExpertNaming::per_expert, *expert, below, root, found};
    return {ExpertNaming::stacked, -1, {}, root, found};
  }
  return {};
}

std::string_view beyond_block(std::string_view rest) {
  if (std::find(kRouterBiases.begin(), kRouterBiases.end(), rest) != kRouterBiases.end())
    return "a bias of the router's logits";
  // mlp.shared_expert.*, mlp.shared_experts.*, mlp.shared_mlp.*, share_expert.*, shared_expert_gate
  const std::size_t at = rest.find("share");
  if (at != std::string_view::npos && (at == 0 || rest[at - 1] == '.') &&
      (rest.substr(at).starts_with("shared_") || rest.substr(at).starts_with("share_expert")))
    return "shared experts";
  if (rest.starts_with("residual_mlp.")) return "an MLP beside the experts";
  const auto is = [&](const auto& names) {
    return std::find(names.begin(), names.end(), rest) != names.end();
  };
  if (is(kGates) || is(kBiases) || is(kAlone)) return {};
  for (const std::string_view root : expert_roots) {
    if (rest.starts_with(root)) return {};
    if (rest.starts_with(root.substr(0, root.find('.') + 1))) return "this tensor";
  }
  return {};
}

std::span<const std::string_view> spellings(std::string_view name) {
  if (name == gate_name) return kGates;
  if (name == selection_bias_name) return kBiases;
  const auto* const found = std::find(kAlone.begin(), kAlone.end(), name);
  if (found == kAlone.end()) return {};
  return {found, 1};
}

}  // namespace kerf::checkpoint::internal
