#include "kerf/decode/build.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <span>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/base/function_ref.h"
#include "kerf/checkpoint/read_ahead.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/fit.h"
#include "kerf/decode/gated.h"
#include "kerf/decode/internal/upload.h"
#include "kerf/decode/scalars.h"
#include "kerf/decode/start_facts.h"
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

// What part [first, end) of n experts' bytes is.
std::span<std::byte> part_of(const tensor::Tensor& all, std::int64_t n, std::int64_t first,
                             std::int64_t end) {
  const std::size_t each = all.bytes().size() / static_cast<std::size_t>(n);
  return all.bytes().subspan(each * static_cast<std::size_t>(first),
                             each * static_cast<std::size_t>(end - first));
}

// Experts [first, end) of the layer. Those that are turned in memory when they are read first are so here,
// each by a worker: of those who convert an expert together, all but one would wait.
std::vector<checkpoint::ExpertFiles> files_of(const checkpoint::MoeLayer& layer, std::int64_t first,
                                              std::int64_t end, const Workers& workers) {
  std::vector<checkpoint::ExpertFiles> out;
  for (std::int64_t e = first; e < end; ++e) out.push_back(layer.expert_files(e));
  if (!layer.copies()) return out;
  for_each_expert(workers, end - first, [&](std::int64_t e) {
    const checkpoint::ExpertFiles& f = out[static_cast<std::size_t>(e)];
    for (const auto* t : {&f.gate, &f.gate_sf, &f.up, &f.up_sf, &f.down, &f.down_sf}) {
      std::array<std::byte, 1> some{};
      if (t->source.bytes() > 0) t->source.read(0, some);
    }
  });
  return out;
}

// How experts come to a rank that may not have their files.
struct Sending {
  std::int64_t at_once = 0;  // 0: files are read
  std::function<void(std::int64_t first, std::int64_t end)> bring;
};

// Experts [from + first, from + end) of the layer, of width `intermediate`, into experts [first, end) of
// `out`.
void convert_part(const checkpoint::MoeLayer& layer, std::int64_t intermediate, std::int64_t from,
                  const layout::Nvfp4Experts& out, std::int64_t first, std::int64_t end,
                  const Workers& workers) {
  std::vector<layout::StoredNvfp4> experts;
  for (const checkpoint::ExpertFiles& f : files_of(layer, from + first, from + end, workers))
    experts.push_back(
        {f.gate.source, f.gate_sf.source, f.up.source, f.up_sf.source, f.down.source, f.down_sf.source});
  const auto part = [&](const tensor::Tensor& t) { return part_of(t, out.shape.experts, first, end); };
  layout::convert_all(experts, out.shape.hidden, intermediate, out.shape.intermediate,
                      {part(out.w13), part(out.w13_sf), part(out.w2), part(out.w2_sf)}, workers);
}

void convert_part(const checkpoint::MoeLayer& layer, std::int64_t intermediate, std::int64_t from,
                  const layout::Bf16Experts& out, std::int64_t first, std::int64_t end,
                  const Workers& workers) {
  std::vector<layout::StoredBf16> experts;
  for (const checkpoint::ExpertFiles& f : files_of(layer, from + first, from + end, workers))
    experts.push_back({f.gate.source, f.up.source, f.down.source});
  const auto part = [&](const tensor::Tensor& t) { return part_of(t, out.shape.experts, first, end); };
  layout::convert_all(experts, out.shape.hidden, intermediate, out.shape.intermediate,
                      layout::ConvertedBf16<std::byte>{part(out.w13), part(out.w2)}, workers);
}

// Collective where some ranks do not have the files; elsewhere nothing. What is asked for, of a few experts.
void bring(const checkpoint::Checkpoint& from, std::span<const tensor::Source> sources,
           std::string_view what) {
  if (from.carrier() == nullptr) return;
  for (const tensor::Source& s : sources)
    if (s.bytes() > 0) s.reader()->will_need(s.begin(), s.bytes());
  from.carrier()->bring(false, what);
}

std::vector<tensor::Source> sources_of(const checkpoint::MoeLayer& layer, std::int64_t first,
                                       std::int64_t end) {
  std::vector<tensor::Source> out;
  for (std::int64_t e = first; e < end; ++e) {
    const checkpoint::ExpertFiles f = layer.expert_files(e);
    for (const auto* t : {&f.gate, &f.gate_sf, &f.up, &f.up_sf, &f.down, &f.down_sf})
      out.push_back(t->source);
  }
  return out;
}

// How many experts a rank that is sent them is sent at a time: the same on every rank.
std::int64_t sent_at_once(const checkpoint::Checkpoint& from, const checkpoint::MoeLayer& layer,
                          std::int64_t count) {
  if (from.carrier() == nullptr) return count;
  return std::clamp<std::int64_t>(from.carrier()->window() / std::max<std::int64_t>(1, layer.expert_bytes()),
                                  1, count);
}

