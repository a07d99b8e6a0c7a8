#include "kerf/decode/refill.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/base/text.h"
#include "kerf/comm/agree.h"
#include "kerf/cuda/device.h"
#include "kerf/decode/exported.h"
#include "kerf/decode/internal/landing.h"
#include "kerf/decode/internal/row_gated.h"
#include "kerf/decode/internal/start_room.h"
#include "kerf/decode/probe.h"
#include "kerf/decode/runtime.h"
#include "kerf/decode/same_model.h"
#include "kerf/decode/shard.h"

namespace kerf::decode {

namespace {

using checkpoint::ExpertKind;
using internal::Landing;
using tensor::Tensor;
using tensor::TensorView;

std::string_view in_words(ExpertKind kind) { return kind == ExpertKind::nvfp4 ? "NVFP4" : "BF16"; }
std::string_view in_words(op::Input input) {
  return input == op::Input::nvfp4 ? "quantised rows (W4A4)" : "bf16 rows";
}
std::string in_words(const op::RoutedExperts& e) {
  const layout::ExpertsShape s = e.shape();
  return fmt::format("experts {} to {} of {}, top {}, {} x {}", e.first_expert(),
                     e.first_expert() + s.experts - 1, e.num_experts(), e.top_k(), s.hidden, s.intermediate);
}
std::string in_words(const op::GatedParameters& p) {
  std::string out;
  for (const auto& [name, values] :
       {std::pair{"alpha", p.alpha}, std::pair{"beta", p.beta}, std::pair{"gate limit", p.limit_gate},
        std::pair{"up limit", p.limit_up}})
    if (!values.empty()) out += fmt::format("{}{}", out.empty() ? "" : ", ", name);
  return out.empty() ? "plain SwiGLU" : "SwiGLU with " + out;
}
std::string in_words(const std::optional<tail::RouteNorm>& norm) {
  if (!norm) return "no norm";
  return fmt::format("a norm of eps {}, {}", norm->eps,
                     norm->gain.empty() ? std::string("no gain")
                                        : fmt::format("gain [{}] {} it", norm->gain.size(),
                                                      norm->gain_before_norm ? "before" : "after"));
}

// What must be as it was, in words that are equal where it is.
Verdict differs(ErrorKind kind, std::string_view what, std::string_view got, std::string_view wanted) {
  if (got == wanted) return std::nullopt;
  return because(kind, "{}: got {}, wanted {}, as the layer was built", what, got, wanted);
}

Verdict another_kind(ErrorKind kind, ExpertKind got, ExpertKind wanted) {
  return differs(kind, "kind of experts", in_words(got), in_words(wanted));
}
Verdict another_input(ErrorKind kind, op::Input got, op::Input wanted) {
  return differs(kind, "input of the experts", in_words(got), in_words(wanted));
}

// Nothing where `fresh` can take the place of `old`, value by value.
Verdict unlike(const Layer& fresh, const Layer& old, ErrorKind kind) {
  if (Verdict v = another_kind(kind, fresh.kind, old.kind)) return v;
  if (Verdict v = another_input(kind, fresh.input, old.input)) return v;
  if (old.ep != nullptr && fresh.ep == nullptr)
    return because(kind, "the source has slices alone, and the layer's whole experts want new weights too");
  if (old.ep != nullptr)
    if (Verdict v = differs(kind, "whole experts", in_words(*fresh.ep), in_words(*old.ep))) return v;
  if (old.tp != nullptr)
    if (Verdict v = differs(kind, "sliced experts", in_words(*fresh.tp), in_words(*old.tp))) return v;
  return differs(kind, "norm after the experts", in_words(fresh.norm), in_words(old.norm));
}

// What a layer is to become, in memory of its own.
struct Fresh {
  Layer layer;
  internal::RowGated row_gated;  // of its slices
  std::optional<double> rel_l2;

