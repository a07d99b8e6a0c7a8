#include "kerf/tools/synth.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>

#include "kerf/base/format.h"
#include "kerf/checkpoint/dialect.h"
#include "kerf/checkpoint/safetensors.h"
#include "kerf/layout/geometry.h"
#include "kerf/tools/internal/claim.h"
#include "kerf/tools/internal/synth_model.h"

namespace kerf::tools {

namespace fs = std::filesystem;

namespace {

constexpr const char* marker_name = ".kerf-synth";

// A shard's header, some 200 bytes a tensor, must stay below the 100 MB that a reader takes.
constexpr std::size_t most_tensors = std::size_t{1} << 18;

constexpr std::int64_t most = (std::int64_t{1} << 20) + 1;  // what a config may say

struct ModelSize {
  SynthModel model;
  const char* name;
  std::int64_t experts, hidden, intermediate, layers, top_k;
  bool first_layer_bf16;
};
constexpr std::array<ModelSize, 3> sizes = {{
    {SynthModel::muse_spark, "muse-spark", 64, 1024, 512, 4, 8, true},
    {SynthModel::qwen3_moe, "qwen3-moe", 32, 512, 768, 4, 8, false},
    {SynthModel::tiny, "tiny", 8, 256, 128, 2, 2, false},
}};

const ModelSize& size_of(SynthModel model) {
  return *std::find_if(sizes.begin(), sizes.end(), [&](const ModelSize& s) { return s.model == model; });
}

struct Shard {
  std::vector<internal::SynthTensor> tensors;
  std::int64_t bytes = 0;
};

std::vector<Shard> shards_of(const SynthOptions& options) {
  std::vector<Shard> shards(1);
  for (std::int64_t layer = 0; layer < options.layers; ++layer)
    for (internal::SynthTensor& t : internal::layer_tensors(options, layer)) {
      const std::int64_t bytes = t.bytes();
      if (!shards.back().tensors.empty() &&
          (shards.back().bytes + bytes > options.shard_bytes || shards.back().tensors.size() == most_tensors))
        shards.emplace_back();
      shards.back().bytes += bytes;
      shards.back().tensors.push_back(std::move(t));
    }
  return shards;
}

// Makes tensors' bytes a few MiB at a time, on all workers, and hands them on in order.
class Streamer {
 public:
  Streamer(const Workers& workers, const Progress& progress, std::int64_t total)
      : workers_(workers),
        progress_(progress),
        total_(total),
        buffer_(static_cast<std::size_t>(buffer_bytes)) {}

  void write(const internal::SynthTensor& tensor, checkpoint::SafetensorsWriter& to) {
    const std::int64_t bytes = tensor.bytes();
    for (std::int64_t begin = 0; begin < bytes; begin += buffer_bytes) {
      const std::int64_t count = std::min(buffer_bytes, bytes - begin);
      const auto part = std::span(buffer_).first(static_cast<std::size_t>(count));
      const auto tasks = static_cast<std::size_t>((count + task_bytes - 1) / task_bytes);
      const auto fill = [&](std::size_t task, int) {
        const std::size_t at = task * static_cast<std::size_t>(task_bytes);
        const std::size_t size = std::min(static_cast<std::size_t>(task_bytes), part.size() - at);
        internal::fill_bytes(tensor.source, begin + static_cast<std::int64_t>(at), part.subspan(at, size));
      };
      if (tasks == 1)
        fill(0, 0);
      else
        workers_.for_each(tasks, fill);
      to.append(part);
      done_ += count;
      if (progress_) progress_(done_, total_);
    }
  }

 private:
  static constexpr std::int64_t buffer_bytes = std::int64_t{8} << 20;
  static constexpr std::int64_t task_bytes = std::int64_t{128} << 10;