// Experts [first, first + out.shape.experts) of the layer, a few at a time: after each few, `done` hears of
// them. Those that are turned in memory first: one a worker.
template <typename Experts>
void convert(const checkpoint::MoeLayer& from, std::int64_t intermediate, std::int64_t first,
             const Experts& out, const Workers& workers, const Sending& sending,
             FunctionRef<void(std::int64_t experts)> done) {
  constexpr std::int64_t few_bytes = std::int64_t{256} << 20;
  const std::int64_t few =
      sending.at_once > 0 ? sending.at_once
      : from.copies()     ? workers.size()
                      : std::max<std::int64_t>(1, few_bytes / std::max<std::int64_t>(1, from.expert_bytes()));
  for (std::int64_t at = 0; at < out.shape.experts; at += few) {
    const std::int64_t end = std::min(at + few, out.shape.experts);
    if (sending.at_once > 0) sending.bring(first + at, first + end);
    convert_part(from, intermediate, first, out, at, end, workers);
    done(end - at);
  }
}

// The same into `out`, wherever its weights lie.
template <typename Experts>
void place(const checkpoint::MoeLayer& from, std::int64_t intermediate, const Experts& out,
           internal::Upload<Experts>* upload, const Workers& workers, const Sending& sending,
           FunctionRef<void(std::int64_t experts)> done) {
  if (upload == nullptr) return convert(from, intermediate, out.first_expert, out, workers, sending, done);
  upload->fill(out, [&](std::int64_t first, const Experts& part) {
    convert(from, intermediate, out.first_expert + first, part, workers, sending, done);
  });
}

}  // namespace

std::optional<tail::RouteNorm> read_norm(const checkpoint::MoeLayer& from,
                                         const checkpoint::ModelConfig& config) {
  if (!config.post_norm) return std::nullopt;
  std::vector<std::uint16_t> stored(static_cast<std::size_t>(config.hidden));
  from.stored(checkpoint::post_norm_name)->source.read(0, std::as_writable_bytes(std::span(stored)));
  return tail::RouteNorm{tail::effective_gain(stored, static_cast<float>(config.post_norm->gain_center)),
                         config.post_norm->gain_before_norm, static_cast<float>(config.post_norm->eps)};
}

namespace {

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
// faults. This is the first time that they are read.
void check_values(const checkpoint::Checkpoint& checkpoint, const checkpoint::MoeLayer& from,
                  std::int64_t first, std::int64_t count, const Rank& rank,
                  std::optional<checkpoint::ReadAhead>& ahead) {
  std::vector<Faults> found(static_cast<std::size_t>(count));
  const std::string what = fmt::format("checking the values of layer {}", from.index());
  const bool nvfp4 = from.kind() == ExpertKind::nvfp4;
  const std::int64_t few = sent_at_once(checkpoint, from, count);
  Verdict mine_failed;
  for (std::int64_t at = 0; at < count; at += few) {
    const std::int64_t end = std::min(at + few, count);
    if (checkpoint.carrier() != nullptr) {
      std::vector<tensor::Source> sources;
      if (!nvfp4) sources = sources_of(from, first + at, first + end);
      for (std::int64_t e = at; nvfp4 && e < end; ++e)
        for (const tensor::Source& s : from.stored_block_scales(first + e)) sources.push_back(s);
      bring(checkpoint, sources, what);
    }
    if (mine_failed) continue;
    mine_failed = attempt([&] {
      for_each_expert(rank.workers, end - at, [&](std::int64_t i) {
        const std::int64_t e = at + i;
        Faults& faults = found[static_cast<std::size_t>(e)];
        if (nvfp4)
          from.scan_block_scales(first + e, faults);
        else
          from.scan_values(first + e, faults);
        if (ahead) ahead->advance(from.expert_bytes());
      });
    });
  }
  require(comm::agree(rank.group, mine_failed, what));
  Faults mine;
  for (const Faults& f : found) mine.merge(f);
  require(merged(rank.group, mine).verdict());
}

Layer build_layer(const checkpoint::Checkpoint& from, const checkpoint::MoeLayer& source,
                  const checkpoint::LayerScales& scales, const BuildOptions& options, const Rank& rank,
                  Uploads* uploads, const Sending& sending, FunctionRef<void(std::int64_t experts)> done) {
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
    place(source, config.intermediate, experts, uploads != nullptr ? &uploads->nvfp4 : nullptr, rank.workers,
          sending, done);
    write_scalars(scales, layer.input, experts);
    layer.own_gated = SwigluValues(config.swiglu, scales, layer.input, first, shape.experts);
    layer.gated = layer.own_gated.all();
    layer.ep =
        backend.bind(op::Nvfp4Args{experts.view(), config.experts, config.top_k, layer.input, layer.gated});
    layer.stock = std::move(experts);
  } else {
    layer.input = op::Input::bf16;
    layout::Bf16Experts experts(rank.weights(), shape, first);
    place(source, config.intermediate, experts, uploads != nullptr ? &uploads->bf16 : nullptr, rank.workers,
          sending, done);
    layer.own_gated = SwigluValues(config.swiglu, shape.experts);
    layer.gated = layer.own_gated.all();
    layer.ep = backend.bind(op::Bf16Args{experts.view(), config.experts, config.top_k, layer.gated});
    layer.stock = std::move(experts);
  }
  return layer;
}

}  // namespace

