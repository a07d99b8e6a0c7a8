// kerf inspect: what a checkpoint holds, and what is wrong with it. Reads headers and scales, no weights.
#include <cmath>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/report.h"
#include "cli/text.h"

namespace kerf::cli {

namespace {

using checkpoint::Checkpoint;
using checkpoint::ExpertKind;
using checkpoint::LayerScales;
using checkpoint::MoeLayer;

// Smallest and largest input scale of a layer's experts; null where there are none that can be used.
Json spread_json(float least, float largest) {
  return std::isnan(least) ? Json() : Json{{"lowest", least}, {"highest", largest}};
}

Json tensor_json(const tensor::TensorView& view) {
  return {{"dtype", tensor::name(view.dtype)},
          {"shape", std::vector<std::int64_t>(view.shape.dims().begin(), view.shape.dims().end())}};
}

// One layer: what it is, what its scales say. What is wrong goes to `faults`.
Json layer_json(const MoeLayer& layer, std::int64_t experts, checkpoint::Faults& faults) {
  const bool nvfp4 = layer.kind() == ExpertKind::nvfp4;
  Json json = {{"layer", layer.index()},
               {"kind", nvfp4 ? "nvfp4" : "bf16"},
               {"dialect", layer.dialect()},
               {"expert_bytes", layer.expert_bytes()},
               {"bytes", layer.expert_bytes() * experts}};
  std::optional<checkpoint::ExpertViews> shown;
  for (std::int64_t e = 0; e < experts; ++e) {
    const Verdict why = attempt([&] {
      const checkpoint::ExpertViews views = layer.expert(e);
      if (!shown) shown = views;
    });
    if (why) faults.add("tensor that cannot be used", why->text);
  }
  if (shown) {
    json["tensors"] = {{"gate", tensor_json(shown->gate)},
                       {"up", tensor_json(shown->up)},
                       {"down", tensor_json(shown->down)}};
    if (nvfp4) {
      json["tensors"]["gate_scale"] = tensor_json(shown->gate_sf);
      json["tensors"]["up_scale"] = tensor_json(shown->up_sf);
      json["tensors"]["down_scale"] = tensor_json(shown->down_sf);
    }
  }
  layer.scan_extras(faults);
  layer.check_block(faults);
  for (const auto& [key, suffix] : {std::pair{"router", checkpoint::gate_name},
                                    {"router_bias", checkpoint::selection_bias_name},
                                    {"pre_projection", checkpoint::pre_proj_name},
                                    {"pre_norm", checkpoint::pre_norm_name},
                                    {"post_norm", checkpoint::post_norm_name},
                                    {"post_projection", checkpoint::post_proj_name}})
    if (const auto view = layer.find(suffix)) json["block"][key] = tensor_json(*view);
  if (!nvfp4) return json;
  const LayerScales scales = layer.scales(faults);
  json["weight_only"] = scales.weight_only;
  json["notes"] = checkpoint::notes_of(scales);
  json["gate_up_differ"] = scales.gate_up_differ;
  json["largest_gate_up_ratio"] = scales.largest_gate_up_ratio;
  json["input_scale"] = spread_json(scales.least13, scales.in13);
  json["intermediate_scale"] = spread_json(scales.least2, scales.in2);
  return json;
}

Json report(const Checkpoint& ckpt, checkpoint::Faults& faults) {
  const checkpoint::ModelConfig& c = ckpt.config();
  Json layers = Json::array();
  std::int64_t bytes = 0;
  std::int64_t nvfp4 = 0;
  for (const std::int64_t index : ckpt.moe_layers()) {
    const MoeLayer& layer = ckpt.layer(index);
    layers.push_back(layer_json(layer, c.experts, faults));
    bytes += layer.expert_bytes() * c.experts;
    nvfp4 += layer.kind() == ExpertKind::nvfp4 ? 1 : 0;
  }
  Json shards = Json::array();
  for (const Checkpoint::Shard& s : ckpt.shards())
    shards.push_back({{"name", s.name}, {"bytes", s.bytes}, {"tensors", s.tensors}});
  return {{"checkpoint", ckpt.directory().string()},
          {"architecture", c.architecture},
          {"experts", c.experts},
          {"hidden", c.hidden},
          {"model_hidden", c.model_hidden},
          {"intermediate", c.intermediate},
          {"top_k", c.top_k},
          {"activation", c.activation},
          {"quant_algo", c.quant_algo},
          {"nvfp4_layers", nvfp4},
          {"bf16_layers", static_cast<std::int64_t>(ckpt.moe_layers().size()) - nvfp4},
          {"expert_bytes", bytes},
          {"legal_tp", layout::legal_tp(c.intermediate)},
          {"layers", std::move(layers)},
          {"shards", std::move(shards)},
          {"notes", ckpt.notes()},
          {"faults_total", faults.total()},
          {"faults", faults_json(faults)}};
}

std::string spread_text(const Json& s) {
  if (s.is_null()) return "none";
  const double low = s["lowest"].get<double>();
  const double high = s["highest"].get<double>();
  if (low == high) return fmt::format("{:.6g}", high);
  return fmt::format("{:.6g} to {:.6g} ({:.2f}x)", low, high, high / low);
}

std::string tensor_text(const Json& t) {
  return fmt::format("{} {}", t["dtype"].get<std::string>(), t["shape"].dump());
}

void print_layer(const Json& l, std::int64_t experts, Output& out) {
  out.line("layer {}: {}, {}, {} experts, {}", l["layer"].get<std::int64_t>(), l["kind"].get<std::string>(),
           l["dialect"].get<std::string>(), experts, bytes_text(l["bytes"].get<std::int64_t>()));
  if (l.contains("tensors"))
    for (const auto& [name, t] : l["tensors"].items()) out.line("  {:<19} {}", name, tensor_text(t));
  if (l.contains("block"))
    for (const auto& [name, t] : l["block"].items()) out.line("  {:<19} {}", name, tensor_text(t));
  if (!l.contains("weight_only")) return;
  const auto notes = l["notes"].get<std::vector<std::string>>();
  const bool differ = l["gate_up_differ"].get<std::int64_t>() != 0;
  out.line("  gate/up scales      {}", differ ? notes.front() : "equal in all experts");
  if (l["weight_only"].get<bool>()) {
    out.line("  input scales        {}", notes.back());
    return;
  }
  out.line("  input scales        {}", spread_text(l["input_scale"]));
  out.line("  between the GEMMs   {}", spread_text(l["intermediate_scale"]));
}

void print(const Json& r, const checkpoint::Faults& faults, Output& out) {
  const auto number = [&](const char* key) { return r[key].get<std::int64_t>(); };
  out.line("{}", r["checkpoint"].get<std::string>());
  out.line("architecture  {}", r["architecture"].get<std::string>());
  out.line("experts       {} of {} x {}, top {}, {}", number("experts"), number("hidden"),
           number("intermediate"), number("top_k"), r["activation"].get<std::string>());
  out.line("layers        {} NVFP4, {} BF16", number("nvfp4_layers"), number("bf16_layers"));
  const auto algo = r["quant_algo"].get<std::string>();
  out.line("quantisation  {}", algo.empty() ? "none" : algo);
  out.line("bytes         {} of routed experts", bytes_text(number("expert_bytes")));
  out.line("shards        {}", r["shards"].size());
  const auto legal = r["legal_tp"].get<std::vector<std::int64_t>>();
  out.line("legal tp      {}", legal.empty() ? std::string("none without padding (--pad)")
                                             : fmt::format("{}", fmt::join(legal, ", ")));
  out.line("");
  for (const Json& l : r["layers"]) print_layer(l, number("experts"), out);
  if (!r["notes"].empty()) {
    out.line("");
    for (const Json& note : r["notes"]) out.line("note: {}", note.get<std::string>());
  }
  out.line("");
  if (faults.empty()) {
    out.line("no faults found (kerf verify reads the block scales as well)");
    return;
  }
  out.line("{} found:", counted(faults.total(), "fault"));
  print_faults(faults, out);
}

void run(const std::string& path, Context& context) {
  const Checkpoint ckpt = Checkpoint::open(path);
  checkpoint::Faults faults;
  const Json r = report(ckpt, faults);
  if (context.json)
    context.out.json(r);
  else
    print(r, faults, context.out);
}

}  // namespace

void add_inspect(CLI::App& app, Context& context) {
  auto path = std::make_shared<std::string>();
  CLI::App* command = add_command(app, context, "inspect", "What is in a checkpoint, and the faults found");
  command->add_option("CKPT", *path, "Model directory")->required();
  command->callback([path, &context] { run(*path, context); });
}

}  // namespace kerf::cli
