// kerf decode: loads a checkpoint, measures steps in EP and in expert TP, and reports both in one table.
#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cli/room.h"
#include "cli/text.h"

namespace kerf::cli {

namespace {

struct Options {
  std::string checkpoint;
  RankOptions ranks;
  std::string block = "none";
  std::optional<std::string> mode;  // not given: both, as far as there is anything to cut
  std::string batches = "1,8";
  std::optional<std::string> layers;
  std::uint64_t seed = 1;
  double seconds = 2.0;
  std::string tail = "fast";
  std::optional<std::string> tactics;
  double tune_seconds = 0;
  std::string tactic_cache;
  std::optional<int> load_from_rank;
};

std::vector<tail::Kind> tails_of(const Options& o) {
  std::vector<tail::Kind> tails;
  for (const tail::Kind kind : {tail::Kind::fast, tail::Kind::exact})
    if (o.tail == "both" || o.tail == tail::name(kind)) tails.push_back(kind);
  return tails;
}

std::vector<std::int64_t> batches_of(const Options& o) {
  std::vector<std::int64_t> batches = parse_ranges(o.batches, "--batch");
  for (const std::int64_t b : batches)
    if (b < 1 || b > decode::most_tokens)
      throw Error(ErrorKind::usage,
                  fmt::format("--batch: {} tokens, wanted 1 to {}", b, decode::most_tokens));
  return batches;
}

// EP alone where that was asked for, or where nobody asked and there is nothing to cut: one rank a row, or no
// NVFP4 layer. Whatever else stands against expert TP is refused here, before a weight is read.
std::vector<decode::Mode> modes_of(const Options& o, const checkpoint::Checkpoint& from,
                                   const std::vector<std::int64_t>& layers, const Context& context) {
  using decode::Mode;
  const bool slices = decode::holds_slices(from);
  const bool whole = o.mode == "ep" || (slices && o.mode == "both");  // whole experts are wanted
  require(decode::foreign(from, o.ranks.ranks, whole ? 1 : grid_of(o.ranks).tp, o.ranks.fit));
  if (slices && !o.mode) return {Mode::tp};
  if (o.mode == "ep") {
    if (const auto tp = o.ranks.tp.value_or(1); tp > 1)
      throw Error(ErrorKind::usage, fmt::format("--mode ep cuts nothing, but --tp is {}", tp));
    return {Mode::ep};
  }
  const auto tp = static_cast<int>(grid_of(o.ranks).tp);
  if (!o.mode && o.ranks.tp.value_or(1) == 1) {
    const bool nvfp4 = std::any_of(layers.begin(), layers.end(), [&](std::int64_t index) {
      return from.layer(index).kind() == checkpoint::ExpertKind::nvfp4;
    });
    if (tp == 1 || !nvfp4) {
      context.log.info(!nvfp4               ? "no NVFP4 layer: nothing to cut, EP only"
                       : o.ranks.ranks == 1 ? "one rank: nothing to cut, EP only (--ranks N for expert TP)"
                                            : "tp 1: nothing to cut, EP only");
      return {Mode::ep};
    }
  }
  Verdict v = decode::shardable(from, layers, tp, o.ranks.fit);
  if (!v && o.tail != "fast") v = decode::exact_refused(from, layers, input_of(o.ranks), tp, o.ranks.fit);
  if (v)
    throw Error(v->kind,
                o.mode ? fmt::format("--mode {}: {}", *o.mode, v->text)
                       : fmt::format("expert TP (the default, beside EP) cannot run here: {}; use --mode ep "
                                     "for EP alone",
                                     v->text));
  return o.mode == "tp" ? std::vector{Mode::tp} : std::vector{Mode::ep, Mode::tp};
}

// Before any work: the cache's file is a cache or new, outside the checkpoint, and can be written where it is
// not there yet. One that is read-only still serves.
void check_cache(const std::string& path, const checkpoint::Checkpoint& from) {
  if (path.empty()) return;
  std::error_code missing;
  const std::filesystem::path there = std::filesystem::canonical(path, missing);
  check_outside({"--tactic-cache", path, missing ? checkpoint::check_writable(path) : there},
                from.directory());
  if (const Verdict why = tactics::not_a_cache(path)) throw Error(why->kind, "--tactic-cache: " + why->text);
}

// What NVFP4 experts were given: what --act says, or bf16 where there are none or they have no input scales.
const char* activation(const decode::Report& r) { return r.input == op::Input::nvfp4 ? "nvfp4" : "bf16"; }

std::string activation_text(const decode::Report& r, const Options& o) {
  if (r.input == op::Input::nvfp4) return "nvfp4 (quantised rows, W4A4)";
  if (r.checkpoint.nvfp4_layers == 0) return "bf16 (no NVFP4 layer)";
  return input_of(o.ranks) == op::Input::bf16
             ? "bf16 (W4A16)"
             : "bf16 (W4A16: the checkpoint has no input scales, weight-only)";
}

// What the tuner of stock experts found; null where it was not asked for.
Json tuned_json(const decode::Report& r) {
  const decode::StockTactics& s = r.stock_tactics;
  if (s.found.cached + s.found.timed + s.found.left == 0) return {};
  Json tuned = Json::array();
  for (const decode::TunedKind& kind : s.tuned)
    for (const decode::TunedTactic& t : kind.tactics)
      tuned.push_back({{"arithmetic", op::name(kind.arithmetic)},
                       {"intermediate", kind.shape.intermediate},
                       {"tokens", t.tokens},
                       {"tile", t.tactic.tile},
                       {"config", t.tactic.config}});
  return {{"cached", s.found.cached}, {"timed", s.found.timed}, {"left", s.found.left}, {"tuned", tuned}};
}

// Where the experts of a step's NVFP4 layers are.
decode::GridShape grid_of_step(const decode::Report& r, const decode::StepReport& s) {
  if (s.mode == decode::Mode::ep) return {r.ranks, 1};
  return {r.ep, r.tp};
}

// Seconds: `open` is this program's, the rest are the slowest rank's.
Json startup_json(const decode::Startup& s, double open) {
  return {{"open_s", open},      {"check_s", s.check},     {"convert_s", s.convert}, {"read_s", s.read},
          {"block_s", s.blocks}, {"reshard_s", s.reshard}, {"probe_s", s.probe},     {"plan_s", s.plan},
          {"tune_s", s.tune},    {"warm_up_s", s.warm_up}, {"bytes", s.bytes}};
}

Json json_of(const decode::Report& r, const Options& o, double open) {
  Json reshard;
  Json probe;
  if (r.reshard) {
    reshard = {{"slices", r.slices},
               {"seconds", r.reshard->seconds},
               {"bytes_per_rank", r.reshard->bytes_per_rank},
               {"gib_per_s", r.reshard->gib_per_s()},
               {"peak_extra_bytes", r.reshard->peak_extra_bytes}};
    probe = {{"min_rel_l2", r.reshard->min_rel_l2},
             {"max_rel_l2", r.reshard->max_rel_l2},
             {"limit", r.probe_limit}};
  }
  const bool block = r.block != decode::BlockKind::none;
  Json steps = Json::array();
  for (const decode::StepReport& s : r.steps) {
    steps.push_back({{"mode", decode::name(s.mode)},
                     {"ep", grid_of_step(r, s).ep},
                     {"tp", grid_of_step(r, s).tp},
                     {"batch", s.batch},
                     {"tail", tail::name(s.tail)},
                     {"us_per_layer", s.us_per_layer},
                     {"busiest_rank_bytes", s.busiest_rank_bytes},
                     {"output_sha256", s.output_sha256}});
    if (block) steps.back()["experts_us_per_layer"] = s.experts_us_per_layer;
  }
  const decode::Facts& c = r.checkpoint;
  Json json = {{"checkpoint",
                {{"layers", c.layers},
                 {"nvfp4_layers", c.nvfp4_layers},
                 {"bf16_layers", c.bf16_layers},
                 {"experts", c.experts},
                 {"hidden", c.hidden},
                 {"intermediate", c.intermediate},
                 {"converted_intermediate", c.width},
                 {"top_k", c.top_k}}},
               {"ranks", r.ranks},
               {"group", r.group},
               {"device", o.ranks.device},
               {"backend", r.backend},
               {"activation", activation(r)},
               {"block", decode::name(r.block)},
               {"reshard", reshard},
               {"probe", probe},
               {"tactic",
                {{"tile", r.tactic.tile},
                 {"config", r.tactic.config},
                 {"pinned", r.tactic.pinned},
                 {"tuned", r.tactic.tuned},
                 {"preference", r.tactic.pinned ? Json(r.tactic.preference) : Json()},
                 {"of", r.tactic.of}}},
               {"stock_tactics", tuned_json(r)},
               {"memory_per_rank",
                {{"stock", r.footprint.stock},
                 {"sliced", r.footprint.sliced},
                 {"block", r.footprint.block},
                 {"steps", r.footprint.steps}}},
               {"startup", startup_json(r.startup, open)},
               {"read_bytes_per_rank", r.read_bytes},
               {"steps", steps}};
  if (block) json["checkpoint"]["model_hidden"] = c.model_hidden;
  return json;
}

void print_sharding(const decode::Report& r, Output& out) {
  if (!r.reshard && !r.slices.empty()) {
    out.line("reshard     none: the experts are slices of width {}{} as they were exported",
             widths_text(r.slices),
             r.ep > 1 ? fmt::format(" in each of {} rows of ranks", r.ep) : std::string());
    return;
  }
  if (!r.reshard) {
    out.line("reshard     none (EP only)");
    return;
  }
  const decode::ShardReport& s = *r.reshard;
  out.line(
      "reshard     {} to {} slices of width {}{}, {} a rank in {:.3f} s ({:.2f} GiB/s), at most "
      "{} "
      "above stock{}",
      counted(s.nvfp4_layers, "NVFP4 layer"), r.tp, widths_text(r.slices),
      r.ep > 1 ? fmt::format(" in each of {} rows of ranks", r.ep) : std::string(),
      bytes_text(s.bytes_per_rank), s.seconds, s.gib_per_s(), bytes_text(s.peak_extra_bytes),
      s.bf16_layers > 0 ? fmt::format("; {} EP", counted(s.bf16_layers, "BF16 layer") +
                                                     (s.bf16_layers == 1 ? " stays" : " stay"))
                        : std::string());
  out.line("probe       TP rows against EP rows: rel L2 {:.6f} to {:.6f}, limit {:g}", s.min_rel_l2,
           s.max_rel_l2, r.probe_limit);
}

std::string block_text(const decode::Report& r) {
  const decode::Facts& c = r.checkpoint;
  const std::string path =
      r.block == decode::BlockKind::muse_spark
          ? fmt::format("router at width {}, {} to {} and back", c.model_hidden, c.model_hidden, c.hidden)
          : fmt::format("router at width {}", c.model_hidden);
  return fmt::format("{}: {}, {} on every rank", decode::name(r.block), path, bytes_text(r.footprint.block));
}

const decode::StepReport* find_step(const decode::Report& r, decode::Mode mode, std::int64_t batch,
                                    tail::Kind tail) {
  const auto found = std::find_if(r.steps.begin(), r.steps.end(), [&](const decode::StepReport& s) {
    return s.mode == mode && s.batch == batch && s.tail == tail;
  });
  return found == r.steps.end() ? nullptr : &*found;
}

// The tail has a column where it is not the one that everybody gets.
void print_steps(const decode::Report& r, Output& out) {
  const bool exact = std::any_of(r.steps.begin(), r.steps.end(),
                                 [](const decode::StepReport& s) { return s.tail == tail::Kind::exact; });
  const auto tail_column = [&](std::string_view text) {
    return exact ? fmt::format(" {:<5}", text) : std::string();
  };
  out.line("");
  out.line("{:<5} {:>4} {:>4} {:>6}{} {:>13} {:>22} {:>8}  {}", "mode", "ep", "tp", "batch",
           tail_column("tail"), "us per layer", "busiest rank's bytes", "GB/s", "output SHA-256");
  for (const decode::StepReport& s : r.steps) {
    const double us = s.us_per_layer * static_cast<double>(r.checkpoint.layers);
    const decode::GridShape grid = grid_of_step(r, s);
    out.line("{:<5} {:>4} {:>4} {:>6}{} {:>13.1f} {:>22} {:>8.2f}  {}", decode::name(s.mode), grid.ep,
             grid.tp, s.batch, tail_column(tail::name(s.tail)), s.us_per_layer,
             bytes_text(s.busiest_rank_bytes), static_cast<double>(s.busiest_rank_bytes) * 1e-3 / us,
             s.output_sha256.substr(0, 16));
  }
  const auto with_tail = [&](tail::Kind kind) {
    return exact ? fmt::format(", {} tails", tail::name(kind)) : std::string();
  };
  if (r.block != decode::BlockKind::none)
    for (const decode::StepReport& s : r.steps)
      out.line("{} at batch {}{}: of {:.1f} us a layer the experts take {:.1f}, the rest is the block's",
               decode::name(s.mode), s.batch, with_tail(s.tail), s.us_per_layer, s.experts_us_per_layer);
  for (const decode::StepReport& ep : r.steps) {
    const decode::StepReport* tp = find_step(r, decode::Mode::tp, ep.batch, ep.tail);
    if (ep.mode != decode::Mode::ep || tp == nullptr) continue;
    out.line("batch {}{}: EP takes {:.2f}x the time of expert TP; its busiest rank reads {:.2f}x the bytes{}",
             ep.batch, with_tail(ep.tail), ep.us_per_layer / tp->us_per_layer,
             static_cast<double>(ep.busiest_rank_bytes) / static_cast<double>(tp->busiest_rank_bytes),
             ep.tail == tail::Kind::exact ? "; the outputs are the same, bit for bit" : "");
  }
  for (const decode::StepReport& s : r.steps) {
    const decode::StepReport* fast = find_step(r, s.mode, s.batch, tail::Kind::fast);
    if (s.tail == tail::Kind::exact && fast != nullptr)
      out.line("batch {}, {}: exact takes {:.2f}x the time of fast", s.batch, decode::name(s.mode),
               s.us_per_layer / fast->us_per_layer);
  }
}

// What each rank read of the files' tensors, where there are ranks that differ: the least and the most.
void print_reads(const decode::Report& r, Output& out) {
  const auto gib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1U << 30U); };
  const auto [least, most] = std::ranges::minmax(r.read_bytes);
  out.line("reads       {} of files a rank{}",
           least == most ? fmt::format("{:.3f} GiB", gib(most))
                         : fmt::format("{:.3f} to {:.3f} GiB", gib(least), gib(most)),
           std::ranges::count(r.read_bytes, 0) == std::ssize(r.read_bytes) - 1 && r.ranks > 1
               ? ": one rank reads for all"
               : "");
}

