#include "kerf/decode/exported.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/checkpoint/export_file.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/fit.h"
#include "kerf/decode/gated.h"
#include "kerf/decode/internal/upload.h"
#include "kerf/decode/scalars.h"
#include "kerf/decode/source_digest.h"
#include "kerf/decode/start_facts.h"

namespace kerf::decode {

namespace {

using checkpoint::ExpertKind;
using checkpoint::ExportFacts;
using checkpoint::ExportFile;
using checkpoint::ExportPlacement;
using checkpoint::ExportReader;
using checkpoint::NamedShape;

std::string in_words(const ExportPlacement& p) {
  if (p.tp == 1) return fmt::format("{} rank{} of whole experts", p.ranks, p.ranks == 1 ? "" : "s");
  return fmt::format("{} ranks of slices (EP {} x TP {})", p.ranks, p.ep, p.tp);
}

// Reads the weights of `out`, wherever they lie, and checks their digests and values.
template <typename Experts>
void read(const ExportFile& file, const checkpoint::MoeLayer& layer, const Holding& held, const Experts& out,
          internal::Upload<Experts>* upload, const Workers& workers) {
  std::vector<ExportReader> readers;
  for (NamedShape& t : exported_tensors(held, layer.kind(), layer.prefix()))
    readers.emplace_back(file, std::move(t.name));
  const auto part_of = [&](std::int64_t first, const Experts& part) {
    const auto to = internal::weights_of(part);
    for (std::size_t i = 0; i < to.size(); ++i) readers[i].read(first, part.shape.experts, to[i], workers);
  };
  if (upload == nullptr)
    part_of(0, out);
  else
    upload->fill(out, part_of);
  checkpoint::Faults faults;
  for (const ExportReader& reader : readers) {
    reader.finish();
    reader.report(layer.index(), held.first(layer.kind()), faults);
  }
  require(faults.verdict());
}

struct Uploads {
  internal::Upload<layout::Nvfp4Experts> nvfp4;
  internal::Upload<layout::Bf16Experts> bf16;
};

Layer load_layer(const checkpoint::Checkpoint& from, const checkpoint::MoeLayer& source,
                 const checkpoint::LayerScales& scales, const BuildOptions& options, const Rank& rank,
                 Uploads* uploads) {
  const checkpoint::ModelConfig& config = from.config();
  const ExportFile& file = *from.exported();
  const op::Backend& backend = op::backend(options.backend);
  const Holding held = holding(file.facts(), config);
  const layout::ExpertsShape shape = held.shape(source.kind());
  const std::int64_t first = held.first(source.kind());
  Layer layer;
  layer.index = source.index();
  layer.kind = source.kind();
  layer.norm = read_norm(source, config);
  if (layer.kind == ExpertKind::bf16) {
    layer.input = op::Input::bf16;
    layout::Bf16Experts experts(rank.weights(), shape, first);
    read(file, source, held, experts, uploads != nullptr ? &uploads->bf16 : nullptr, rank.workers);
    layer.own_gated = SwigluValues(config.swiglu, shape.experts);
    layer.gated = layer.own_gated.all();
    layer.ep = backend.bind(op::Bf16Args{experts.view(), config.experts, config.top_k, layer.gated});
    layer.stock = std::move(experts);
    return layer;
  }
  layer.input = scales.weight_only ? op::Input::bf16 : options.input;
  layout::Nvfp4Experts experts(rank.weights(), rank.memory, shape, first);
  read(file, source, held, experts, uploads != nullptr ? &uploads->nvfp4 : nullptr, rank.workers);
  write_scalars(scales, layer.input, experts);
  layer.own_gated = SwigluValues(config.swiglu, scales, layer.input, first, shape.experts);
  auto bound = backend.bind(
      op::Nvfp4Args{experts.view(), config.experts, config.top_k, layer.input, layer.own_gated.all()});
  if (holds_slices(from)) {
    layer.tp = std::move(bound);
    layer.sliced = std::move(experts);
    layer.whole_width = file.facts().width;
  } else {
    layer.ep = std::move(bound);
    layer.stock = std::move(experts);
    layer.gated = layer.own_gated.all();
  }
  return layer;
}

// What is read of every layer besides its experts: checked against its digests, and looked at as build()
// does.
std::vector<checkpoint::LayerScales> read_scales(const checkpoint::Checkpoint& from,
                                                 const std::vector<std::int64_t>& layers, const Rank& rank) {
  const ExportFile& file = *from.exported();
  std::vector<checkpoint::LayerScales> scales;
  checkpoint::Faults faults;
  for (const std::int64_t index : layers) {
    const checkpoint::MoeLayer& layer = from.layer(index);
    const auto check = [&](std::string_view suffix) {
      if (const std::string name = layer.prefix() + std::string(suffix); file.has(name))
        file.check(name, rank.workers);
    };
    check(checkpoint::exported_ws2);
    check(checkpoint::exported_inputs);
    std::ranges::for_each(checkpoint::beside_experts, check);
    scales.push_back(layer.kind() == ExpertKind::nvfp4 ? layer.scales(faults) : checkpoint::LayerScales{});
    layer.scan_extras(faults);
  }
  require(faults.verdict());
  return scales;
}

void check_shapes(const checkpoint::Checkpoint& from, const std::vector<std::int64_t>& layers,
                  const BuildOptions& options) {
  const op::Backend& backend = op::backend(options.backend);
  const Holding held = holding(from.exported()->facts(), from.config());
  for (const std::int64_t index : layers)
    comm::in_context(fmt::format("layer {}", index), [&] {
      const checkpoint::MoeLayer& layer = from.layer(index);
      require(backend.supports(arithmetic_of(layer.kind(), options.input), held.shape(layer.kind())));
      // Before memory is taken for them.
      for (const NamedShape& wanted : exported_tensors(held, layer.kind(), layer.prefix()))
        require_tensor(*from.exported(), wanted);
    });
}

// Collective: what all ranks' files say alike.
void require_shared(const checkpoint::Checkpoint& mine, comm::Group& group) {
  const std::string text = mine.exported() != nullptr ? mine.exported()->shared_text() : std::string();
  const checkpoint::Digest digest = checkpoint::digest_of(std::as_bytes(std::span(text)));
  const std::vector<checkpoint::Digest> all = comm::gathered(
      group, std::span<const checkpoint::Digest>(&digest, 1), "what the export's files have in common");
  if (std::ranges::all_of(all, [&](const checkpoint::Digest& d) { return d == all.front(); })) return;
  const std::vector<std::string> texts = comm::gather_text(group, text, "what the export's files say");
  const auto ranks = static_cast<std::int64_t>(texts.size());
  for (std::int64_t r = 1; r < ranks; ++r)
    require(checkpoint::shared_differs(
        texts.front(), mine.directory() / checkpoint::export_file_name(0, ranks),
        texts[static_cast<std::size_t>(r)], mine.directory() / checkpoint::export_file_name(r, ranks)));
}

}  // namespace

Holding holding(const ExportFacts& facts, const checkpoint::ModelConfig& config) {
  const ExportPlacement& p = facts.placement;
  Holding out;
  out.nvfp4 = {config.experts / (p.tp > 1 ? p.ep : p.ranks), config.hidden, 0};
  if (facts.width > 0) out.slice = layout::slice_of(facts.width, p.tp, facts.rank % p.tp);
  out.nvfp4.intermediate = out.slice.width;
  out.bf16 = {config.experts / p.ranks, config.hidden, facts.bf16_width};
  out.first_nvfp4 = out.nvfp4.experts * (p.tp > 1 ? facts.rank / p.tp : facts.rank);
  out.first_bf16 = out.bf16.experts * facts.rank;
  return out;
}

std::vector<NamedShape> exported_tensors(const Holding& held, ExpertKind kind, std::string_view prefix) {
  std::vector<NamedShape> out;
  const auto add = [&](const auto& weights) {
    for (const layout::WeightTensor& w : weights)
      out.push_back({fmt::format("{}{}{}", prefix, checkpoint::exported_experts, w.name), w.dtype, w.shape});
  };
  if (kind == ExpertKind::nvfp4)
    add(layout::nvfp4_weights(held.nvfp4));
  else
    add(layout::bf16_weights(held.bf16));
  return out;
}

void require_tensor(const ExportFile& file, const NamedShape& wanted) {
  const checkpoint::TensorEntry got = file.entry(wanted.name);
  if (got.dtype != wanted.dtype || got.shape != wanted.shape)
    fail(ErrorKind::checkpoint, "{}, {}: got {} {}, wanted {} {}", file.path().string(), wanted.name,
         tensor::name(got.dtype), got.shape.text(), tensor::name(wanted.dtype), wanted.shape.text());
}

layout::Fit fit_of(const checkpoint::Checkpoint& from, const layout::Fit& asked) {
  if (from.exported() == nullptr) return asked;
  const ExportFacts& facts = from.exported()->facts();
  return {asked.uneven || facts.uneven, asked.pad || facts.pad};
}

bool holds_slices(const checkpoint::Checkpoint& from) {
  return from.exported() != nullptr && from.exported()->facts().placement.tp > 1;
}

Verdict foreign(const checkpoint::Checkpoint& from, std::int64_t ranks, std::int64_t slices,
                const layout::Fit& fit) {
  if (from.exported() == nullptr) return std::nullopt;
  const ExportFacts& facts = from.exported()->facts();
  const ExportPlacement& p = facts.placement;
  const auto other = [&](const std::string& asked) {
    return because(ErrorKind::checkpoint, "{}: an export for {}, {}", from.directory().string(), in_words(p),
                   asked);
  };
  if (p.ranks != ranks)
    return other(fmt::format("and here are {}: start as many, or export for {}", ranks, ranks));
  if (p.tp > 1 && slices == 1)
    return other("which has no whole experts: start expert TP alone (--mode tp), or export whole experts");
  if (p.tp > 1 && p.tp != slices)
    return other(fmt::format("and wanted is EP {} x TP {}: start as it was exported, or export for that",
                             ranks / slices, slices));
  const checkpoint::ModelConfig& config = from.config();
  if (Verdict v = layout::placeable(config.experts, p.ranks)) return Reason{ErrorKind::checkpoint, v->text};
  for (const std::int64_t index : from.moe_layers()) {
    const bool nvfp4 = from.layer(index).kind() == ExpertKind::nvfp4;
    const std::int64_t wanted = layout::converted_width(config.intermediate, nvfp4 ? slices : 1, fit);
    const std::int64_t got = nvfp4 ? facts.width : facts.bf16_width;
    if (wanted != got)
      return other(fmt::format("layer {} in width {}, and wanted is {} (I = {}{}): export again", index, got,
                               wanted, config.intermediate, fit.pad ? ", with zeros added" : ""));
    // Hostile numbers end here: widths that cannot be cut so were not exported.
    if (Verdict v = nvfp4 ? layout::cuttable(config.hidden, got, p.tp, {true, false})
                          : layout::convertible_bf16(config.hidden, got))
      return Reason{ErrorKind::checkpoint, v->text};
  }
  return std::nullopt;
}

Verdict stale(const checkpoint::Checkpoint& from, const Workers& workers) {
  if (from.exported() == nullptr) return std::nullopt;
  const ExportFacts& facts = from.exported()->facts();
  std::error_code ignored;
  if (!std::filesystem::exists(std::filesystem::path(facts.source) / "config.json", ignored))
    return std::nullopt;
  std::string now;
  Verdict other;
  if (Verdict v = attempt([&] {
        now = source_digest(facts.source);
        if (now == facts.source_digest)
          other = differs(facts.source, facts.source_files, Look::times, workers);
      })) {
    if (v->kind == ErrorKind::checkpoint) return std::nullopt;  // it cannot be read: as good as not there
    return v;
  }
  if (other)
    return because(ErrorKind::checkpoint,
                   "{}: stale: its source {} has changed since it was exported ({}): export again",
                   from.directory().string(), facts.source, other->text);
  if (now == facts.source_digest) return std::nullopt;
  return because(
      ErrorKind::checkpoint,
      "{}: stale: its source {} has changed since it was exported (digest {}, now {}): export again",
      from.directory().string(), facts.source, facts.source_digest, now);
}

checkpoint::Checkpoint of_rank(const checkpoint::Checkpoint& from, std::int64_t slices,
                               const layout::Fit& fit, const Rank& rank) {
  if (from.exported() == nullptr) return from;
  checkpoint::Checkpoint mine = from;
  std::string id;
  comm::agreed(rank.group, "opening the export", [&] {
    require(foreign(from, rank.group.size(), slices, fit));
    if (rank.group.rank() == 0) require(stale(from, rank.workers));
    if (rank.group.rank() != from.exported()->facts().rank)
      mine = checkpoint::Checkpoint::open_exported(from.directory(), rank.group.rank(), rank.group.size());
    id = checkpoint::text_of(mine.exported()->id());
  });
  const std::vector<std::string> ids = comm::gather_text(rank.group, id, "the exports' ids");
  const auto other = std::ranges::find_if(ids, [&](const std::string& i) { return i != ids.front(); });
  if (other != ids.end())
    fail(ErrorKind::checkpoint,
         "{}: files of two exports, rank 0's of {}, rank {}'s of {}: stopped on the way? export again",
         from.directory().string(), ids.front(), other - ids.begin(), *other);
  // One export: the same facts, but for the rank, and the same tensors but for the experts' weights. Digests
  // that somebody made anew would not tell.
  require_shared(mine, rank.group);
  comm::agreed(rank.group, "comparing the export's files", [&] {
    require(foreign(mine, rank.group.size(), slices, fit));
    if (mine.moe_layers() != from.moe_layers())
      fail(ErrorKind::checkpoint, "{}: other layers than rank 0's file has",
           mine.exported()->path().string());
  });
  return mine;
}

std::vector<Layer> load_exported(const checkpoint::Checkpoint& from, const BuildOptions& options,
                                 const Rank& rank, Startup* startup) {
  const FpGuard guard;  // scales, gains
  Startup unwanted;
  Startup& times = startup != nullptr ? *startup : unwanted;
  std::vector<std::int64_t> selected;
  std::vector<checkpoint::LayerScales> scales;
  comm::agreed(rank.group, "checking the export", [&] {
    const Timing timing(times.check);
    selected = select_layers(from, options.layers);
    check_shapes(from, selected, options);
    scales = read_scales(from, selected, rank);
  });
  require_same_scales(rank.group, selected, scales);
  std::optional<Uploads> uploads;
  if (rank.device != nullptr)
    comm::agreed(rank.group, "preparing the device's uploads", [&] { uploads.emplace(); });
  std::vector<Layer> layers;
  layers.reserve(selected.size());
  for (std::size_t i = 0; i < selected.size(); ++i) {
    const checkpoint::MoeLayer& source = from.layer(selected[i]);
    if (source.kind() == checkpoint::ExpertKind::nvfp4) say_scales(rank, source, scales[i]);
    const Timing timing(times.read);
    comm::agreed(rank.group, fmt::format("reading layer {}", selected[i]), [&] {
      comm::in_context(fmt::format("layer {}", selected[i]), [&] {
        layers.push_back(load_layer(from, source, scales[i], options, rank, uploads ? &*uploads : nullptr));
      });
      if (options.progress) options.progress(static_cast<std::int64_t>(i) + 1, std::ssize(selected));
    });
    const Mode mode = layers.back().runs(Mode::ep) ? Mode::ep : Mode::tp;
    times.bytes += layers.back().expert_bytes(mode) * layers.back().experts(mode).shape().experts;
  }
  return layers;
}

std::vector<Layer> load(const checkpoint::Checkpoint& from, const BuildOptions& options, const Rank& rank,
                        Startup* startup) {
  return from.exported() != nullptr ? load_exported(from, options, rank, startup)
                                    : build(from, options, rank, startup);
}

}  // namespace kerf::decode
