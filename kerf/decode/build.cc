#include "kerf/decode/build.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/base/function_ref.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/fit.h"
#include "kerf/decode/gated.h"
#include "kerf/decode/internal/upload.h"
#include "kerf/decode/scalars.h"
#include "kerf/layout/convert.h"
#include "kerf/layout/geometry.h"

namespace kerf::decode {

namespace {

using checkpoint::ExpertKind;
using checkpoint::Faults;

// Runs task(i) for i in [0, n) on the workers; throws what the lowest i threw, so that the message does not
// depend on who came first.
void for_each_expert(const Workers& workers, std::int64_t n, FunctionRef<void(std::int64_t)> task) {
  std::vector<Verdict> verdicts(static_cast<std::size_t>(n));
  workers.for_each(verdicts.size(), [&](std::size_t i, int) {
    verdicts[i] = attempt([&] { task(static_cast<std::int64_t>(i)); });
  });
  for (const Verdict& v : verdicts) require(v);
}

// The faults that all ranks found, by rank; collective.
Faults merged(comm::Group& group, const Faults& mine) {
  Faults all;
  for (const std::string& json : comm::gather_text(group, mine.to_json(), "merging the ranks' faults"))
    all.merge(Faults::from_json(json));
  return all;
}

// Where converted experts go by way of page-locked memory, for ranks whose weights lie on a device.
struct Uploads {
  internal::Upload<layout::Nvfp4Experts> nvfp4;
  internal::Upload<layout::Bf16Experts> bf16;
};

layout::LogicalNvfp4<const std::byte> logical(const checkpoint::ExpertViews& v, const layout::Nvfp4Experts&) {
  return {v.gate.bytes, v.gate_sf.bytes, v.up.bytes, v.up_sf.bytes, v.down.bytes, v.down_sf.bytes};
}
layout::LogicalBf16<const std::byte> logical(const checkpoint::ExpertViews& v, const layout::Bf16Experts&) {
  return {v.gate.bytes, v.up.bytes, v.down.bytes};
}

// Experts [first, first + count) of a tensor that holds all of `out`'s.
std::span<std::byte> part_of(const tensor::Tensor& whole, std::int64_t first, std::int64_t count,
                             std::int64_t all) {
  const std::size_t one = whole.bytes().size() / static_cast<std::size_t>(all);
  return whole.bytes().subspan(one * static_cast<std::size_t>(first), one * static_cast<std::size_t>(count));
}
layout::ConvertedNvfp4<std::byte> converted(const layout::Nvfp4Experts& out, std::int64_t first,
                                            std::int64_t count) {
  const std::int64_t n = out.shape.experts;
  return {part_of(out.w13, first, count, n), part_of(out.w13_sf, first, count, n),
          part_of(out.w2, first, count, n), part_of(out.w2_sf, first, count, n)};
}
layout::ConvertedBf16<std::byte> converted(const layout::Bf16Experts& out, std::int64_t first,
                                           std::int64_t count) {
  return {part_of(out.w13, first, count, out.shape.experts),
          part_of(out.w2, first, count, out.shape.experts)};
}

// Experts [first, first + out.shape.experts) of the layer, made of experts of width `intermediate`. Experts
// that the file has in another order are copied before they are converted, one a worker at once.
template <typename Experts>
void convert(const checkpoint::MoeLayer& from, std::int64_t intermediate, std::int64_t first,
             const Experts& out, const Workers& workers) {
  const std::int64_t all = out.shape.experts;
  const std::int64_t at_once = from.copies() ? std::min<std::int64_t>(all, workers.size()) : all;
  for (std::int64_t begin = 0; begin < all; begin += at_once) {
    const std::int64_t count = std::min(at_once, all - begin);
    std::vector<checkpoint::ExpertViews> views(static_cast<std::size_t>(count));
    for_each_expert(workers, count, [&](std::int64_t e) {
      views[static_cast<std::size_t>(e)] = from.expert(first + begin + e);
    });
    std::vector<decltype(logical(views.front(), out))> experts;
    experts.reserve(views.size());
    for (const checkpoint::ExpertViews& v : views) experts.push_back(logical(v, out));
    layout::convert_all(experts, out.shape.hidden, intermediate, out.shape.intermediate,
                        converted(out, begin, count), workers);
  }
}

// The same into `out`, wherever its weights lie.
template <typename Experts>
void place(const checkpoint::MoeLayer& from, std::int64_t intermediate, const Experts& out,
           internal::Upload<Experts>* upload, const Workers& workers) {
  if (upload == nullptr) return convert(from, intermediate, out.first_expert, out, workers);
  upload->fill(out, [&](std::int64_t first, const Experts& part) {
    convert(from, intermediate, out.first_expert + first, part, workers);
  });
}

// The checkpoint has seen to it that all layers or none have the norm, and that it is BF16 [H].
std::optional<tail::RouteNorm> read_norm(const checkpoint::MoeLayer& from,
                                         const checkpoint::ModelConfig& config) {
  if (!config.post_norm) return std::nullopt;
  const tensor::TensorView weight = from.find(checkpoint::post_norm_name).value();
  std::vector<std::uint16_t> stored(static_cast<std::size_t>(config.hidden));
  std::memcpy(stored.data(), weight.bytes.data(), weight.bytes.size());  // files do not align
  return tail::RouteNorm{tail::effective_gain(stored, static_cast<float>(config.post_norm->gain_center)),
                         config.post_norm->gain_before_norm, static_cast<float>(config.post_norm->eps)};
}

Whole whole_experts(const checkpoint::ModelConfig& config, ExpertKind kind, int ranks,
                    const BuildOptions& options) {
  return {arithmetic_of(kind, options.input), config.experts / ranks, config.hidden, config.intermediate,
          options.slices};
}

// Everything that can be refused without touching a weight.
void check_shapes(const checkpoint::Checkpoint& from, const std::vector<std::int64_t>& layers, int ranks,
                  const BuildOptions& options) {
  const checkpoint::ModelConfig& config = from.config();
  const op::Backend& backend = op::backend(options.backend);
  require(layout::placeable(config.experts, ranks));
  for (const std::int64_t index : layers)
    comm::in_context(fmt::format("layer {}", index), [&] {
      require(unfit(backend, whole_experts(config, from.layer(index).kind(), ranks, options), options.fit));
    });
}

// The global scales of all NVFP4 layers, an empty entry for the others. What stands beside the experts (norm,
// bias) is looked at too: each rank reads all of it.
std::vector<checkpoint::LayerScales> read_scales(const checkpoint::Checkpoint& from,
                                                 const std::vector<std::int64_t>& layers) {
  std::vector<checkpoint::LayerScales> scales;
  Faults faults;
  for (const std::int64_t index : layers) {
    const checkpoint::MoeLayer& layer = from.layer(index);
    scales.push_back(layer.kind() == ExpertKind::nvfp4 ? layer.scales(faults) : checkpoint::LayerScales{});
    layer.scan_extras(faults);
  }
  require(faults.verdict());
  return scales;
}

// What can be wrong with the values of this rank's experts (block scales, BF16 weights), then everybody's
// faults.
void check_values(const checkpoint::MoeLayer& from, std::int64_t first, std::int64_t count,
                  const Rank& rank) {
  std::vector<Faults> found(static_cast<std::size_t>(count));
  comm::agreed(rank.group, fmt::format("checking the values of layer {}", from.index()), [&] {
    for_each_expert(rank.workers, count, [&](std::int64_t e) {
      Faults& faults = found[static_cast<std::size_t>(e)];
      if (from.kind() == ExpertKind::nvfp4)
        from.scan_block_scales(first + e, faults);
      else
        from.scan_values(first + e, faults);
    });
  });
  Faults mine;
  for (const Faults& f : found) mine.merge(f);
  require(merged(rank.group, mine).verdict());
}

Layer build_layer(const checkpoint::Checkpoint& from, const checkpoint::MoeLayer& source,
                  const checkpoint::LayerScales& scales, const BuildOptions& options, const Rank& rank,
                  Uploads* uploads) {
  const checkpoint::ModelConfig& config = from.config();
  const op::Backend& backend = op::backend(options.backend);
  const layout::ExpertsShape shape =
      whole_experts(config, source.kind(), rank.group.size(), options).shape(options.fit);
  const std::int64_t first = shape.experts * rank.group.rank();
  Layer layer;
  layer.index = source.index();
  layer.kind = source.kind();
  layer.norm = read_norm(source, config);
  if (layer.kind == ExpertKind::nvfp4) {
    layer.input = scales.weight_only ? op::Input::bf16 : options.input;
    layout::Nvfp4Experts experts(rank.weights(), rank.memory, shape, first);
    place(source, config.intermediate, experts, uploads != nullptr ? &uploads->nvfp4 : nullptr, rank.workers);
    write_scalars(scales, layer.input, experts);
    layer.own_gated = SwigluValues(config.swiglu, scales, layer.input, first, shape.experts);
    layer.gated = layer.own_gated.all();
    layer.ep =
        backend.bind(op::Nvfp4Args{experts.view(), config.experts, config.top_k, layer.input, layer.gated});
    layer.stock = std::move(experts);
  } else {
    layer.input = op::Input::bf16;
    layout::Bf16Experts experts(rank.weights(), shape, first);
    place(source, config.intermediate, experts, uploads != nullptr ? &uploads->bf16 : nullptr, rank.workers);
    layer.own_gated = SwigluValues(config.swiglu, shape.experts);
    layer.gated = layer.own_gated.all();
    layer.ep = backend.bind(op::Bf16Args{experts.view(), config.experts, config.top_k, layer.gated});
    layer.stock = std::move(experts);
  }
  return layer;
}

void say(const Rank& rank, const checkpoint::MoeLayer& layer, const checkpoint::LayerScales& scales) {
  for (const std::string& note : checkpoint::notes_of(scales))
    rank.info(fmt::format("layer {}: {}", layer.index(), note));
}

}  // namespace

std::vector<std::int64_t> select_layers(const checkpoint::Checkpoint& from,
                                        const std::vector<std::int64_t>& wanted) {
  std::vector<std::int64_t> layers = wanted.empty() ? from.moe_layers() : wanted;
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  if (layers.empty()) fail(ErrorKind::checkpoint, "{} has no routed experts", from.directory().string());
  for (const std::int64_t index : layers) (void)from.layer(index);  // throws where there is none
  return layers;
}

std::vector<Layer> build(const checkpoint::Checkpoint& from, const BuildOptions& options, const Rank& rank,
                         Startup* startup) {
  const FpGuard guard;  // scales, gains
  Startup unwanted;
  Startup& times = startup != nullptr ? *startup : unwanted;
  std::vector<std::int64_t> selected;
  std::vector<checkpoint::LayerScales> scales;
  comm::agreed(rank.group, "checking the checkpoint", [&] {
    const Timing timing(times.check);
    selected = select_layers(from, options.layers);
    check_shapes(from, selected, rank.group.size(), options);
    scales = read_scales(from, selected);
  });

  std::optional<Uploads> uploads;
  if (rank.device != nullptr)
    comm::agreed(rank.group, "preparing the device's uploads", [&] { uploads.emplace(); });
  const std::int64_t count = from.config().experts / rank.group.size();
  std::vector<Layer> layers;
  layers.reserve(selected.size());
  for (std::size_t i = 0; i < selected.size(); ++i) {
    const checkpoint::MoeLayer& source = from.layer(selected[i]);
    say(rank, source, scales[i]);
    {
      const Timing timing(times.check);
      check_values(source, count * rank.group.rank(), count, rank);
    }
    const Timing timing(times.convert);
    comm::agreed(rank.group, fmt::format("loading layer {}", selected[i]), [&] {
      // attempt: what is no Error gets the layer too.
      if (const Verdict v = attempt([&] {
            layers.push_back(
                build_layer(from, source, scales[i], options, rank, uploads ? &*uploads : nullptr));
          }))
        fail(v->kind, "layer {}: {}", selected[i], v->text);
    });
    times.bytes += layers.back().expert_bytes(Mode::ep) * count;
    if (options.progress)
      options.progress(static_cast<std::int64_t>(i) + 1, static_cast<std::int64_t>(selected.size()));
  }
  return layers;
}

}  // namespace kerf::decode
