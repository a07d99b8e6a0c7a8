// kerf plan: what each rank would hold, in bytes, worked out without holding it. Needs a config or just the
// sizes, never weights.
#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "cli/text.h"

namespace kerf::cli {

namespace {

namespace fs = std::filesystem;

struct Options {
  std::string path;
  std::optional<std::int64_t> ranks, experts, hidden, intermediate, layers, top_k;
  std::optional<std::string> bf16_layers;
  std::int64_t tokens = 8;
  std::string tail = "fast";
  RankOptions op;  // backend, act and grid alone
};

// What is known of the model: from a checkpoint, a config, the options, or all of them.
struct Model {
  std::optional<std::int64_t> experts, hidden, intermediate, top_k;
  std::int64_t nvfp4_layers = 1;
  std::int64_t bf16_layers = 0;
  std::int64_t weight_only_layers = 0;  // of the NVFP4 ones
  bool norm = false;
};

bool holds_weights(const fs::path& path) {
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".safetensors") return true;
  return false;
}

void count_layers(const checkpoint::Checkpoint& ckpt, Model& model) {
  require(ckpt.layer_faults().verdict());
  model.nvfp4_layers = 0;
  for (const std::int64_t index : ckpt.moe_layers()) {
    const checkpoint::MoeLayer& layer = ckpt.layer(index);
    (layer.kind() == checkpoint::ExpertKind::bf16 ? model.bf16_layers : model.nvfp4_layers)++;
    if (layer.weight_only()) ++model.weight_only_layers;
  }
}

Model read(const std::string& path, const Options& o, const Context& context) {
  if (checkpoint::exported_ranks_in(path) > 0) {
    const auto ckpt = checkpoint::Checkpoint::open(path);
    const checkpoint::ModelConfig& c = ckpt.config();
    for (const std::string& note : checkpoint::notes_of(c)) context.log.info(note);
    Model model{c.experts, c.hidden, c.intermediate, c.top_k, 0, 0, 0, c.post_norm.has_value()};
    count_layers(ckpt, model);
    return model;
  }
  const checkpoint::ModelConfig config = checkpoint::read_config_at(path);
  for (const std::string& note : checkpoint::notes_of(config)) context.log.info(note);
  Model model{config.experts,
              config.hidden,
              config.intermediate,
              config.top_k,
              0,
              0,
              0,
              config.post_norm.has_value()};
  if (holds_weights(path)) {
    // The files know best which layers are BF16. A damaged one is no reason not to plan.
    const Verdict why = attempt([&] { count_layers(checkpoint::Checkpoint::open(path), model); });
    if (!why) return model;
    if (why->kind == ErrorKind::memory) require(why);
    context.log.warning("the kinds of layers come from the config alone: " + why->text);
  }
  model.bf16_layers = checkpoint::excluded_layers(config);
  model.nvfp4_layers = checkpoint::routed_layers(config) - model.bf16_layers;
  model.weight_only_layers = std::min(checkpoint::weight_only_layers(config), model.nvfp4_layers);
  if (config.quant_algo.empty() && !o.bf16_layers)
    context.log.warning("the config names no quantisation: planned as NVFP4 (--bf16-layers says otherwise)");
  return model;
}

Model model_of(const Options& o, const Context& context) {
  Model m = o.path.empty() ? Model{} : read(o.path, o, context);
  if (o.experts) m.experts = o.experts;
  if (o.hidden) m.hidden = o.hidden;
  if (o.intermediate) m.intermediate = o.intermediate;
  if (o.top_k) m.top_k = o.top_k;
  if (o.layers || o.bf16_layers) {
    const std::int64_t layers = o.layers.value_or(m.nvfp4_layers + m.bf16_layers);
    const auto bf16 = o.bf16_layers && *o.bf16_layers != "none"
                          ? parse_ranges(*o.bf16_layers, "--bf16-layers")
                          : std::vector<std::int64_t>{};
    for (const std::int64_t layer : bf16)
      if (layer >= layers)
        throw Error(ErrorKind::usage,
                    fmt::format("--bf16-layers: {} is not one of layers 0 to {}", layer, layers - 1));
    m.bf16_layers = static_cast<std::int64_t>(bf16.size());
    const bool all = m.weight_only_layers == m.nvfp4_layers;
    m.nvfp4_layers = layers - m.bf16_layers;
    if (m.weight_only_layers > 0)
      m.weight_only_layers = all ? m.nvfp4_layers : std::min(m.weight_only_layers, m.nvfp4_layers);
  }
  if (!m.experts || !m.hidden || !m.intermediate)
    throw Error(ErrorKind::usage, "without a checkpoint, --experts, --hidden and --intermediate are needed");
  return m;
}

struct Placement {
  std::int64_t ranks = 1;
  decode::GridShape grid;
  std::int64_t stock = 1;  // ranks that hold the stock experts
  std::string no_tp;       // why the ranks cannot be used for expert TP, empty where they can
};

Placement placement_of(const Options& o, const Model& m, const Context& context) {
  const RankOptions& asked = o.op;
  Placement p;
  p.ranks = o.ranks.value_or(asked.ep.value_or(1) * asked.tp.value_or(1));
  if (p.ranks > most_count)
    throw Error(ErrorKind::usage,
                fmt::format("--ep x --tp is {} ranks, wanted at most {}", p.ranks, most_count));
  p.grid = decode::grid_shape(p.ranks, asked.ep, asked.tp);
  p.stock = p.ranks;
  if (!o.ranks && !asked.ep && *m.experts % p.stock != 0) {
    // The cut alone was asked about.
    context.log.warning(
        fmt::format("{} experts cannot be loaded whole over {} ranks, so a reshard has nothing to start from",
                    *m.experts, p.stock));
    p.stock = 1;
  }
  // Where there is nothing to cut, decode runs EP, and with --mode ep where a cut cannot be: planned as EP. A
  // cut that was asked for is refused where it cannot be, and so is everything where the experts do not
  // divide either: then both reasons are given.
  if (!asked.tp && !asked.ep && p.ranks > 1) {
    if (m.nvfp4_layers == 0)
      p.no_tp = "no NVFP4 layer, and BF16 layers stay EP";
    else if (const Verdict why = layout::cuttable(*m.hidden, *m.intermediate, p.grid.tp, asked.fit);
             why && !layout::placeable(*m.experts, p.ranks) &&
             !layout::cuttable(*m.hidden, *m.intermediate, 1, asked.fit))
      p.no_tp = why->text;
    if (!p.no_tp.empty()) p.grid = {p.ranks, 1};
  }
  return p;
}

Json peaks_json(const decode::StagePeaks& p) {
  return {{"load", p.load},
          {"convert", p.convert},
          {"reshard", p.reshard},
          {"warm_up", p.warm_up},
          {"steps", p.steps}};
}

Json kinds_json(const decode::KindBytes& b) {
  return {{"w13", b.w13},         {"w13_sf", b.w13_sf}, {"w2", b.w2},        {"w2_sf", b.w2_sf},
          {"scalars", b.scalars}, {"bf16", b.bf16},     {"total", b.total()}};
}

// Every slice's width, ranks of a row ascending.
std::vector<std::int64_t> slices_of(const decode::MemoryPlan& plan, std::int64_t tp) {
  std::vector<std::int64_t> widths;
  for (std::int64_t part = 0; part < tp; ++part)
    widths.push_back(layout::slice_of(plan.width, tp, part).width);
  return widths;
}

void print_stages(const decode::MemoryPlan& plan, Output& out) {
  const auto stages = [&](const char* where, const decode::StagePeaks& p) {
    out.line("{:<22} {:>18} {:>18} {:>18} {:>18} {:>18}", where, p.load, p.convert, p.reshard, p.warm_up,
             p.steps);
  };
  out.line("{:<22} {:>18} {:>18} {:>18} {:>18} {:>18}", "peak by stage", "load", "convert", "reshard",
           "warm-up", "steps");
  stages("host", plan.host);
  if (!plan.on_device) return;
  stages("device", plan.device);
  out.line(
      "device: step buffers and workspace {}, a run of the op from the host {}; host: page-locked staging {}",
      bytes_text(plan.stack), bytes_text(plan.run), bytes_text(plan.staging));
}

void print(const decode::MemoryRequest& r, const Placement& p, const decode::MemoryPlan& plan, Output& out) {
  out.line("{} and {} of {}, {} x {}, top {}", counted(r.nvfp4_layers, "NVFP4 layer"),
           counted(r.bf16_layers, "BF16 layer"), counted(r.experts, "expert"), r.hidden, r.intermediate,
           r.top_k);
  out.line("{}: stock {} each; EP {} x TP {}: {} of a row, slice {}", counted(p.ranks, "rank"),
           counted(r.experts / p.stock, "expert"), p.grid.ep, p.grid.tp,
           counted(r.experts / p.grid.ep, "expert"), widths_text(slices_of(plan, p.grid.tp)));
  if (r.nvfp4_layers > 0 && plan.width != r.intermediate)
    out.line("NVFP4 experts padded with zeros from {} to {}", r.intermediate, plan.width);
  if (r.bf16_layers > 0 && plan.bf16_width != r.intermediate)
    out.line("BF16 experts padded with zeros from {} to {}", r.intermediate, plan.bf16_width);
  if (!p.no_tp.empty()) out.line("EP alone: expert TP is not possible: {}", p.no_tp);
  out.line("legal tp  {}", fmt::join(layout::legal_tp(plan.width), ", "));
  out.line("legal ep  {}", fmt::join(layout::legal_ep(r.experts), ", "));
  out.line("");
  out.line("{:<22} {:>18} {:>18}", "bytes per rank", "EP (stock)", "TP (added)");
  const std::array<std::tuple<const char*, std::int64_t, std::int64_t>, 7> rows = {{
      {"w13", plan.ep.w13, plan.tp.w13},
      {"w13_sf", plan.ep.w13_sf, plan.tp.w13_sf},
      {"w2", plan.ep.w2, plan.tp.w2},
      {"w2_sf", plan.ep.w2_sf, plan.tp.w2_sf},
      {"scalars", plan.ep.scalars, plan.tp.scalars},
      {"bf16", plan.ep.bf16, plan.tp.bf16},
      {"total", plan.ep.total(), plan.tp.total()},
  }};
  for (const auto& [name, ep, tp] : rows) out.line("{:<22} {:>18} {:>18}", name, ep, tp);
  out.line("");
  print_stages(plan, out);
  out.line("");
  out.line("peak per rank{}", plan.on_device ? ", host and device together" : "");
  out.line("  load     {:>18}  {:>12}  stock experts", plan.load, bytes_text(plan.load));
  out.line(
      "  reshard  {:>18}  {:>12}  and sliced experts, and for a moment one packed kind ({}) or a probe ({})",
      plan.reshard, bytes_text(plan.reshard), bytes_text(plan.packed), bytes_text(plan.probe));
  out.line("  steady   {:>18}  {:>12}  stock and sliced experts, and buffers of {} on backend {} ({})",
           plan.steady, bytes_text(plan.steady), counted(r.tokens, "token"), r.backend,
           bytes_text(plan.buffers));
}

// What each rank holds, those that hold the same together: slices have at most two widths.
Json by_slice_json(const decode::MemoryRequest& request, const Placement& p) {
  Json out = Json::array();
  decode::MemoryRequest one = request;
  std::int64_t width = 0;
  for (std::int64_t part = 0; part < p.grid.tp; ++part) {
    const std::int64_t own =
        layout::slice_of(layout::converted_width(request.intermediate, p.grid.tp, request.fit), p.grid.tp,
                         part)
            .width;
    if (request.nvfp4_layers == 0 ? part > 0 : own == width) continue;
    width = own;
    one.part = part;
    const decode::MemoryPlan plan = decode::memory_plan(one);
    out.push_back({{"from_part", part},
                   {"slice", plan.slice},
                   {"bytes", {{"ep", kinds_json(plan.ep)}, {"tp", kinds_json(plan.tp)}}},
                   {"host", peaks_json(plan.host)},
                   {"device", plan.on_device ? peaks_json(plan.device) : Json()}});
  }
  return out;
}

void run(const Options& o, Context& context) {
  const Model m = model_of(o, context);
  // model_of() saw to it that the sizes are there. Of uneven slices the widest is planned.
  const Placement p = placement_of(o, m, context);
  const decode::MemoryRequest r{.experts = m.experts.value_or(0),
                                .hidden = m.hidden.value_or(0),
                                .intermediate = m.intermediate.value_or(0),
                                .top_k = m.top_k.value_or(std::min<std::int64_t>(8, m.experts.value_or(0))),
                                .nvfp4_layers = m.nvfp4_layers,
                                .bf16_layers = m.bf16_layers,
                                .weight_only_layers = m.weight_only_layers,
                                .ranks = p.stock,
                                .rows = p.grid.ep,
                                .tp = p.grid.tp,
                                .fit = o.op.fit,
                                .tokens = o.tokens,
                                .input = input_of(o.op),
                                .backend = backend_of(o.op),
                                .workers = threads_per_rank(Context::threads(), static_cast<int>(p.ranks)),
                                .tail = {.kind = o.tail == "exact" ? tail::Kind::exact : tail::Kind::fast},
                                .norm = m.norm};
  const decode::MemoryPlan plan = decode::memory_plan(r);
  if (!context.json) {
    print(r, p, plan, context.out);
    return;
  }
  context.out.json(
      {{"experts", r.experts},
       {"hidden", r.hidden},
       {"intermediate", r.intermediate},
       {"converted_intermediate", r.nvfp4_layers > 0 ? plan.width : plan.bf16_width},
       {"top_k", r.top_k},
       {"nvfp4_layers", r.nvfp4_layers},
       {"bf16_layers", r.bf16_layers},
       {"batch", r.tokens},
       {"backend", r.backend},
       {"tail", tail::name(r.tail.kind)},
       {"ranks", p.ranks},
       {"ep", p.grid.ep},
       {"tp", p.grid.tp},
       {"tp_not_possible", p.no_tp.empty() ? Json() : Json(p.no_tp)},
       {"experts_per_rank", r.experts / p.stock},
       {"experts_per_row", r.experts / p.grid.ep},
       {"slice", plan.slice},
       {"slices", slices_of(plan, p.grid.tp)},
       {"legal_tp", layout::legal_tp(plan.width)},
       {"legal_ep", layout::legal_ep(r.experts)},
       {"bytes_per_rank", {{"ep", kinds_json(plan.ep)}, {"tp", kinds_json(plan.tp)}}},
       {"reshard_packed", plan.packed},
       {"probe_buffers", plan.probe},
       {"step_buffers", plan.buffers},
       {"peak_per_rank", {{"load", plan.load}, {"reshard", plan.reshard}, {"steady", plan.steady}}},
       {"device", o.op.device},
       {"ranks_by_slice", by_slice_json(r, p)},
       {"stages",
        {{"host", peaks_json(plan.host)}, {"device", plan.on_device ? peaks_json(plan.device) : Json()}}},
       {"device_step_buffers", plan.stack},
       {"device_run", plan.run},
       {"host_staging", plan.staging}});
}

}  // namespace