  const Workers& workers_;
  const Progress& progress_;
  std::int64_t total_;
  std::int64_t done_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace

std::vector<std::string> synth_model_names() {
  std::vector<std::string> names;
  names.reserve(sizes.size());
  for (const ModelSize& s : sizes) names.emplace_back(s.name);
  return names;
}

std::string_view name(SynthModel model) { return size_of(model).name; }

SynthModel synth_model(std::string_view name) {
  for (const ModelSize& s : sizes)
    if (name == s.name) return s.model;
  fail(ErrorKind::usage, "no model named '{}'; there are {}", name, fmt::join(synth_model_names(), ", "));
}

SynthOptions synth_defaults(SynthModel model) {
  const ModelSize& s = size_of(model);
  SynthOptions o;
  o.model = model;
  o.experts = s.experts;
  o.hidden = s.hidden;
  o.intermediate = s.intermediate;
  o.layers = s.layers;
  o.top_k = s.top_k;
  if (s.first_layer_bf16) o.bf16_layers = {0};
  return o;
}

std::string_view dialect_name(const SynthOptions& o) {
  if (!o.dialect.empty()) return o.dialect;
  return o.model == SynthModel::muse_spark ? "fused" : "per-expert";
}

std::int64_t model_width(const SynthOptions& o) {
  if (o.model_hidden != 0) return o.model_hidden;
  return o.model == SynthModel::muse_spark ? 2 * o.hidden : o.hidden;
}

Verdict unsupported(const SynthOptions& o) {
  const std::array<std::pair<const char*, std::int64_t>, 6> counts = {{{"experts", o.experts},
                                                                       {"hidden", o.hidden},
                                                                       {"intermediate", o.intermediate},
                                                                       {"layers", o.layers},
                                                                       {"top-k", o.top_k},
                                                                       {"shard bytes", o.shard_bytes}}};
  for (const auto& [what, value] : counts) {
    if (value < 1) return because(ErrorKind::usage, "{} is {}, wanted at least 1", what, value);
    if (what != counts.back().first && value >= most)
      return because(ErrorKind::usage, "{} is {}, wanted at most {}", what, value, most - 1);
  }
  if (o.top_k > o.experts)
    return because(ErrorKind::usage, "top-k is {}, but there are only {} experts", o.top_k, o.experts);
  if (o.model_hidden < 0 || o.model_hidden >= most)
    return because(ErrorKind::usage, "model width is {}, wanted 1 to {}", o.model_hidden, most - 1);
  if (o.model != SynthModel::muse_spark && model_width(o) != o.hidden)
    return because(ErrorKind::usage, "model width is {} and hidden {}: {} has no projection between them",
                   o.model_hidden, o.hidden, name(o.model));
  if (Verdict why = attempt([&] { (void)checkpoint::dialect_named(dialect_name(o)); })) return why;
  const checkpoint::Dialect& dialect = checkpoint::dialect_named(dialect_name(o));
  // Muse Spark's experts stand at a place of their own, whose stacks have rows.
  if (o.model == SynthModel::muse_spark &&
      (dialect.transposed || dialect.projections[0] == std::string_view("w1")))
    return because(ErrorKind::usage, "there is no {} in the dialect {}", name(o.model), dialect.name);
  if (o.f4 && dialect.transposed)
    return because(ErrorKind::usage, "the dialect {} has no F4: the order of codes is not known",
                   dialect.name);
  for (const std::int64_t layer : o.bf16_layers)
    if (layer < 0 || layer >= o.layers)
      return because(ErrorKind::usage, "BF16 layer {} is not one of layers 0 to {}", layer, o.layers - 1);
  // Any I that can be padded may be written.
  if (Verdict why = layout::paddable(o.intermediate)) return why;
  if (Verdict why = layout::convertible(o.hidden, layout::converted_width(o.intermediate, 1, {false, true})))
    return why;
  // 2 bytes a weight at most, three matrices, twice the width where gate and up are one tensor.
  const auto wide = [](std::int64_t v) { return static_cast<long double>(v); };
  const long double experts = 12.0L * wide(o.experts) * wide(o.hidden) * wide(o.intermediate);
  const long double around = 4.0L * wide(model_width(o)) * (wide(o.hidden) + wide(o.experts));
  const long double bytes = (experts + around) * wide(o.layers);
  if (bytes > 0x1p50L)
    return because(ErrorKind::usage, "{} layers of {} experts, {} x {}, are more than a petabyte", o.layers,
                   o.experts, o.hidden, o.intermediate);
  return std::nullopt;
}

SynthReport synth(const fs::path& directory, const SynthOptions& wanted, const Workers& workers,
                  const Progress& progress) {
  require(unsupported(wanted));
  SynthOptions options = wanted;
  std::sort(options.bf16_layers.begin(), options.bf16_layers.end());
  const std::vector<Shard> shards = shards_of(options);
  const std::string quant_json = internal::quant_config_json(options);
  const auto names = internal::checkpoint_files(shards.size(), !quant_json.empty());
  internal::Claim claim(
      directory,
      {.writer = "kerf synth",
       .is_own = [](const std::string& name) { return internal::is_checkpoint_file(name, marker_name); },
       .marker = marker_name,
       .key = "config.json"});
  claim.mark(names);
  claim.clear(names);

  SynthReport report;
  report.shards = static_cast<std::int64_t>(shards.size());
  for (const Shard& shard : shards) report.bytes += shard.bytes;

  Streamer streamer(workers, progress, report.bytes);
  nlohmann::json map = nlohmann::json::object();  // a tree: an ordered_json looks at every key each time
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const std::string file = internal::shard_name(s, shards.size());
    std::vector<checkpoint::NamedShape> shapes;
    shapes.reserve(shards[s].tensors.size());
    for (const internal::SynthTensor& t : shards[s].tensors) shapes.push_back(t.shape);
    checkpoint::SafetensorsWriter writer(directory / file, shapes);
    for (const internal::SynthTensor& t : shards[s].tensors) {
      streamer.write(t, writer);
      map[t.shape.name] = file;
    }
    writer.finish();
    report.tensors += static_cast<std::int64_t>(shapes.size());
  }

  const nlohmann::json index = {{"metadata", {{"total_size", report.bytes}}}, {"weight_map", std::move(map)}};
  internal::write_text(directory / internal::index_name, index.dump(2) + "\n");
  if (!quant_json.empty()) internal::write_text(directory / internal::quant_name, quant_json);
  internal::write_text(directory / "config.json", internal::config_json(options));
  return report;
}

}  // namespace kerf::tools