// Where the time went before the first step.
void print_startup(const decode::Startup& s, double open, Output& out) {
  const double load = open + s.check + s.convert + s.read;
  out.line("startup     {} loaded in {:.3f} s ({:.2f} GB/s): open {:.3f}, check {:.3f}, {} {:.3f}",
           bytes_text(s.bytes), load, static_cast<double>(s.bytes) * 1e-9 / load, open, s.check,
           s.read > 0 ? "read" : "convert", s.read > 0 ? s.read : s.convert);
  std::string rest;
  // Blocks and tuning are asked for; where they are not, what their stage takes is not worth a word.
  for (const auto& [name, seconds, least] : {std::tuple{"block", s.blocks, 0.0005},
                                             {"reshard", s.reshard, 0.0},
                                             {"probe", s.probe, 0.0},
                                             {"plan", s.plan, 0.0},
                                             {"tune", s.tune, 0.0005},
                                             {"warm-up", s.warm_up, 0.0}})
    if (seconds > least) rest += fmt::format("{}{} {:.3f} s", rest.empty() ? "" : ", ", name, seconds);
  if (!rest.empty()) out.line("            {}", rest);
}

void print_tails(const Options& o, Output& out) {
  if (o.tail == "fast") return;
  if (o.tail == "both")
    out.line("tail        fast: fewer bytes between ranks; last bits of the output depend on mode and ranks");
  out.line("tail        exact: the same output on one rank and any number of them, EP or expert TP");
}

