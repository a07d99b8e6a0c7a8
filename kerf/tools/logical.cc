// From the converted layout back to [out, in] matrices: rows and groups of scales are put where they were,
// and slices beside each other.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>

#include "kerf/base/format.h"
#include "kerf/base/json.h"
#include "kerf/checkpoint/export_file.h"
#include "kerf/decode/exported.h"
#include "kerf/layout/convert.h"
#include "kerf/layout/geometry.h"
#include "kerf/tensor/storage.h"
#include "kerf/tools/export.h"
#include "kerf/tools/internal/claim.h"
#include "kerf/tools/internal/logical_tensors.h"

namespace kerf::tools {

namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::ExpertKind;
using checkpoint::ExportedLayer;
using checkpoint::ExportFile;
using internal::Bytes;
using internal::Logical;
using internal::LogicalTensor;
using internal::Matrices;
using tensor::Dtype;

constexpr const char* marker_name = ".kerf-export";
constexpr std::array<const char*, 4> converted = {"w13", "w13_sf", "w2", "w2_sf"};  // of experts

// The pieces that restore() fills.
struct Restored {
  Bytes gate, gate_sf, up, up_sf, down, down_sf;
};

// Of layer `layer`, whose first expert in the file is `first`.
Bytes read_tensor(const ExportFile& file, const std::string& name, const Dtype dtype,
                  const tensor::Shape& shape, std::int64_t layer, std::int64_t first,
                  const Workers& workers) {
  const checkpoint::TensorEntry entry = file.entry(name);
  if (entry.dtype != dtype || entry.shape != shape)
    fail(ErrorKind::checkpoint, "{}, {}: got {} {}, wanted {} {}", file.path().string(), name,
         tensor::name(entry.dtype), entry.shape.text(), tensor::name(dtype), shape.text());
  Bytes out(static_cast<std::size_t>(entry.end - entry.begin));
  checkpoint::ExportReader reader(file, name);
  reader.read(out, workers);
  reader.finish();
  checkpoint::Faults faults;
  reader.report(layer, first, faults);
  require(faults.verdict());
  return out;
}

std::span<const std::byte> expert_of(const Bytes& all, std::int64_t e, std::int64_t experts) {
  const std::size_t each = all.size() / static_cast<std::size_t>(experts);
  return std::span(all).subspan(static_cast<std::size_t>(e) * each, each);
}

void restore_nvfp4(const ExportFile& file, const ExportedLayer& layer, const checkpoint::ModelConfig& config,
                   const Workers& workers, Logical& out) {
  const std::string prefix = layer.prefix + std::string(checkpoint::exported_experts);
  const decode::Holding held = decode::holding(file.facts(), config);
  const layout::Slice slice = held.slice;
  const std::int64_t n = held.nvfp4.experts;
  const std::int64_t first = held.first_nvfp4;
  std::array<Bytes, 4> t;
  const auto wanted = layout::nvfp4_weights(held.nvfp4);
  for (std::size_t i = 0; i < t.size(); ++i)
    t[i] = read_tensor(file, prefix + wanted[i].name, wanted[i].dtype, wanted[i].shape, layer.index, first,
                       workers);
  const auto w = static_cast<std::size_t>(slice.width);
  const auto h = static_cast<std::size_t>(config.hidden);
  workers.for_each(static_cast<std::size_t>(n), [&](std::size_t i, int) {
    const auto e = static_cast<std::int64_t>(i);
    Restored r{Bytes(w * h / 2),  Bytes(w * h / 16), Bytes(w * h / 2),
               Bytes(w * h / 16), Bytes(h * w / 2),  Bytes(h * w / 16)};
    layout::restore(
        {expert_of(t[0], e, n), expert_of(t[1], e, n), expert_of(t[2], e, n), expert_of(t[3], e, n)},
        config.hidden, slice.width,
        layout::LogicalNvfp4<std::byte>{r.gate, r.gate_sf, r.up, r.up_sf, r.down, r.down_sf});
    out.weights.place(first + e, slice.first, slice.width, r.gate, r.up, r.down);
    out.scales->place(first + e, slice.first, slice.width, r.gate_sf, r.up_sf, r.down_sf);
  });
}

void restore_bf16(const ExportFile& file, const ExportedLayer& layer, const checkpoint::ModelConfig& config,
                  const Workers& workers, Logical& out) {
  const std::string prefix = layer.prefix + std::string(checkpoint::exported_experts);
  const decode::Holding held = decode::holding(file.facts(), config);
  const std::int64_t width = held.bf16.intermediate;
  const std::int64_t n = held.bf16.experts;
  const auto wanted = layout::bf16_weights(held.bf16);
  const auto read = [&](const auto& t) {
    return read_tensor(file, prefix + t.name, t.dtype, t.shape, layer.index, held.first_bf16, workers);
  };
  const Bytes w13 = read(wanted[0]);
  const Bytes w2 = read(wanted[1]);
  const auto size = static_cast<std::size_t>(width * config.hidden * 2);
  workers.for_each(static_cast<std::size_t>(n), [&](std::size_t i, int) {
    const auto e = static_cast<std::int64_t>(i);
    Bytes gate(size);
    Bytes up(size);
    Bytes down(size);
    layout::restore(layout::ConvertedBf16<const std::byte>{expert_of(w13, e, n), expert_of(w2, e, n)},
                    config.hidden, width, layout::LogicalBf16<std::byte>{gate, up, down});
    out.weights.place(held.first_bf16 + e, 0, width, gate, up, down);
  });
}

// config.json as tools read it that know ModelOpt's names: what compressed-tensors says of the quantisation
// is said as ModelOpt does. Everything else, and every other text, stays as it is.
std::string config_text(const checkpoint::ExportFacts& facts) {
  auto config = nlohmann::ordered_json::parse(with_stand_ins(facts.configs.config));
  auto* owner = &config;
  for (const char* part : {"thinker_config", "text_config", "llm_config", "language_config"})
    if (!owner->contains("quantization_config") && owner->contains(part) && (*owner)[part].is_object())
      owner = &(*owner)[part];
  const auto found = owner->find("quantization_config");
  if (found == owner->end() || found->value("quant_method", "") != "compressed-tensors")
    return facts.configs.config;
  bool inputs = false;
  auto excluded = nlohmann::ordered_json::array();
  // Patterns (re:) have no counterpart there; of experts they mean the BF16 layers, which are named.
  for (const auto& name : found->value("ignore", nlohmann::ordered_json::array()))
    if (name.is_string() && !name.get<std::string>().starts_with("re:")) excluded.push_back(name);
  for (const ExportedLayer& layer : facts.layers) {
    inputs = inputs || layer.has_inputs;
    if (layer.kind == ExpertKind::bf16)
      excluded.push_back(layer.prefix + layer.root.substr(0, layer.root.size() - 1) + "*");
  }
  *found = {{"quant_method", "modelopt"},
            {"quant_algo", inputs ? "NVFP4" : "W4A16_NVFP4"},
            {"group_size", 16},
            {"exclude_modules", std::move(excluded)}};
  return without_stand_ins(config.dump(2)) + "\n";
}

}  // namespace