void say_scales(const Rank& rank, const checkpoint::MoeLayer& layer, const checkpoint::LayerScales& scales) {
  for (const std::string& note : checkpoint::notes_of(scales))
    rank.info(fmt::format("layer {}: {}", layer.index(), note));
  for (const std::string& warning : checkpoint::warnings_of(scales))
    rank.warning(fmt::format("layer {}: {}", layer.index(), warning));
}

std::vector<std::int64_t> select_layers(const checkpoint::Checkpoint& from,
                                        const std::vector<std::int64_t>& wanted) {
  std::vector<std::int64_t> layers = wanted.empty() ? from.moe_layers() : wanted;
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  if (layers.empty()) fail(ErrorKind::checkpoint, "{} has no routed experts", from.directory().string());
  if (wanted.empty() && !from.layer_faults().empty()) {
    std::erase_if(layers, [&](std::int64_t l) { return !from.config().expert_layers.may_be_in(l); });
    fail(ErrorKind::checkpoint, "{}: {}; layers that are sound run where they are named: {}",
         from.directory().string(), from.layer_faults().text(), fmt::join(layers, ","));
  }
  for (const std::int64_t index : layers) {
    (void)from.layer(index);  // throws where there is none
    if (!from.config().expert_layers.may_be_in(index))
      fail(ErrorKind::checkpoint, "{}: layer {}: routed experts in a layer that has none ({})",
           (from.directory() / "config.json").string(), index, from.config().expert_layers.said_by);
  }
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
    if (from.carrier() != nullptr && rank.device != nullptr)
      fail(ErrorKind::unsupported, "experts on a device are read from files, on every rank");
  });
  if (checkpoint::Carrier* carrier = from.carrier()) {
    carrier->rehearse([&] { (void)read_scales(from, selected); });
    for (const std::int64_t index : selected)
      carrier->rehearse([&] { (void)read_norm(from.layer(index), from.config()); });
    carrier->bring(true, "scales and norms");
  }
  comm::agreed(rank.group, "checking the checkpoint", [&] {
    const Timing timing(times.check);
    scales = read_scales(from, selected);
  });
  require_same_scales(rank.group, selected, scales);

  const std::int64_t count = from.config().experts / rank.group.size();
  std::optional<checkpoint::ReadAhead> ahead;
  if (from.carrier() == nullptr) ahead.emplace(from, selected, count * rank.group.rank(), count);
  std::int64_t all_bytes = 0;
  for (const std::int64_t index : selected)
    all_bytes += from.layer(index).expert_bytes() * from.config().experts;
  std::int64_t done_bytes = 0;  // all ranks are taken to be as far as this one
  std::optional<Uploads> uploads;
  comm::agreed(rank.group, "preparing to load", [&] {
    if (rank.device != nullptr) uploads.emplace();
    if (options.progress) options.progress(0, all_bytes);
  });
  std::vector<Layer> layers;
  layers.reserve(selected.size());
  for (std::size_t i = 0; i < selected.size(); ++i) {
    const checkpoint::MoeLayer& source = from.layer(selected[i]);
    say_scales(rank, source, scales[i]);
    {
      const Timing timing(times.check);
      check_values(from, source, count * rank.group.rank(), count, rank, ahead);
    }
    const auto converted = [&](std::int64_t experts) {
      done_bytes += source.expert_bytes() * experts * rank.group.size();
      if (options.progress) options.progress(done_bytes, all_bytes);
    };
    const Timing timing(times.convert);
    const std::string what = fmt::format("loading layer {}", selected[i]);
    comm::agreed(rank.group, what, [&] {
      // attempt: what is no Error gets the layer too.
      std::int64_t brought = 0;
      Sending sending;
      if (from.carrier() != nullptr)
        sending = {sent_at_once(from, source, count), [&](std::int64_t first, std::int64_t end) {
                     ++brought;
                     bring(from, sources_of(source, first, end), what);
                   }};
      const Verdict v = attempt([&] {
        layers.push_back(build_layer(from, source, scales[i], options, rank, uploads ? &*uploads : nullptr,
                                     sending, converted));
        from.require_unchanged();
      });
      // To bring is collective: a rank that has failed goes on with it and asks for nothing.
      while (sending.at_once > 0 && brought * sending.at_once < count) {
        ++brought;
        bring(from, {}, what);
      }
      if (v) fail(v->kind, "layer {}: {}", selected[i], v->text);
    });
    times.bytes += layers.back().expert_bytes(Mode::ep) * count;
  }
  return layers;
}

}  // namespace kerf::decode
