// kerf inspect: what a checkpoint holds, and what is wrong with it. Reads headers and global scales, then
// every block of the experts once (not with --headers): real quantisers give blocks of zeros some scale or
// other, so only their codes tell them.
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/text.h"

namespace kerf::cli {

namespace {

using checkpoint::Checkpoint;
using checkpoint::ExpertKind;
using checkpoint::LayerScales;
using checkpoint::MoeLayer;
using Blocks = std::vector<tools::LayerBlocks>;

struct Options {
  std::string path;
  std::string plot;
  bool headers = false;
};

// Smallest and largest input scale of a layer's experts; null where there are none that can be used.
Json spread_json(float least, float largest) {
  return std::isnan(least) ? Json() : Json{{"lowest", least}, {"highest", largest}};
}

Json tensor_json(const tensor::StoredTensor& stored) {
  return {{"dtype", tensor::name(stored.dtype)},
          {"shape", std::vector<std::int64_t>(stored.shape.dims().begin(), stored.shape.dims().end())}};
}

// One layer: what it is, what its scales say. What is wrong goes to `faults`.
Json layer_json(const checkpoint::ModelConfig& config, const MoeLayer& layer, checkpoint::Faults& faults) {
  const std::int64_t experts = config.experts;
  const bool nvfp4 = layer.kind() == ExpertKind::nvfp4;
  Json json = {{"layer", layer.index()},
               {"kind", nvfp4 ? "nvfp4" : "bf16"},
               {"dialect", layer.dialect()},
               {"expert_bytes", layer.expert_bytes()},
               {"bytes", layer.expert_bytes() * experts}};
  std::optional<checkpoint::ExpertFiles> shown;
  for (std::int64_t e = 0; e < experts && layer.dialect() != "exported"; ++e) {
    const Verdict why = attempt([&] {
      const checkpoint::ExpertFiles files = layer.expert_files(e);
      if (!shown) shown = files;
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
  checkpoint::check_selection_bias(config, layer, faults);
  layer.check_block(faults);
  for (const auto& [key, suffix] : {std::pair{"router", checkpoint::gate_name},
                                    {"router_bias", checkpoint::selection_bias_name},
                                    {"pre_projection", checkpoint::pre_proj_name},
                                    {"pre_norm", checkpoint::pre_norm_name},
                                    {"post_norm", checkpoint::post_norm_name},
                                    {"post_projection", checkpoint::post_proj_name}})
    if (const auto stored = layer.stored(suffix)) json["block"][key] = tensor_json(*stored);
  if (!nvfp4) return json;
  const LayerScales scales = layer.scales(faults);
  json["weight_only"] = scales.weight_only;
  json["notes"] = checkpoint::notes_of(scales);
  for (const std::string& warning : checkpoint::warnings_of(scales)) json["notes"].push_back(warning);
  json["gate_up_differ"] = scales.gate_up_differ;
  json["largest_gate_up_ratio"] = scales.largest_gate_up_ratio;
  json["input_scale"] = spread_json(scales.least13, scales.in13);
  json["intermediate_scale"] = spread_json(scales.least2, scales.in2);
  return json;
}

double share(const tools::ExpertBlocks& b) {
  return b.blocks == 0 ? 0.0 : static_cast<double>(b.zeros) / static_cast<double>(b.blocks);
}

// What the blocks of an NVFP4 layer say.
void add_blocks(const tools::ExpertBlocks& sum, Json& json) {
  json["blocks"] = sum.blocks;
  json["zero_blocks"] = sum.zeros;
  json["zero_block_share"] = share(sum);
  const auto range = [](const tools::ScaleRange& r) { return spread_json(r.least, r.most); };
  json["scales"] = {{"gate", range(sum.gate)}, {"up", range(sum.up)}, {"down", range(sum.down)}};
}

// The same over all layers, and how gate and up differ.
void add_totals(Json& json) {
  std::int64_t differ = 0;
  double ratio = 1;
  Json worst;
  std::int64_t blocks = 0;
  std::int64_t zeros = 0;
  for (const Json& layer : json["layers"]) {
    if (!layer.contains("gate_up_differ")) continue;
    differ += layer["gate_up_differ"].get<std::int64_t>();
    if (const auto here = layer["largest_gate_up_ratio"].get<double>(); here > ratio) {
      ratio = here;
      worst = layer["layer"];
    }
    if (!layer.contains("blocks")) continue;
    blocks += layer["blocks"].get<std::int64_t>();
    zeros += layer["zero_blocks"].get<std::int64_t>();
  }
  json["gate_up_differ"] = differ;
  json["largest_gate_up_ratio"] = ratio;
  json["largest_gate_up_ratio_layer"] = worst;
  if (blocks == 0) return;
  json["blocks"] = blocks;
  json["zero_blocks"] = zeros;
  json["zero_block_share"] = static_cast<double>(zeros) / static_cast<double>(blocks);
}

// What an export is for; null for a checkpoint.
Json export_json(const Checkpoint& ckpt) {
  if (ckpt.exported() == nullptr) return {};
  const checkpoint::ExportFacts& facts = ckpt.exported()->facts();
  return {{"id", checkpoint::text_of(ckpt.exported()->id())},
          {"ranks", facts.placement.ranks},
          {"ep", facts.placement.ep},
          {"tp", facts.placement.tp},
          {"layout", facts.layout},
          {"format", facts.format},
          {"width", facts.width},
          {"bf16_width", facts.bf16_width},
          {"written_by", cut(facts.writer)},
          {"source", facts.source},
          {"source_digest", cut(facts.source_digest)}};
}

Json report(const Checkpoint& ckpt, const Blocks& blocks, const std::vector<Checkpoint::Shard>& files,
            checkpoint::Faults& faults) {
  checkpoint::Faults told;  // of an export's layers all is known by now
  checkpoint::Faults& found = ckpt.exported() != nullptr ? told : faults;
  const checkpoint::ModelConfig& c = ckpt.config();
  Json layers = Json::array();
  std::int64_t bytes = 0;
  std::int64_t nvfp4 = 0;
  for (const std::int64_t index : ckpt.moe_layers()) {
    const MoeLayer& layer = ckpt.layer(index);
    layers.push_back(layer_json(c, layer, found));
    for (const tools::LayerBlocks& b : blocks)
      if (b.layer == index && !b.experts.empty()) add_blocks(b.total(), layers.back());
    bytes += layer.expert_bytes() * c.experts;
    nvfp4 += layer.kind() == ExpertKind::nvfp4 ? 1 : 0;
  }
  Json shards = Json::array();
  for (const Checkpoint::Shard& s : files)
    shards.push_back({{"name", s.name}, {"bytes", s.bytes}, {"tensors", s.tensors}});
  Json json = {{"checkpoint", ckpt.directory().string()},
               {"export", export_json(ckpt)},
               {"architecture", cut(c.architecture)},
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
  add_totals(json);
  return json;
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

std::string zeros_text(const Json& l) {
  return fmt::format("{} of {} ({:.3g} %)", l["zero_blocks"].get<std::int64_t>(),
                     l["blocks"].get<std::int64_t>(), 100 * l["zero_block_share"].get<double>());
}

void print_blocks(const Json& l, Output& out) {
  if (!l.contains("blocks")) return;
  for (const auto& [name, range] : l["scales"].items())
    out.line("  {:<19} {}", name + " decoded by", spread_text(range));
  out.line("  zero blocks         {}", zeros_text(l));
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
  } else {
    out.line("  input scales        {}", spread_text(l["input_scale"]));
    out.line("  between the GEMMs   {}", spread_text(l["intermediate_scale"]));
  }
  print_blocks(l, out);
}

void print(const Json& r, const checkpoint::Faults& faults, bool headers, Output& out) {
  const auto number = [&](const char* key) { return r[key].get<std::int64_t>(); };
  out.line("{}", r["checkpoint"].get<std::string>());
  if (const Json& e = r["export"]; !e.is_null())
    out.line("export        for {} (EP {} x TP {}), layout {}, by kerf {} from {}",
             counted(e["ranks"].get<std::int64_t>(), "rank"), e["ep"].get<std::int64_t>(),
             e["tp"].get<std::int64_t>(), e["layout"].get<std::string>(), e["written_by"].get<std::string>(),
             e["source"].get<std::string>());
  out.line("architecture  {}", r["architecture"].get<std::string>());
  out.line("experts       {} of {} x {}, top {}, {}", number("experts"), number("hidden"),
           number("intermediate"), number("top_k"), r["activation"].get<std::string>());
  out.line("layers        {} NVFP4, {} BF16", number("nvfp4_layers"), number("bf16_layers"));
  const auto algo = r["quant_algo"].get<std::string>();
  out.line("quantisation  {}", algo.empty() ? "none" : algo);
  out.line("bytes         {} of routed experts", bytes_text(number("expert_bytes")));
  out.line("shards        {}", r["shards"].size());
  if (number("nvfp4_layers") > 0) {
    const std::int64_t differ = number("gate_up_differ");
    out.line("gate/up       {}",
             differ == 0 ? "equal global scales in all experts"
                         : fmt::format("{} with different global scales, largest ratio "
                                       "{:g} (layer {})",
                                       counted(differ, "expert"), r["largest_gate_up_ratio"].get<double>(),
                                       r["largest_gate_up_ratio_layer"].dump()));
  }
  if (r.contains("blocks")) out.line("zero blocks   {}", zeros_text(r));
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
    const bool exported = !r["export"].is_null();
    out.line("no faults found {}", !exported ? "(kerf verify reads the block scales as well)"
                                   : headers
                                       ? "in the headers of all ranks' files (kerf verify reads them whole)"
                                       : "in all ranks' files");
    return;
  }
  out.line("{} found:", counted(faults.total(), "fault"));
  print_faults(faults, out);
}

void run(const Options& o, Context& context) {
  if (o.headers && !o.plot.empty())
    throw Error(ErrorKind::usage, "--plot draws what --headers leaves unread: one of them");
  const Checkpoint ckpt = Checkpoint::open(o.path);
  const bool converted = ckpt.exported() != nullptr;  // its blocks are not those of a checkpoint any more
  if (converted && !o.plot.empty())
    throw Error(ErrorKind::unsupported, "--plot draws a checkpoint's scales: not those of an export");
  if (!o.plot.empty()) check_outside(output_file("--plot", o.plot), ckpt.directory());
  Blocks blocks;
  if (!o.headers && !converted) {
    ProgressBar bar(context, "reading blocks");
    blocks = tools::look_at_blocks(ckpt, Workers(Context::threads()),
                                   [&](std::int64_t done, std::int64_t total) { bar.update(done, total); });
  }
  checkpoint::Faults faults = ckpt.layer_faults();
  std::vector<Checkpoint::Shard> files = ckpt.shards();
  if (converted) {  // rank 0's file is what is open; the others are looked at as well
    ProgressBar bar(context, "reading the ranks' files");
    tools::VerifyReport all =
        o.headers ? tools::verify_headers(ckpt)
                  : tools::verify(ckpt, Workers(Context::threads()),
                                  [&](std::int64_t done, std::int64_t total) { bar.update(done, total); });
    faults = std::move(all.faults);
    files = std::move(all.files);
  }
  Json r = report(ckpt, blocks, files, faults);
  ckpt.require_unchanged();
  if (!o.plot.empty()) {
    tools::write_svg(o.plot, tools::scale_chart(ckpt.directory().string(), blocks));
    r["plot"] = o.plot;
  }
  if (context.json) return context.out.json(r);
  print(r, faults, o.headers, context.out);
  if (!o.plot.empty()) context.out.line("plot written to {}", o.plot);
}

}  // namespace

void add_inspect(CLI::App& app, Context& context) {
  auto o = std::make_shared<Options>();
  CLI::App* command = add_command(app, context, "inspect", "What is in a checkpoint, and the faults found");
  command->add_option("CKPT", o->path, "Model directory")->required();
  command->add_flag("--headers", o->headers, "Headers and global scales alone: no block is read");
  command->add_option("--plot", o->plot, "SVG file to write: the scales of each layer and of each expert")
      ->check(not_empty());
  command->callback([o, &context] { run(*o, context); });
}

}  // namespace kerf::cli