void print(const decode::Report& r, const Options& o, double open, Output& out) {
  const decode::Facts& c = r.checkpoint;
  out.line("checkpoint  {}: {} ({} NVFP4, {} BF16), {} of {} x {}, top {}", o.checkpoint,
           counted(c.layers, "layer"), c.nvfp4_layers, c.bf16_layers, counted(c.experts, "expert"), c.hidden,
           c.intermediate, c.top_k);
  if (c.width != c.intermediate)
    out.line("padding     {} experts are {} wide, with zeros from {} on",
             c.nvfp4_layers > 0 ? "NVFP4" : "BF16", c.width, c.intermediate);
  out.line("placement   {} ({} group, {}, backend {}), {} a rank", counted(r.ranks, "rank"), r.group,
           o.ranks.device, r.backend, counted(c.experts / r.ranks, "expert"));
  if (r.ranks > available_cores())
    out.line("cores       {} for {}: times follow the sum over ranks, not the busiest rank",
             available_cores(), counted(r.ranks, "rank"));
  out.line("activation  {}", activation_text(r, o));
  if (r.block != decode::BlockKind::none) out.line("block       {}", block_text(r));
  print_sharding(r, out);
  out.line("tactic      tile {}, config {}: {}", r.tactic.tile, r.tactic.config,
           r.tactic.pinned  ? fmt::format("pinned, preference {} of {}", r.tactic.preference + 1, r.tactic.of)
           : r.tactic.tuned ? "the tuner's"
                            : "the op's default");
  if (const decode::TuneReport& t = r.stock_tactics.found; t.cached + t.timed + t.left > 0) {
    std::string tuned;
    for (const decode::TunedKind& kind : r.stock_tactics.tuned) {
      std::string at;
      for (const decode::TunedTactic& one : kind.tactics)
        at += fmt::format("{}{}: {}/{}", at.empty() ? "" : ", ", one.tokens, one.tactic.tile,
                          one.tactic.config);
      tuned += fmt::format("; {} {} wide, tokens: tile/config {}", op::name(kind.arithmetic),
                           kind.shape.intermediate, at);
    }
    out.line("tuner       stock experts: {} of {} timed, {} from the cache{}", t.timed,
             counted(t.cached + t.timed + t.left, "bucket"), t.cached, tuned);
  }
  out.line("memory      a rank: stock experts {}, sliced experts {}, buffers of a step {}",
           bytes_text(r.footprint.stock), bytes_text(r.footprint.sliced), bytes_text(r.footprint.steps));
  print_reads(r, out);
  print_startup(r.startup, open, out);
  print_tails(o, out);
  print_steps(r, out);
}