LogicalReport export_logical(const Checkpoint& from, const fs::path& directory, const Workers& workers,
                             const std::function<void(std::int64_t done, std::int64_t of)>& progress) {
  if (from.exported() == nullptr)
    fail(ErrorKind::usage, "{}: no export; wanted a directory that kerf export wrote",
         from.directory().string());
  const checkpoint::ModelConfig& config = from.config();
  std::vector<ExportFile> files;
  for (std::int64_t r = 0; r < from.exported()->facts().placement.ranks; ++r) {
    files.push_back(ExportFile::open_of_rank(from.directory(), r, from.exported()->facts().placement.ranks));
    if (files.back().id() != files.front().id())
      fail(ErrorKind::checkpoint, "{}: of another export than rank 0's file", files.back().path().string());
    require(checkpoint::shared_differs(files.front().shared_text(), files.front().path(),
                                       files.back().shared_text(), files.back().path()));
  }
  const checkpoint::ExportPlacement& placement = files.front().facts().placement;
  require(decode::foreign(from, placement.ranks, placement.tp, decode::fit_of(from, {})));
  const checkpoint::ExportFacts& facts = files.front().facts();
  internal::Claim claim(
      directory,
      {.writer = "kerf export --to logical",
       .is_own = [](const std::string& name) { return internal::is_checkpoint_file(name, marker_name); },
       .marker = marker_name,
       .key = "config.json"});
  const auto written = internal::checkpoint_files(facts.layers.size(), facts.configs.quant.has_value());
  claim.mark(written);

  LogicalReport report;
  // An earlier result stays until all of this one is there.
  std::deque<checkpoint::SafetensorsWriter> writers;
  nlohmann::json map = nlohmann::json::object();
  for (const ExportedLayer& layer : facts.layers) {
    const checkpoint::MoeLayer& beside = from.layer(layer.index);
    const bool nvfp4 = layer.kind == ExpertKind::nvfp4;
    checkpoint::Faults faults;
    checkpoint::LayerScales scales;
    std::vector<std::string> names;
    for (const auto& [name, entry] : files.front().header().tensors)
      if (name.starts_with(layer.prefix) &&
          std::none_of(converted.begin(), converted.end(), [&, &full = name](const char* w) {
            return full == layer.prefix + std::string(checkpoint::exported_experts) + w;
          }))
        names.emplace_back(name);
    // The experts' digests are compared as they are read, the other tensors' here, every rank's.
    for (const ExportFile& file : files)
      for (const std::string& name : names) file.check(name, workers);
    if (nvfp4) scales = beside.scales(faults);
    require(faults.verdict());
    Logical logical{nvfp4 ? Matrices(config, 1, 2) : Matrices(config, 2, 1), {}};
    if (nvfp4) logical.scales.emplace(config, 1, 16);
    for (const ExportFile& file : files) {
      if (nvfp4)
        restore_nvfp4(file, layer, config, workers, logical);
      else
        restore_bf16(file, layer, config, workers, logical);
    }
    std::vector<LogicalTensor> tensors = internal::logical_tensors(layer, config, logical, scales);
    std::vector<tensor::TensorView> kept;  // the bytes of what stands beside the experts
    for (const std::string_view suffix : checkpoint::beside_experts)
      if (const auto view = beside.find(suffix)) {
        const auto other = layer.names.find(std::string(suffix));
        tensors.push_back({{layer.prefix + (other == layer.names.end() ? std::string(suffix) : other->second),
                            view->dtype, view->shape},
                           {},
                           view->bytes});
        kept.push_back(*view);
      }

    const std::string file =
        internal::shard_name(static_cast<std::size_t>(report.layers), facts.layers.size());
    std::vector<checkpoint::NamedShape> shapes;
    for (const LogicalTensor& t : tensors) shapes.push_back(t.shape);
    checkpoint::SafetensorsWriter& writer = writers.emplace_back(directory / file, shapes);
    for (const LogicalTensor& t : tensors) {
      writer.append(t.data());
      map[t.shape.name] = file;
      report.bytes += std::ssize(t.data());
    }
    writer.close();
    report.tensors += std::ssize(tensors);
    ++report.layers;
    if (progress) progress(report.layers, std::ssize(facts.layers));
  }
  const nlohmann::json index = {{"metadata", {{"total_size", report.bytes}}}, {"weight_map", std::move(map)}};
  std::deque<checkpoint::AtomicFile> texts;
  texts.push_back(internal::text_to_come(directory / internal::index_name, index.dump(2) + "\n"));
  if (facts.configs.quant)
    texts.push_back(internal::text_to_come(directory / internal::quant_name, *facts.configs.quant));
  texts.push_back(internal::text_to_come(directory / "config.json", config_text(facts)));
  claim.clear(written);
  for (checkpoint::SafetensorsWriter& writer : writers) writer.finish();
  for (checkpoint::AtomicFile& text : texts) text.finish();
  return report;
}

}  // namespace kerf::tools
