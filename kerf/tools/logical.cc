// From the converted layout back to [out, in] matrices: rows and groups of scales are put where they were,
// and slices beside each other.
#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kerf/base/format.h"
#include "kerf/checkpoint/export_file.h"
#include "kerf/layout/convert.h"
#include "kerf/layout/geometry.h"
#include "kerf/tensor/storage.h"
#include "kerf/tools/export.h"
#include "kerf/tools/internal/claim.h"

namespace kerf::tools {

namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::ExpertKind;
using checkpoint::ExportedLayer;
using checkpoint::ExportFile;
using tensor::Dtype;
using Bytes = std::vector<std::byte>;

constexpr const char* marker_name = ".kerf-export";

// One kind of numbers of a layer, of all experts: gate and up [E, 2I, H / per] and down [E, H, I / per].
struct Matrices {
  std::int64_t experts = 0, hidden = 0, intermediate = 0;
  std::int64_t unit = 1;      // bytes of one step along K
  std::int64_t per_unit = 1;  // values of one such step
  Bytes gate_up, down;

  Matrices(const checkpoint::ModelConfig& c, std::int64_t bytes, std::int64_t values)
      : experts(c.experts), hidden(c.hidden), intermediate(c.intermediate), unit(bytes), per_unit(values) {
    gate_up.resize(static_cast<std::size_t>(experts * 2 * intermediate * row()));
    down.resize(static_cast<std::size_t>(experts * hidden * column_bytes(intermediate)));
  }
  [[nodiscard]] std::int64_t row() const { return hidden / per_unit * unit; }
  [[nodiscard]] std::int64_t column_bytes(std::int64_t width) const { return width / per_unit * unit; }