void run(const Options& given, Context& context) {
  Options o = given;
  check_rank_options(o.ranks, context);
  const std::vector<std::int64_t> batches = batches_of(o);
  const auto wanted_layers = o.layers ? parse_ranges(*o.layers, "--layers") : std::vector<std::int64_t>{};
  double open = 0;
  require_same_options(
      o.ranks, context, "decode",
      {{"--mode", o.mode.value_or("not given")},
       {"--block", o.block},
       {"--tail", o.tail},
       {"--batch", o.batches},
       {"--layers", o.layers.value_or("not given")},
       {"--seed", std::to_string(o.seed)},
       {"--seconds", fmt::format("{}", o.seconds)},
       {"--tune-seconds", fmt::format("{}", o.tune_seconds)},
       {"--tactics", o.tactics ? "given" : "not given"},
       {"--tactic-cache", o.tactic_cache.empty() ? "not given" : "given"},
       {"--load-from-rank", o.load_from_rank ? std::to_string(*o.load_from_rank) : "not given"}});
  const auto from = [&] {
    const decode::Timing timing(open);
    return opened(o.checkpoint, o.load_from_rank, o.ranks, context);
  }();
  settle_for_export(o.ranks, from);
  check_cache(o.tactic_cache, from);
  if (o.load_from_rank) refuse_rank(*o.load_from_rank, o.ranks.ranks);
  for (const std::string& note : from.notes()) context.log.info(note);
  decode::Options options;
  options.build = {
      decode::select_layers(from, wanted_layers), input_of(o.ranks), backend_of(o.ranks), {}, o.ranks.fit};
  options.block = decode::block_kind(o.block);
  require(decode::unsupported_block(from, options.build.layers, options.block));
  options.modes = modes_of(o, from, options.build.layers, context);
  require(layout::placeable(from.config().experts, o.ranks.ranks));  // before so many ranks are started
  options.batches = batches;
  require_room(from, o.ranks,
               {.layers = options.build.layers,
                .tokens = *std::ranges::max_element(batches),
                .expert_tp = std::ranges::count(options.modes, decode::Mode::tp) > 0,
                .exact = o.tail != "fast",
                .block = options.block != decode::BlockKind::none});
  options.seed = o.seed;
  options.seconds = o.seconds;
  options.tails = tails_of(o);
  if (o.tactics) options.lists = tactics::read_lists(*o.tactics);
  options.tune = {o.tune_seconds, o.tactic_cache};

  std::optional<decode::Report> report;
  bool reports = false;
  {
    std::optional<ProgressBar> bar;
    std::string shown;
    Stopwatch stage_time(context);
    options.progress = [&](std::string_view stage, std::int64_t done, std::int64_t of) {
      const bool bytes = stage == "loading";
      if (shown != stage)
        bar.emplace(context, shown = stage, bytes ? ProgressBar::Counts::bytes : ProgressBar::Counts::steps);
      bar->update(done, of);
      if (done == of) stage_time.lap(shown);
    };
    reports = run_ranks(o.ranks, context, [&](const decode::Rank& rank) {
      decode::Report mine = decode::run(for_rank(from, o.load_from_rank, context, rank), options, rank);
      if (rank.group.rank() == 0) report = std::move(mine);
    });
  }
  if (!reports) return;
  if (!report) throw Error(ErrorKind::bug, "the ranks ended without a report");
  if (context.json)
    context.out.json(json_of(*report, o, open));
  else
    print(*report, o, open, context.out);
}

}  // namespace

