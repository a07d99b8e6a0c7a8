#include "kerf/decode/adopt.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <utility>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/internal/stock_values.h"
#include "kerf/decode/sha256.h"
#include "kerf/expert_tp/expert_tp.h"
#include "kerf/layout/geometry.h"

namespace kerf::decode {

namespace {

using checkpoint::ExpertKind;
using layout::Bf16View;
using layout::Nvfp4View;

// What the layers are adopted for.
struct Target {
  const ModelSize& model;
  const op::Backend& backend;
};

// What is read as f32 or bf16 without copying must lie where such values may.
Verdict misaligned(std::string_view name, const tensor::TensorView& tensor, std::size_t alignment) {
  if (reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) % alignment == 0) return std::nullopt;
  return because(ErrorKind::unsupported, "{} is not aligned to {} bytes", name, alignment);
}

Verdict misplaced(std::int64_t first, std::int64_t count, const ModelSize& model, comm::Group& group) {
  if (count > model.experts)
    return because(ErrorKind::unsupported, "{} experts on one rank of a model with {}", count, model.experts);
  std::vector<std::int64_t> held(static_cast<std::size_t>(count));
  std::iota(held.begin(), held.end(), first);
  return expert_tp::misplaced_experts(held, group.rank(), group.size(), model.experts);
}

Verdict unbindable(const StockLayer& layer, const Nvfp4View& view, const Target& target) {
  if (Verdict v = misaligned("a1_gscale", view.a1_gscale, alignof(float))) return v;
  return target.backend.supports(
      op::Nvfp4Args{view, target.model.experts, target.model.top_k, layer.input, layer.gated});
}

Verdict unbindable(const StockLayer& layer, const Bf16View& view, const Target& target) {
  if (Verdict v = misaligned("w13", view.w13, alignof(std::uint16_t))) return v;
  if (Verdict v = misaligned("w2", view.w2, alignof(std::uint16_t))) return v;
  return target.backend.supports(op::Bf16Args{view, target.model.experts, target.model.top_k, layer.gated});
}

// Everything about one layer that this rank can tell.
struct Inspection {
  Target target;
  comm::Group& group;
  std::vector<Reason> reasons;
  std::int64_t hidden = 0;  // 0: unknown

  void add(const StockLayer& layer, Verdict why) {
    if (why) reasons.push_back({why->kind, fmt::format("layer {}: {}", layer.index, why->text)});
  }

  template <typename View>
  void look_at(const StockLayer& layer, const View& view) {
    if (Verdict v = layout::malformed(view)) return add(layer, std::move(v));
    const layout::ExpertsShape shape = layout::shape_of(view);
    add(layer, misplaced(view.first_expert, shape.experts, target.model, group));
    add(layer, unbindable(layer, view, target));
    if (hidden == 0) hidden = shape.hidden;
    if (shape.hidden != hidden)
      add(layer, because(ErrorKind::unsupported, "H is {}, that of the layers before it {}, wanted the same",
                         shape.hidden, hidden));
    if (layer.norm && !layer.norm->gain.empty() &&
        static_cast<std::int64_t>(layer.norm->gain.size()) != shape.hidden)
      add(layer, because(ErrorKind::unsupported, "its norm has a gain of {} values, H is {}",
                         layer.norm->gain.size(), shape.hidden));
    for (const std::string& fault : internal::unusable_values(layer))
      add(layer, Reason{ErrorKind::usage, fault});
  }
  void look_at(const StockLayer& layer, std::monostate /*none*/) {
    add(layer, because(ErrorKind::unsupported, "it has no experts kernel to take tensors from"));
  }
  void look_at(const StockLayer& layer, const OtherExperts& other) {
    add(layer, because(ErrorKind::unsupported, "its experts are of the kind '{}', wanted NVFP4 or BF16",
                       other.kind));
  }

