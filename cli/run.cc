// kerf run: sends recorded inputs through a layer, to set kerf's rows beside those of another engine.
#include <algorithm>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cli/room.h"

namespace kerf::cli {

namespace {

struct Options {
  std::string checkpoint;
  std::int64_t layer = 0;
  std::string in;
  std::string out;
  std::optional<std::string> mode;
  std::string tail = "fast";
  bool unfinalized = false;
  RankOptions ranks;
};

// Tensors of the output file; they refer to the result.
using Named = std::vector<std::pair<std::string, tensor::TensorView>>;

template <typename T>
void add(Named& tensors, std::string name, tensor::Dtype dtype, const tensor::Shape& shape,
         const std::vector<T>& values) {
  tensors.emplace_back(std::move(name), tensor::TensorView{dtype, shape, std::as_bytes(std::span(values))});
}

Named tensors_of(const decode::LayerResult& r) {
  using tensor::Dtype;
  Named out;
  add(out, "y", Dtype::bf16, {r.tokens, r.hidden}, r.y);
  for (std::size_t i = 0; i < r.ranks.size(); ++i) {
    const decode::RankRows& mine = r.ranks[i];
    const auto rows = static_cast<std::int64_t>(mine.rows.size() + mine.sums.size()) / r.hidden;
    if (mine.sums.empty())
      add(out, fmt::format("rows.{}", i), Dtype::bf16, {rows, r.hidden}, mine.rows);
    else
      add(out, fmt::format("sums.{}", i), Dtype::f32, {rows, r.hidden}, mine.sums);
    add(out, fmt::format("map.{}", i), Dtype::i32, {r.tokens, r.top_k}, mine.map);
    add(out, fmt::format("weights.{}", i), Dtype::f32, {r.tokens, r.top_k}, mine.weights);
  }
  return out;
}

void report(const Options& o, const decode::LayerInputs& inputs, const decode::LayerResult& r,
            Context& context) {
  decode::Sha256 digest;
  digest.update(std::as_bytes(std::span(r.y)));
  const decode::GridShape grid = o.mode == "tp" ? grid_of(o.ranks) : decode::GridShape{o.ranks.ranks, 1};
  if (context.json) {
    context.out.json({{"checkpoint", o.checkpoint},
                      {"layer", o.layer},
                      {"mode", *o.mode},
                      {"tail", o.tail},
                      {"ranks", o.ranks.ranks},
                      {"ep", grid.ep},
                      {"tp", grid.tp},
                      {"tokens", r.tokens},
                      {"rows", inputs.rows_name},
                      {"routes", inputs.routes_name},
                      {"output", o.out},
                      {"y_sha256", digest.hex()}});
    return;
  }
  context.out.line(
      "{}: y BF16 [{}, {}] of layer {} from {} and {}, {} on {}{}, SHA-256 {}", o.out, r.tokens, r.hidden,
      o.layer, inputs.rows_name, inputs.routes_name, *o.mode, counted(o.ranks.ranks, "rank"),
      grid.ep > 1 && grid.tp > 1 ? fmt::format(" (EP {} x TP {})", grid.ep, grid.tp) : "", digest.hex());
}

// The output takes the place of what has its name: that must be none of the files that are read.
void check_output(const Options& o, const checkpoint::Checkpoint& from) {
  const OutputFile out = output_file("--out", o.out);
  if (same_file(out.resolved, o.in)) refuse_output(out, "it is the file that --in reads");
  check_outside(out, from.directory());
}

void run(const Options& given, Context& context) {
  Options o = given;
  check_rank_options(o.ranks, context);
  require_same_options(o.ranks, context, "run",
                       {{"--layer", std::to_string(o.layer)},
                        {"--mode", o.mode.value_or("not given")},
                        {"--tail", o.tail},
                        {"--unfinalized", o.unfinalized ? "given" : "not given"}});
  (void)checkpoint::check_writable(o.out);
  Stopwatch time(context);
  const auto from = checkpoint::Checkpoint::open(o.checkpoint);
  settle_for_export(o.ranks, from);
  if (decode::holds_slices(from) && !o.mode) o.mode = "tp";
  if (!o.mode) o.mode = "ep";
  const decode::GridShape grid = grid_of(o.ranks);
  if (o.mode == "tp" && grid.tp == 1 && grid.ep > 1)
    throw Error(ErrorKind::usage, "--mode tp cuts nothing with one rank in a row (--tp 1)");
  require(decode::foreign(from, o.ranks.ranks, o.mode == "tp" ? grid.tp : 1, o.ranks.fit));
  check_output(o, from);
  (void)from.layer(o.layer);  // an argument, before files that take long to read
  for (const std::string& note : from.notes()) context.log.info(note);
  const checkpoint::ModelConfig& config = from.config();
  const auto file = checkpoint::SafetensorsFile::open(o.in);
  const decode::LayerInputs inputs =
      decode::read_layer_inputs(file, o.in, {config.experts, config.hidden, config.top_k});
  require(file.changed());
  if (!inputs.ignored.empty())
    context.log.info(fmt::format("{}: not used: {}", o.in, fmt::join(inputs.ignored, ", ")));

  time.lap("reading the inputs");

  decode::LayerOptions options{o.layer, o.mode == "tp" ? decode::Mode::tp : decode::Mode::ep,
                               input_of(o.ranks), backend_of(o.ranks), o.unfinalized};
  if (o.tail == "exact") options.tail = tail::Kind::exact;
  options.fit = o.ranks.fit;
  require(layout::placeable(from.config().experts, o.ranks.ranks));  // before so many ranks are started
  require_room(from, o.ranks,
               {.layers = {o.layer},
                .tokens = std::max<std::int64_t>(inputs.tokens, 1),
                .expert_tp = o.mode == "tp",
                .exact = o.tail == "exact"});
  std::optional<decode::LayerResult> result;
  const bool reports = run_ranks(o.ranks, context, [&](const decode::Rank& rank) {
    decode::LayerResult mine = decode::run_layer(from, options, inputs, rank);
    if (rank.group.rank() == 0) result = std::move(mine);
  });
  time.lap("running the layer");
  if (!reports) return;
  if (const std::string text = decode::not_finite_text(result->y, result->hidden); !text.empty())
    context.log.warning(fmt::format("layer {}: {}", o.layer, text));
  checkpoint::write_safetensors(o.out, tensors_of(*result));
  time.lap("writing the output");
  report(o, inputs, *result, context);
}

}  // namespace

void add_run(CLI::App& app, Context& context) {
  auto o = std::make_shared<Options>();
  CLI::App* command = add_command(app, context, "run", "One layer on given inputs");
  command->add_option("CKPT", o->checkpoint, "Model directory")->required()->check(not_empty());
  command->add_option("--layer", o->layer, "Layer")->required()->transform(whole_number(0, most_count));
  command
      ->add_option(
          "--in", o->in,
          "safetensors with x (BF16 or F32 [T, H]) or a (U8 [T, H/2]) and a_sf (F8_E4M3 [T, H/16]); and "
          "topk_ids (I32 [T, K]) and topk_weights (F32 [T, K]), or router_logits (F32 [T, E])")
      ->required()
      ->check(not_empty());
  command
      ->add_option(
          "--out", o->out,
          "safetensors to write: y BF16 [T, H]; a new name, or a regular file to replace (the file itself "
          "where a symlink leads to one)")
      ->required()
      ->check(not_empty());
  command->add_flag("--unfinalized", o->unfinalized,
                    "Also each rank R's rows.R (BF16), map.R (I32) and weights.R (F32); with expert TP and "
                    "the exact tail sums.R (F32, before the scale of the expert) instead of rows.R");
  command
      ->add_option(
          "--tail", o->tail,
          "How ranks' rows become outputs: fast; exact (the same bits whatever the mode and the number "
          "of ranks)")
      ->capture_default_str()
      ->check(CLI::IsMember({"fast", "exact"}));
  command->add_option("--mode", o->mode, "ep or tp [ep; tp of an export of slices]")
      ->check(CLI::IsMember({"ep", "tp"}));
  add_rank_options(*command, o->ranks);
  command->callback([o, &context] { run(*o, context); });
}

}  // namespace kerf::cli
