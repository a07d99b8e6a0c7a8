#include "kerf/tools/export.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <string_view>

#include "kerf/base/build_info.h"
#include "kerf/base/format.h"
#include "kerf/checkpoint/dialect.h"
#include "kerf/checkpoint/export_file.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/exported.h"
#include "kerf/decode/shard.h"
#include "kerf/decode/source_digest.h"
#include "kerf/decode/start_facts.h"
#include "kerf/tools/internal/claim.h"

namespace kerf::tools {

namespace {

namespace fs = std::filesystem;
using checkpoint::ExpertKind;
using checkpoint::ExportedLayer;
using checkpoint::ExportFacts;
using checkpoint::NamedShape;
using tensor::Dtype;

// Whether a name is that of an export's file, or of one on its way.
bool is_own(const std::string& name) {
  return checkpoint::parse_export_file_name(name).has_value() || checkpoint::is_export_temporary(name);
}

ExportedLayer facts_of(const checkpoint::MoeLayer& layer, const checkpoint::LayerScales& scales,
                       std::int64_t experts) {
  ExportedLayer out;
  out.index = layer.index();
  out.kind = layer.kind();
  out.prefix = layer.prefix();
  out.root = layer.root();
  out.dialect = layer.dialect();
  out.no_block = layer.no_block();
  for (const std::string_view suffix : checkpoint::beside_experts)
    if (layer.stored(suffix))
      if (std::string name = layer.full_name(suffix).substr(out.prefix.size()); name != suffix)
        out.names.emplace(suffix, std::move(name));
  if (out.kind == ExpertKind::bf16) return out;
  out.has_inputs = !scales.weight_only;
  if (scales.weight_only && !scales.in_gate.empty())
    fail(ErrorKind::unsupported,
         "layer {}: input scales beside experts that are weight-only (W4A16) by the configuration: an export "
         "has no place for them",
         layer.index());
  const checkpoint::Dialect& dialect = checkpoint::dialect_named(out.dialect);
  const auto stored = [&](std::size_t projection, checkpoint::Part part) {
    return layer.stored(fmt::format("{}{}{}{}", out.root, dialect.stacked ? "" : "0.",
                                    dialect.projections[projection],
                                    dialect.parts[static_cast<std::size_t>(part)]));
  };
  if (const auto codes = stored(0, checkpoint::Part::weight)) out.codes = codes->dtype;
  for (const checkpoint::Part part : {checkpoint::Part::global_scale, checkpoint::Part::input_scale}) {
    if (part == checkpoint::Part::input_scale && !out.has_inputs) continue;
    if (!dialect.stacked) {
      // What is no divisor any more is a scalar, as ModelOpt's are.
      const auto own = dialect.divisors ? std::nullopt : stored(0, part);
      out.scale_shapes.emplace(part == checkpoint::Part::global_scale ? "weight_scale_2" : "input_scale",
                               own ? own->shape : tensor::Shape());
      continue;
    }
    for (const std::size_t projection : {0, 2}) {
      const auto own = stored(projection, part);
      out.scale_shapes.emplace(
          fmt::format("{}{}", dialect.projections[projection], dialect.parts[static_cast<std::size_t>(part)]),
          own ? own->shape
              : tensor::Shape(projection == 0 ? std::vector{experts, std::int64_t{2}}
                                              : std::vector{experts}));
    }
  }
  return out;
}

// [3, E]: gate, up, down.
std::vector<float> table_of(const std::vector<float>& gate, const std::vector<float>& up,
                            const std::vector<float>& down) {
  std::vector<float> out;
  for (const std::vector<float>* part : {&gate, &up, &down})
    out.insert(out.end(), part->begin(), part->end());
  return out;
}

// The tensors of one layer in the file, in order.
std::vector<NamedShape> tensors_of(const checkpoint::MoeLayer& layer, const ExportedLayer& facts,
                                   const decode::Holding& held, std::int64_t experts) {
  std::vector<NamedShape> out = decode::exported_tensors(held, facts.kind, facts.prefix);
  if (facts.kind == ExpertKind::nvfp4)
    out.push_back({facts.prefix + std::string(checkpoint::exported_ws2), Dtype::f32, {3, experts}});
  if (facts.has_inputs)
    out.push_back({facts.prefix + std::string(checkpoint::exported_inputs), Dtype::f32, {3, experts}});
  for (const std::string_view suffix : checkpoint::beside_experts)
    if (const auto stored = layer.stored(suffix))
      out.push_back({facts.prefix + std::string(suffix), stored->dtype, stored->shape});
  return out;
}

// The same tensors' bytes.
void append_layer(checkpoint::ExportWriter& writer, const decode::Layer& layer,
                  const checkpoint::MoeLayer& source, const checkpoint::LayerScales& scales,
                  const Workers& workers) {
  const auto put = [&](std::span<const std::byte> bytes) { writer.append(bytes, workers); };
  if (layer.kind == ExpertKind::nvfp4) {
    const layout::Nvfp4View v = layer.sliced ? layer.sliced->view() : layer.nvfp4();
    for (const tensor::TensorView* t : {&v.w13, &v.w13_sf, &v.w2, &v.w2_sf}) put(t->bytes);
    const std::vector<float> ws2 = table_of(scales.ws2_gate, scales.ws2_up, scales.ws2_down);
    const std::vector<float> inputs = table_of(scales.in_gate, scales.in_up, scales.in_down);
    put(std::as_bytes(std::span(ws2)));
    if (!scales.weight_only) put(std::as_bytes(std::span(inputs)));
  } else {
    const layout::Bf16View v = layer.bf16();
    for (const tensor::TensorView* t : {&v.w13, &v.w2}) put(t->bytes);
  }
  for (const std::string_view suffix : checkpoint::beside_experts)
    if (const auto view = source.find(suffix)) put(view->bytes);
}

}  // namespace

ExportReport export_experts(const checkpoint::Checkpoint& from, const fs::path& directory,
                            const ExportOptions& options, const decode::Rank& rank) {
  const int tp = options.expert_tp ? rank.row().size() : 1;
  const checkpoint::ModelConfig& config = from.config();
  std::vector<std::int64_t> layers;
  std::vector<checkpoint::LayerScales> scales;
  ExportFacts facts;
  comm::require_same(rank.group, "comparing what the ranks export", [&] {
    comm::Facts all = decode::facts_of(rank, "cpu");
    for (const comm::Fact& f : decode::facts_of(from)) all.push_back(f);
    for (const auto& [name, value] :
         {std::pair{"layers", fmt::format("{}", fmt::join(options.layers, ","))},
          {"expert TP", std::string(options.expert_tp ? "yes" : "no")},
          {"width", fmt::format("uneven {}, padded {}", options.fit.uneven, options.fit.pad)}})
      all.push_back({name, value, ErrorKind::usage});
    return all;
  });
  // All that can be refused without a weight, for all layers: before a file is touched.
  comm::agreed(rank.group, "checking what to export", [&] {
    if (from.exported() != nullptr)
      fail(ErrorKind::usage, "{}: it is an export already; wanted a checkpoint", from.directory().string());
    layers = decode::select_layers(from, options.layers);
    if (options.expert_tp) require(decode::shardable(from, layers, tp, options.fit));
    require(layout::placeable(config.experts, rank.group.size()));
    checkpoint::Faults faults;
    facts.writer = version();
    facts.placement = {rank.group.size(), options.expert_tp ? rank.group.size() / tp : rank.group.size(), tp};
    facts.rank = rank.group.rank();
    facts.uneven = options.fit.uneven;
    facts.pad = options.fit.pad;
    facts.configs = checkpoint::read_config_texts(from.directory());
    facts.source = fs::absolute(from.directory()).lexically_normal().string();
    for (const std::int64_t index : layers) {
      const checkpoint::MoeLayer& layer = from.layer(index);
      const bool nvfp4 = layer.kind() == ExpertKind::nvfp4;
      scales.push_back(nvfp4 ? layer.scales(faults) : checkpoint::LayerScales{});
      layer.scan_extras(faults);
      facts.layers.push_back(facts_of(layer, scales.back(), config.experts));
      (nvfp4 ? facts.width : facts.bf16_width) =
          layout::converted_width(config.intermediate, nvfp4 ? tp : 1, options.fit);
    }
    require(faults.verdict());
    if (facts.width > 0) require(layout::convertible(config.hidden, facts.width));
    if (facts.bf16_width > 0) require(layout::convertible_bf16(config.hidden, facts.bf16_width));
  });
  std::string digest;
  std::optional<internal::Claim> claim;
  comm::agreed(rank.group, "preparing the directory", [&] {
    if (rank.group.rank() != 0) return;
    ExportFacts seen;
    seen.source_digest = decode::source_digest(from.directory());
    seen.source_files = decode::source_files(from.directory(), rank.workers);
    digest = checkpoint::text_of_source(seen);
    claim.emplace(directory,
                  internal::OwnFiles{.writer = "kerf export", .is_own = is_own, .marker = {}, .key = {}});
  });
  checkpoint::take_source(comm::gather_text(rank.group, digest, "the source's digests").front(), facts);

  std::optional<checkpoint::ExportWriter> writer;
  std::int64_t bytes = 0;
  comm::agreed(rank.group, "opening the files", [&] {
    std::vector<NamedShape> tensors;
    for (std::size_t i = 0; i < layers.size(); ++i)
      for (NamedShape& t : tensors_of(from.layer(layers[i]), facts.layers[i], decode::holding(facts, config),
                                      config.experts)) {
        bytes += tensor::bytes_of(t.dtype, t.shape);
        tensors.push_back(std::move(t));
      }
    writer.emplace(directory, facts, std::move(tensors));
  });

  ExportReport report{
      std::ssize(layers), 0, rank.group.size(), facts.placement.ep, tp, facts.width, 0, 0, 0, {}};
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const checkpoint::MoeLayer& source = from.layer(layers[i]);
    const decode::BuildOptions building{{layers[i]}, op::Input::bf16, "cpu", {}, options.fit, tp};
    std::vector<decode::Layer> layer = decode::build(from, building, rank);
    if (source.kind() == ExpertKind::nvfp4) {
      ++report.nvfp4_layers;
      if (tp > 1)
        report.max_rel_l2 =
            std::max(report.max_rel_l2,
                     decode::shard(layer, {"cpu", options.probe, {}, options.fit.uneven}, rank).max_rel_l2);
    }
    comm::agreed(rank.group, fmt::format("writing layer {}", layers[i]),
                 [&] { append_layer(*writer, layer.front(), source, scales[i], rank.workers); });
    if (options.progress && rank.group.rank() == 0)
      options.progress(static_cast<std::int64_t>(i) + 1, std::ssize(layers));
  }
  checkpoint::Digest mine{};
  comm::agreed(rank.group, "ending the files", [&] {
    from.require_unchanged();  // what was digested is what was converted
    mine = writer->close();
  });
  const std::vector<checkpoint::Digest> all =
      comm::gathered(rank.group, std::span<const checkpoint::Digest>(&mine, 1), "the files' digests");
  // An earlier export stays until all of this one is on the disk.
  comm::agreed(rank.group, "writing the files' ends", [&] { writer->end(all); });
  comm::agreed(rank.group, "replacing an earlier export", [&] {
    if (claim) claim->clear();
  });
  comm::agreed(rank.group, "ending the export", [&] { writer->finish(); });
  report.id = checkpoint::text_of(checkpoint::digest_of(std::span<const checkpoint::Digest>(all)));
  report.largest_bytes = comm::all_max(rank.group, bytes, "the largest file");
  for (const std::int64_t b :
       comm::gathered(rank.group, std::span<const std::int64_t>(&bytes, 1), "the files' bytes"))
    report.bytes += b;
  return report;
}

}  // namespace kerf::tools