  // Expert e's slice [first, first + width), as restore() gave it, where it belongs. What was padded is left.
  void place(std::int64_t e, std::int64_t first, std::int64_t width, const Bytes& gate, const Bytes& up,
             const Bytes& part) {
    const std::int64_t kept = std::clamp<std::int64_t>(intermediate - first, 0, width);
    std::byte* const rows = gate_up.data() + (e * 2 * intermediate + first) * row();
    std::memcpy(rows, gate.data(), static_cast<std::size_t>(kept * row()));
    std::memcpy(rows + intermediate * row(), up.data(), static_cast<std::size_t>(kept * row()));
    for (std::int64_t h = 0; h < hidden; ++h)
      std::memcpy(down.data() + (e * hidden + h) * column_bytes(intermediate) + column_bytes(first),
                  part.data() + h * column_bytes(width), static_cast<std::size_t>(column_bytes(kept)));
  }
};

// The pieces that restore() fills.
struct Restored {
  Bytes gate, gate_sf, up, up_sf, down, down_sf;
};

Bytes read_tensor(const ExportFile& file, const std::string& name, const Dtype dtype,
                  const tensor::Shape& shape, const Workers& workers) {
  const checkpoint::TensorEntry entry = file.entry(name);
  if (entry.dtype != dtype || entry.shape != shape)
    fail(ErrorKind::checkpoint, "{}, {}: got {} {}, wanted {} {}", file.path().string(), name,
         tensor::name(entry.dtype), entry.shape.text(), tensor::name(dtype), shape.text());
  Bytes out(static_cast<std::size_t>(entry.end - entry.begin));
  checkpoint::ExportReader reader(file, name);
  reader.read(out, workers);
  reader.finish();
  return out;
}

std::span<const std::byte> expert_of(const Bytes& all, std::int64_t e, std::int64_t experts) {
  const std::size_t each = all.size() / static_cast<std::size_t>(experts);
  return std::span(all).subspan(static_cast<std::size_t>(e) * each, each);
}

struct Logical {
  Matrices weights;
  std::optional<Matrices> scales;
};

void restore_nvfp4(const ExportFile& file, const std::string& prefix, const checkpoint::ModelConfig& config,
                   const Workers& workers, Logical& out) {
  const auto& facts = file.facts();
  const auto& p = facts.placement;
  const layout::Slice slice = layout::slice_of(facts.width, p.tp, facts.rank % p.tp);
  const std::int64_t n = config.experts / (p.tp > 1 ? p.ep : p.ranks);
  const std::int64_t first = n * (p.tp > 1 ? facts.rank / p.tp : facts.rank);
  std::array<Bytes, 4> t;
  const auto wanted = layout::nvfp4_weights({n, config.hidden, slice.width});
  for (std::size_t i = 0; i < t.size(); ++i)
    t[i] = read_tensor(file, prefix + wanted[i].name, wanted[i].dtype, wanted[i].shape, workers);
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

void restore_bf16(const ExportFile& file, const std::string& prefix, const checkpoint::ModelConfig& config,
                  const Workers& workers, Logical& out) {
  const auto& facts = file.facts();
  const std::int64_t width = facts.bf16_width;
  const std::int64_t n = config.experts / facts.placement.ranks;
  const auto wanted = layout::bf16_weights({n, config.hidden, width});
  const Bytes w13 = read_tensor(file, prefix + wanted[0].name, wanted[0].dtype, wanted[0].shape, workers);
  const Bytes w2 = read_tensor(file, prefix + wanted[1].name, wanted[1].dtype, wanted[1].shape, workers);
  const auto size = static_cast<std::size_t>(width * config.hidden * 2);
  workers.for_each(static_cast<std::size_t>(n), [&](std::size_t i, int) {
    const auto e = static_cast<std::int64_t>(i);
    Bytes gate(size);
    Bytes up(size);
    Bytes down(size);
    layout::restore(layout::ConvertedBf16<const std::byte>{expert_of(w13, e, n), expert_of(w2, e, n)},
                    config.hidden, width, layout::LogicalBf16<std::byte>{gate, up, down});
    out.weights.place(n * facts.rank + e, 0, width, gate, up, down);
  });
}

// A tensor to write, and its bytes.
struct Out {
  checkpoint::NamedShape shape;
  Bytes own;                         // small ones
  std::span<const std::byte> bytes;  // into the matrices, where `own` is empty
  [[nodiscard]] std::span<const std::byte> data() const { return own.empty() ? bytes : std::span(own); }
};

Bytes bytes_of(std::span<const float> values) {
  const auto raw = std::as_bytes(values);
  return {raw.begin(), raw.end()};
}

// The values that a fused tensor of scales held: [E, 2] or [2E] (gate, up of each), [E], or one.
Bytes fused_scales(const tensor::Shape& shape, std::span<const float> gate, std::span<const float> up) {
  const std::int64_t count = shape.elements();
  std::vector<float> out;
  for (std::size_t e = 0; e < gate.size() && std::ssize(out) < count; ++e) {
    out.push_back(gate[e]);
    if (count == 2 * std::ssize(gate)) out.push_back(up[e]);
  }
  if (std::ssize(out) != count)
    fail(ErrorKind::checkpoint, "scales of shape {} for {} experts", shape.text(), gate.size());
  return bytes_of(out);
}

class LayerWriter {
 public:
  LayerWriter(const ExportedLayer& facts, const checkpoint::ModelConfig& config, const Logical& logical)
      : facts_(facts), config_(config), logical_(logical) {}

  std::vector<Out> tensors(const checkpoint::LayerScales& scales) {
    if (facts_.fused)
      fused(scales);
    else
      per_expert(scales);
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool nvfp4() const { return facts_.kind == ExpertKind::nvfp4; }
  [[nodiscard]] Dtype weight_dtype() const { return nvfp4() ? Dtype::u8 : Dtype::bf16; }
  [[nodiscard]] std::int64_t packed(std::int64_t width) const { return nvfp4() ? width / 2 : width; }
  [[nodiscard]] const tensor::Shape& scale_shape(const std::string& name) const {
    const auto found = facts_.scale_shapes.find(name);
    if (found == facts_.scale_shapes.end())
      fail(ErrorKind::checkpoint, "layer {}: the export does not say what shape {} had", facts_.index, name);
    return found->second;
  }
  void view(const std::string& name, Dtype dtype, const tensor::Shape& shape,
            std::span<const std::byte> bytes) {
    out_.push_back({{facts_.prefix + "mlp.experts." + name, dtype, shape}, {}, bytes});
  }
  void small(const std::string& name, const tensor::Shape& shape, Bytes bytes) {
    out_.push_back({{facts_.prefix + "mlp.experts." + name, Dtype::f32, shape}, std::move(bytes), {}});
  }

  void fused(const checkpoint::LayerScales& s) {
    const std::int64_t e = config_.experts;
    const std::int64_t h = config_.hidden;
    const std::int64_t i = config_.intermediate;
    const auto scales = [&](const std::string& name, std::span<const float> gate, std::span<const float> up) {
      small(name, scale_shape(name), fused_scales(scale_shape(name), gate, up));
    };
    view("gate_up_proj", weight_dtype(), {e, 2 * i, packed(h)}, logical_.weights.gate_up);
    if (nvfp4()) {
      view("gate_up_proj_weight_scale", Dtype::f8_e4m3, {e, 2 * i, h / 16}, logical_.scales->gate_up);
      scales("gate_up_proj_weight_scale_2", s.ws2_gate, s.ws2_up);
      if (facts_.has_inputs) scales("gate_up_proj_input_scale", s.in_gate, s.in_up);
    }
    view("down_proj", weight_dtype(), {e, h, packed(i)}, logical_.weights.down);
    if (nvfp4()) {
      view("down_proj_weight_scale", Dtype::f8_e4m3, {e, h, i / 16}, logical_.scales->down);
      scales("down_proj_weight_scale_2", s.ws2_down, s.ws2_down);
      if (facts_.has_inputs) scales("down_proj_input_scale", s.in_down, s.in_down);
    }
  }

  // Expert e's rows of gate, up or down.
  static std::span<const std::byte> part(const Matrices& m, std::int64_t e, int projection) {
    if (projection == 2) return expert_of(m.down, e, m.experts);
    const auto both = expert_of(m.gate_up, e, m.experts);
    return both.subspan(projection == 1 ? both.size() / 2 : 0, both.size() / 2);
  }

  void per_expert(const checkpoint::LayerScales& s) {
    const std::int64_t h = config_.hidden;
    const std::int64_t i = config_.intermediate;
    const std::array<const std::vector<float>*, 3> ws2 = {&s.ws2_gate, &s.ws2_up, &s.ws2_down};
    const std::array<const std::vector<float>*, 3> inputs = {&s.in_gate, &s.in_up, &s.in_down};
    for (std::int64_t e = 0; e < config_.experts; ++e)
      for (int p = 0; p < 3; ++p) {
        const std::string base =
            fmt::format("{}.{}_proj.", e, std::array{"gate", "up", "down"}[static_cast<std::size_t>(p)]);
        const std::int64_t rows = p == 2 ? h : i;
        const std::int64_t columns = p == 2 ? i : h;
        const auto scalar = [&](const std::string& name, const std::vector<float>& values) {
          small(base + name, scale_shape(name),
                bytes_of(std::span(values).subspan(static_cast<std::size_t>(e), 1)));
        };
        view(base + "weight", weight_dtype(), {rows, packed(columns)}, part(logical_.weights, e, p));
        if (!nvfp4()) continue;
        view(base + "weight_scale", Dtype::f8_e4m3, {rows, columns / 16}, part(*logical_.scales, e, p));
        scalar("weight_scale_2", *ws2[static_cast<std::size_t>(p)]);
        if (facts_.has_inputs) scalar("input_scale", *inputs[static_cast<std::size_t>(p)]);
      }
  }

  const ExportedLayer& facts_;
  const checkpoint::ModelConfig& config_;
  const Logical& logical_;
  std::vector<Out> out_;
};

// config.json as tools read it that know ModelOpt's names: what compressed-tensors says of the quantisation
// is said as ModelOpt does. Everything else, and every other text, stays as it is.
std::string config_text(const checkpoint::ExportFacts& facts) {
  auto config = nlohmann::ordered_json::parse(facts.configs.config);
  auto* const owner = config.contains("quantization_config") || !config.contains("text_config")
                          ? &config
                          : &config["text_config"];
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
    if (layer.kind == ExpertKind::bf16) excluded.push_back(layer.prefix + "mlp.experts*");
  }
  *found = {{"quant_method", "modelopt"},
            {"quant_algo", inputs ? "NVFP4" : "W4A16_NVFP4"},
            {"group_size", 16},
            {"exclude_modules", std::move(excluded)}};
  return config.dump(2) + "\n";
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
  }
  const checkpoint::ExportFacts& facts = files.front().facts();
  internal::claim(
      directory,
      {.writer = "kerf export --to logical",
       .is_own = [](const std::string& name) { return internal::is_checkpoint_file(name, marker_name); },
       .marker = marker_name,
       .key = "config.json"});
  internal::write_text(directory / marker_name,
                       "This directory was written by kerf export --to logical, which may replace it.\n");

  LogicalReport report;
  nlohmann::json map = nlohmann::json::object();
  for (const ExportedLayer& layer : facts.layers) {
    const checkpoint::MoeLayer& beside = from.layer(layer.index);
    const bool nvfp4 = layer.kind == ExpertKind::nvfp4;
    checkpoint::Faults faults;
    checkpoint::LayerScales scales;
    std::vector<std::string> names;
    for (const auto& [name, entry] : files.front().header().tensors)
      if (name.starts_with(layer.prefix) &&
          !name.starts_with(layer.prefix + std::string(checkpoint::exported_experts) + "w"))
        names.emplace_back(name);
    for (const std::string& name : names) files.front().check(name, workers);
    if (nvfp4) scales = beside.scales(faults);
    require(faults.verdict());
    Logical logical{nvfp4 ? Matrices(config, 1, 2) : Matrices(config, 2, 1), {}};
    if (nvfp4) logical.scales.emplace(config, 1, 16);
    const std::string prefix = layer.prefix + std::string(checkpoint::exported_experts);
    for (const ExportFile& file : files) {
      if (nvfp4)
        restore_nvfp4(file, prefix, config, workers, logical);
      else
        restore_bf16(file, prefix, config, workers, logical);
    }
    std::vector<Out> tensors = LayerWriter(layer, config, logical).tensors(scales);
    std::vector<tensor::TensorView> kept;  // the bytes of what stands beside the experts
    for (const std::string_view suffix :
         {checkpoint::post_norm_name, checkpoint::selection_bias_name, checkpoint::gate_name,
          checkpoint::pre_proj_name, checkpoint::pre_norm_name, checkpoint::post_proj_name})
      if (const auto view = beside.find(suffix)) {
        tensors.push_back({{layer.prefix + std::string(suffix), view->dtype, view->shape}, {}, view->bytes});
        kept.push_back(*view);
      }

    const std::string file =
        fmt::format("model-{:05}-of-{:05}.safetensors", report.layers + 1, facts.layers.size());
    std::vector<checkpoint::NamedShape> shapes;
    for (const Out& t : tensors) shapes.push_back(t.shape);
    checkpoint::SafetensorsWriter writer(directory / file, shapes);
    for (const Out& t : tensors) {
      writer.append(t.data());
      map[t.shape.name] = file;
      report.bytes += std::ssize(t.data());
    }
    writer.finish();
    report.tensors += std::ssize(tensors);
    ++report.layers;
    if (progress) progress(report.layers, std::ssize(facts.layers));
  }
  const nlohmann::json index = {{"metadata", {{"total_size", report.bytes}}}, {"weight_map", std::move(map)}};
  internal::write_text(directory / "model.safetensors.index.json", index.dump(2) + "\n");
  if (facts.configs.quant) internal::write_text(directory / "hf_quant_config.json", *facts.configs.quant);
  internal::write_text(directory / "config.json", config_text(facts));
  return report;
}

}  // namespace kerf::tools