  // What its slices were bound with.
  [[nodiscard]] op::GatedParameters sliced_gated() const {
    return layer.ep != nullptr ? row_gated.all() : layer.own_gated.all();
  }
};

// Collective. Slices of the new experts, where the old ones have some: cut and probed before anything lands.
void cut_and_probe(Fresh& fresh, const Refillable& old, const Rank& rank) {
  if (old.layer.tp == nullptr || fresh.layer.tp != nullptr) return;
  cut(fresh.layer, old.options.build.backend, rank, old.options.build.fit.uneven);
  fresh.rel_l2 = probe(fresh.layer, old.options.probe, rank);
  fresh.row_gated = internal::RowGated(fresh.layer.gated, rank.row());
}

void add_experts(Landing& landing, const layout::Nvfp4Experts& to, const layout::Nvfp4View& from,
                 bool on_device) {
  const auto weights = [&](const Tensor& t, const TensorView& f) {
    on_device ? landing.on_device(t.bytes(), f.bytes) : landing.on_host(t.bytes(), f.bytes);
  };
  weights(to.w13, from.w13);
  weights(to.w13_sf, from.w13_sf);
  weights(to.w2, from.w2);
  weights(to.w2_sf, from.w2_sf);
  landing.on_host(to.g1_alphas.bytes(), from.g1_alphas.bytes);
  landing.on_host(to.g1_scale_c.bytes(), from.g1_scale_c.bytes);
  landing.on_host(to.g2_alphas.bytes(), from.g2_alphas.bytes);
  landing.on_host(to.a1_gscale.bytes(), from.a1_gscale.bytes);
  landing.on_host(to.a2_gscale.bytes(), from.a2_gscale.bytes);
}

void add_experts(Landing& landing, const layout::Bf16Experts& to, const layout::Bf16View& from,
                 bool on_device) {
  for (const auto& [t, f] : {std::pair{&to.w13, &from.w13}, std::pair{&to.w2, &from.w2}})
    on_device ? landing.on_device(t->bytes(), f->bytes) : landing.on_host(t->bytes(), f->bytes);
}

void add_block(Landing& landing, LayerBlock& to, const LayerBlock& from) {
  landing.on_host(to.gate.bytes(), from.gate.bytes());
  landing.on_host(to.bias.bytes(), from.bias.bytes());
  landing.on_host(to.pre.bytes(), from.pre.bytes());
  landing.on_host(to.post.bytes(), from.post.bytes());
  if (to.weights.pool)
    landing.values(std::span(to.weights.pool->norm.gain),
                   std::span<const std::uint16_t>(from.weights.pool->norm.gain));
}

// All that will be written of the layer. What an engine holds of it is the engine's to write.
Landing landing_of(const Refillable& old, const Fresh& fresh, const LayerBlock* block, const Rank& rank) {
  Layer& layer = old.layer;
  const bool on_device = rank.device != nullptr;
  Landing out(on_device);
  if (const auto* experts = std::get_if<layout::Nvfp4Experts>(&layer.stock))
    add_experts(out, *experts, fresh.layer.nvfp4(), on_device);
  if (const auto* experts = std::get_if<layout::Bf16Experts>(&layer.stock))
    add_experts(out, *experts, fresh.layer.bf16(), on_device);
  if (layer.sliced) add_experts(out, *layer.sliced, fresh.layer.sliced->view(), on_device);
  if (layer.norm)
    out.values(std::span(layer.norm->gain), std::span<const std::uint16_t>(fresh.layer.norm->gain));
  if (block != nullptr) add_block(out, *old.block, *block);
  return out;
}

// Which gated parameters there are cannot change: bound experts, and graphs, have room for those there were.
Verdict other_gated(const Refillable& old, const Fresh& fresh, ErrorKind kind) {
  const Layer& layer = old.layer;
  const op::GatedParameters was = layer.adopted() ? layer.gated : layer.own_gated.all();
  const op::GatedParameters is = layer.ep != nullptr ? fresh.layer.gated : fresh.sliced_gated();
  return differs(kind, "activation", in_words(is), in_words(was));
}

// Collective: the vote, and what follows from it.
RefillReport land(const Refillable& old, const Fresh& fresh, const LayerBlock* block, ErrorKind kind,
                  const Rank& rank) {
  Layer& layer = old.layer;
  RefillReport report{.layer = layer.index, .rel_l2 = fresh.rel_l2};
  std::optional<Landing> landing;
  comm::agreed(rank.group, fmt::format("voting on the refill of layer {}", layer.index), [&] {
    comm::in_context(fmt::format("layer {}", layer.index), [&] {
      require(unlike(fresh.layer, layer, kind));
      require(other_gated(old, fresh, kind));
      landing = landing_of(old, fresh, block, rank);
    });
  });
  // All ranks have come so far. From here on nothing is allocated or can be refused; a device can still fail,
  // which is the end of its runtime.
  const std::function<void()> write = [&] {
    landing->run();
    if (layer.adopted())
      layer.gated = fresh.layer.gated;
    else
      layer.own_gated.assign(layer.ep != nullptr ? fresh.layer.gated : fresh.sliced_gated());
    if (layer.ep != nullptr) layer.ep->reread(layer.gated);
    if (layer.tp != nullptr) layer.tp->reread(fresh.sliced_gated());
    ++layer.refills;
  };
  {
    const Timing timing(report.landing_seconds);
    const Verdict failed = attempt(write);
    const Verdict agreed =
        comm::agree(rank.group, failed, fmt::format("the refill of layer {}", layer.index));
    if (agreed)
      fail(agreed->kind, "layer {} is between two fillings, and of no use any more: {}", layer.index,
           agreed->text);
  }
  report.bytes = landing->bytes();
  return report;
}

void say(const RefillReport& report, std::string_view from, const Rank& rank) {
  rank.info(
      fmt::format("layer {} refilled from {}: {:.3f} GiB on this rank{}; {:.3f} s, {:.3f} s of them to "
                  "write",
                  report.layer, from, static_cast<double>(report.bytes) / (1U << 30U),
                  report.rel_l2 ? fmt::format(", probe rel L2 {:.6f}", *report.rel_l2) : std::string(),
                  report.seconds, report.landing_seconds));
}

// Before a byte of a tensor is read.
void check_source(const Refillable& old, const checkpoint::Checkpoint& from) {
  const Layer& layer = old.layer;
  constexpr ErrorKind kind = ErrorKind::checkpoint;
  if (layer.adopted())
    fail(ErrorKind::usage,
         "its experts are an engine's: the engine writes new weights to where they lie, and the layer is "
         "refilled from these tensors");
  if (old.config != nullptr) require(another_model(from.config(), *old.config));
  (void)select_layers(from, {layer.index});
  const checkpoint::MoeLayer& source = from.layer(layer.index);
  require(another_kind(kind, source.kind(), layer.kind));
  if (layer.kind != ExpertKind::nvfp4) return;
  const bool weight_only = from.exported() == nullptr && source.weight_only();
  require(another_input(kind, weight_only ? op::Input::bf16 : old.options.build.input, layer.input));
}

// The nine (two) tensors, by name.
struct Named {
  std::string_view name;
  const TensorView* tensor;
};
std::vector<Named> named(const layout::Nvfp4View& v) {
  return {{"w13", &v.w13},
          {"w13_sf", &v.w13_sf},
          {"w2", &v.w2},
          {"w2_sf", &v.w2_sf},
          {"g1_alphas", &v.g1_alphas},
          {"g1_scale_c", &v.g1_scale_c},
          {"g2_alphas", &v.g2_alphas},
          {"a1_gscale", &v.a1_gscale},
          {"a2_gscale", &v.a2_gscale}};
}
std::vector<Named> named(const layout::Bf16View& v) { return {{"w13", &v.w13}, {"w2", &v.w2}}; }

// An engine's tensors that were adopted are written by the engine: kerf's own must then be made anew of them.
template <typename View>
Verdict elsewhere(const View& got, const View& wanted) {
  const std::vector<Named> g = named(got);
  const std::vector<Named> w = named(wanted);
  for (std::size_t i = 0; i < g.size(); ++i)
    if (g[i].tensor->bytes.data() != w[i].tensor->bytes.data())
      return because(ErrorKind::usage,
                     "{} is another tensor than the one that was adopted: the engine writes new weights to "
                     "where the old ones lie, and the layer is refilled from there",
                     g[i].name);
  return std::nullopt;
}

// Weights must be where they will be copied to by this rank.
template <typename View>
Verdict wrong_memory(const View& view, bool on_device) {
  if (cuda::on_device(view.w13.bytes.data()) == on_device) return std::nullopt;
  return because(ErrorKind::unsupported, "w13 lies in {} memory, wanted {} memory, as the layer's own does",
                 on_device ? "host" : "device", on_device ? "device" : "host");
}

void check_source(const Refillable& old, const StockLayer& source, const Rank& rank) {
  const Layer& layer = old.layer;
  constexpr ErrorKind kind = ErrorKind::unsupported;
  if (source.index != layer.index)
    fail(ErrorKind::usage, "the source is layer {}, wanted layer {}", source.index, layer.index);
  if (old.block != nullptr)
    fail(kind,
         "it was built with a block around its experts, whose weights an engine's layer does not bring: "
         "refill it from a checkpoint");
  const bool on_device = rank.device != nullptr;
  if (const auto* nvfp4 = std::get_if<layout::Nvfp4View>(&source.experts)) {
    require(another_kind(kind, ExpertKind::nvfp4, layer.kind));
    require(another_input(kind, source.input, layer.input));
    if (layer.adopted()) return require(elsewhere(*nvfp4, layer.nvfp4()));
    require(wrong_memory(*nvfp4, on_device));
  } else if (const auto* bf16 = std::get_if<layout::Bf16View>(&source.experts)) {
    require(another_kind(kind, ExpertKind::bf16, layer.kind));
    if (layer.adopted()) return require(elsewhere(*bf16, layer.bf16()));
    require(wrong_memory(*bf16, on_device));
  }
}

}  // namespace

RefillReport refill(const Refillable& old, const checkpoint::Checkpoint& source, const Rank& rank) {
  double seconds = 0;
  RefillReport report;
  {
    const Timing timing(seconds);
    const std::string where = fmt::format("layer {}", old.layer.index);
    BuildOptions loading = old.options.build;
    loading.layers = {old.layer.index};
    loading.progress = {};
    loading.fit = fit_of(source, loading.fit);
    const checkpoint::Checkpoint from = of_rank(source, loading.slices, loading.fit, rank);
    const std::int64_t in_use = internal::in_use_of_all(old.options, rank);
    comm::agreed(rank.group, "checking what to refill from", [&] {
      comm::in_context(fmt::format("{}: {}", shown(from.directory().string()), where),
                       [&] { check_source(old, from); });
      RuntimeOptions one = old.options;
      one.build = loading;
      one.max_tokens = 1;
      comm::in_context("the refill of " + where,
                       [&] { require(internal::no_room_for(from, loading.layers, one, rank, in_use)); });
    });
    Fresh fresh;
    fresh.layer = std::move(decode::load(from, loading, rank).front());
    cut_and_probe(fresh, old, rank);
    const std::vector<LayerBlock> block =
        build_blocks(from, loading.layers, old.block != nullptr ? old.options.block : BlockKind::none, rank);
    report = land(old, fresh, block.empty() ? nullptr : &block.front(), ErrorKind::checkpoint, rank);
  }
  report.seconds = seconds;
  say(report, shown(source.directory().string()), rank);
  return report;
}

RefillReport refill(const Refillable& old, const StockLayer& source, const Rank& rank) {
  double seconds = 0;
  RefillReport report;
  {
    const Timing timing(seconds);
    comm::agreed(rank.group, "checking what to refill from", [&] {
      comm::in_context(fmt::format("layer {}", old.layer.index), [&] { check_source(old, source, rank); });
    });
    Fresh fresh;
    fresh.layer = std::move(decode::adopt({&source, 1}, old.model, old.options.build.backend, rank).front());
    cut_and_probe(fresh, old, rank);
    report = land(old, fresh, nullptr, ErrorKind::unsupported, rank);
  }
  report.seconds = seconds;
  say(report, "an engine's tensors", rank);
  return report;
}

}  // namespace kerf::decode