void add_decode(CLI::App& app, Context& context) {
  auto o = std::make_shared<Options>();
  CLI::App* command = add_command(app, context, "decode",
                                  "Decode steps of the routed experts: EP and expert TP side by side");
  command->add_option("CKPT", o->checkpoint, "Model directory")->required()->check(not_empty());
  add_rank_options(*command, o->ranks);
  command->add_option("--mode", o->mode, "ep, tp or both [both; EP only where there is nothing to cut]")
      ->check(CLI::IsMember({"ep", "tp", "both"}));
  command
      ->add_option(
          "--block", o->block,
          "What runs around the experts in every layer: none, or the router (and, in muse-spark, norms "
          "and projections) of that model")
      ->check(CLI::IsMember(decode::block_names()))
      ->capture_default_str();
  command
      ->add_option(
          "--tail", o->tail,
          "How ranks' rows become outputs: fast; exact (the same bits whatever the mode and the number "
          "of ranks); both (each is measured)")
      ->capture_default_str()
      ->check(CLI::IsMember({"fast", "exact", "both"}));
  command->add_option("--batch", o->batches, "Tokens of a step, such as 1,8")->capture_default_str();
  command->add_option("--layers", o->layers, "Layers, such as 0-3,7 [all with routed experts]");
  command->add_option("--seed", o->seed, "Seed of the inputs")
      ->transform(seed_number())
      ->capture_default_str();
  command
      ->add_option("--seconds", o->seconds,
                   "Measure each mode and batch about so long: 5 to 1,000 repetitions of its step")
      ->capture_default_str()
      ->check(seconds_number(86'400));
  command
      ->add_option("--tactics", o->tactics,
                   "Lists of preferred tactics that kerf tune wrote, in place of those built in")
      ->check(not_empty());
  command
      ->add_option("--tune-seconds", o->tune_seconds,
                   "Time tactics of stock experts about so long before decoding; 0: none are timed, and what "
                   "--tactic-cache lacks runs the op's default")
      ->capture_default_str()
      ->check(seconds_number(86'400));
  command
      ->add_option("--tactic-cache", o->tactic_cache,
                   "File that keeps what was timed, and that it is taken from at the next start; outside the "
                   "checkpoint, new or such a file")
      ->check(not_empty());
  command
      ->add_option(
          "--load-from-rank", o->load_from_rank,
          "The rank that reads the checkpoint for all: the others are sent their experts [each reads "
          "its own]")
      ->transform(whole_number(0, most_ranks));
  command->callback([o, &context] { run(*o, context); });
}

}  // namespace kerf::cli