void add_plan(CLI::App& app, Context& context) {
  auto o = std::make_shared<Options>();
  CLI::App* command = add_command(app, context, "plan", "Bytes per rank, EP and TP, and which tp is legal");
  command->add_option("CKPT", o->path, "Model directory or config.json; not needed where the sizes are given")
      ->check(not_empty());
  command
      ->add_option("--ranks", o->ranks,
                   "Ranks [ep x tp]; EP alone where nothing can be cut so and neither --ep nor --tp is given")
      ->transform(whole_number(1, most_count));
  add_grid_options(*command, o->op);
  command->add_option("--experts", o->experts, "Experts, E")->transform(whole_number(1, most_size));
  command->add_option("--hidden", o->hidden, "Expert input and output width, H")
      ->transform(whole_number(1, most_size));
  command->add_option("--intermediate", o->intermediate, "Intermediate width, I")
      ->transform(whole_number(1, most_size));
  command
      ->add_option("--layers", o->layers,
                   "Layers with routed experts, NVFP4 unless --bf16-layers says otherwise")
      ->transform(whole_number(1, most_count));
  command->add_option("--bf16-layers", o->bf16_layers, "Which of them are BF16, such as 0,61; none for none");
  command->add_option("--top-k", o->top_k, "Experts per token, K")->transform(whole_number(1, most_size));
  command->add_option("--batch", o->tokens, "Tokens of the largest step")
      ->transform(whole_number(1, decode::most_tokens))
      ->capture_default_str();
  command->add_option("--tail", o->tail, "Tail of the steps: fast, or exact, whose buffers are larger")
      ->capture_default_str()
      ->check(CLI::IsMember({"fast", "exact"}));
  command
      ->add_option("--device", o->op.device, "Where experts are to be: cpu, or cuda, which need not be here")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  add_op_options(*command, o->op);
  command->callback([o, &context] { run(*o, context); });
}

}  // namespace kerf::cli