  void operator()(const StockLayer& layer) {
    std::visit([&](const auto& experts) { look_at(layer, experts); }, layer.experts);
    if (layer.top_k != target.model.top_k)
      add(layer,
          because(ErrorKind::unsupported, "its K is {}, the model's {}", layer.top_k, target.model.top_k));
    if (layer.finalises)
      add(layer, because(ErrorKind::unsupported,
                         "its op finalises rows itself, where kerf's leaves them to the tail"));
    if (layer.captures_routes)
      add(layer, because(ErrorKind::unsupported, "its op's routes are captured, which kerf's would not be"));
  }
};

void check(std::span<const StockLayer> layers, const Target& target, comm::Group& group) {
  if (layers.empty()) fail(ErrorKind::usage, "no layers to adopt");
  std::set<std::int64_t> seen;
  Inspection inspect{target, group, {}, 0};
  for (const StockLayer& layer : layers) {
    if (layer.index < 0) fail(ErrorKind::usage, "a layer's index is {}, wanted 0 or more", layer.index);
    if (!seen.insert(layer.index).second) fail(ErrorKind::usage, "layer {} comes twice", layer.index);
    inspect(layer);
  }
  if (inspect.reasons.empty()) return;
  std::string all;
  for (const Reason& r : inspect.reasons) all += (all.empty() ? "" : "; ") + r.text;
  throw Error(inspect.reasons.front().kind, all);
}

// What has to be alike on all ranks.
std::string description(const StockLayer& layer) {
  const auto* nvfp4 = std::get_if<Nvfp4View>(&layer.experts);
  const layout::ExpertsShape shape =
      nvfp4 != nullptr ? layout::shape_of(*nvfp4) : layout::shape_of(std::get<Bf16View>(layer.experts));
  std::string text = fmt::format("layer {}: {} x {} ", layer.index, shape.hidden, shape.intermediate);
  text += nvfp4 == nullptr ? "BF16" : layer.input == op::Input::nvfp4 ? "NVFP4, quantised rows" : "NVFP4";
  for (const auto& [name, values] :
       {std::pair{"alpha", layer.gated.alpha}, std::pair{"beta", layer.gated.beta},
        std::pair{"gate limit", layer.gated.limit_gate}, std::pair{"up limit", layer.gated.limit_up}})
    if (!values.empty()) text += fmt::format(", {}", name);
  if (layer.norm) {
    Sha256 sha;
    sha.update(std::as_bytes(std::span(layer.norm->gain)));
    text += fmt::format(", norm of eps {:a}, gain {} {}", layer.norm->eps,
                        layer.norm->gain_before_norm ? "before" : "after", sha.hex());
  }
  return text;
}

// Collective. All ranks must be given the same layers: each of them counts on the others' collectives.
void check_alike(std::span<const StockLayer> layers, const ModelSize& model, comm::Group& group) {
  std::string mine = fmt::format("{} experts, top {}; ", model.experts, model.top_k);
  for (const StockLayer& layer : layers) mine += description(layer) + "; ";
  const std::vector<std::string> all = comm::gather_text(group, mine, "comparing the engine's layers");
  for (std::size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0])
      fail(ErrorKind::usage, "the engine's layers differ between ranks: rank 0 has {}rank {} has {}", all[0],
           r, all[r]);
}

Layer bound(const StockLayer& from, const Target& target) {
  Layer layer;
  layer.index = from.index;
  layer.norm = from.norm;
  layer.gated = from.gated;
  if (const auto* view = std::get_if<Nvfp4View>(&from.experts)) {
    layer.kind = ExpertKind::nvfp4;
    layer.input = from.input;
    layer.ep = target.backend.bind(
        op::Nvfp4Args{*view, target.model.experts, target.model.top_k, layer.input, layer.gated});
    layer.stock = *view;
  } else {
    const Bf16View& experts = std::get<Bf16View>(from.experts);
    layer.kind = ExpertKind::bf16;
    layer.input = op::Input::bf16;
    layer.ep =
        target.backend.bind(op::Bf16Args{experts, target.model.experts, target.model.top_k, layer.gated});
    layer.stock = experts;
  }
  return layer;
}

std::string in_words(const GroupHolder& holder) { return fmt::format("'{}'", holder.name()); }

comm::Group& held_by(const GroupHolder& tp) {
  comm::Group* group = tp.device_group();
  if (group == nullptr) fail(ErrorKind::usage, "{} has no device group to act over", in_words(tp));
  return *group;
}

}  // namespace

std::vector<Layer> adopt(std::span<const StockLayer> layers, const ModelSize& model,
                         const std::string& backend, const Rank& rank) {
  const op::Backend* found = nullptr;
  comm::agreed(rank.group, "checking the engine's layers", [&] {
    found = &op::backend(backend);
    check(layers, {model, *found}, rank.group);
  });
  check_alike(layers, model, rank.group);
  std::vector<Layer> out;
  comm::agreed(rank.group, "binding the engine's layers", [&] {
    out.reserve(layers.size());
    for (const StockLayer& layer : layers) out.push_back(bound(layer, {model, *found}));
  });
  return out;
}

comm::Group& tp_group(const GroupHolder& tp, const GroupHolder* given) {
  if (given == nullptr) fail(ErrorKind::usage, "got no group, wanted {} or its device group", in_words(tp));
  if (given != &tp)
    fail(ErrorKind::usage, "got {}, wanted {} or its device group", in_words(*given), in_words(tp));
  return held_by(tp);
}

comm::Group& tp_group(const GroupHolder& tp, const comm::Group* given) {
  if (given == nullptr) fail(ErrorKind::usage, "got no group, wanted {} or its device group", in_words(tp));
  comm::Group& group = held_by(tp);
  if (given != &group)
    fail(ErrorKind::usage, "got the group '{}' of {} ranks, wanted {} or its device group of {}",
         given->name(), given->size(), in_words(tp), group.size());
  return group;
}

}  // namespace kerf::decode
