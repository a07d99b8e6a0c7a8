// kerf tune: measures every tactic on what one rank of a grid runs, and writes the lists that pinning looks
// up.
#include <algorithm>
#include <memory>
#include <optional>
#include <set>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cli/text.h"

namespace kerf::cli {

namespace {

struct Options {
  std::string path;
  std::optional<std::int64_t> experts, hidden, intermediate, top_k;
  std::string tokens = "1,2,4,8,16,32,64";
  double seconds = 10;
  int threads = 0;
  std::string out;
  RankOptions op;  // device, backend, act and grid alone
};

struct Sizes {
  std::int64_t experts = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t top_k = 0;
  op::Arithmetic arithmetic = op::Arithmetic::w4a4;
};

Sizes sizes_of(const Options& o) {
  std::optional<checkpoint::ModelConfig> config;
  if (!o.path.empty()) config = checkpoint::read_config(o.path);
  const auto given = [&](const std::optional<std::int64_t>& option, auto of_config, const char* name) {
    if (option) return *option;
    if (config) return (*config).*of_config;
    throw Error(ErrorKind::usage, fmt::format("without a checkpoint, {} is needed", name));
  };
  using checkpoint::ModelConfig;
  const bool weight_only = config && config->quant_algo == "W4A16_NVFP4";
  return {given(o.experts, &ModelConfig::experts, "--experts"),
          given(o.hidden, &ModelConfig::hidden, "--hidden"),
          given(o.intermediate, &ModelConfig::intermediate, "--intermediate"),
          given(o.top_k, &ModelConfig::top_k, "--top-k"),
          weight_only || input_of(o.op) == op::Input::bf16 ? op::Arithmetic::w4a16 : op::Arithmetic::w4a4};
}

// What one rank of decode's grid runs: E / ep experts, cut tp ways; of uneven slices the widest, whose list
// decode looks up.
tools::TuneRequest request_of(const Options& o, const Sizes& s) {
  const std::int64_t ep = o.op.ep.value_or(1);
  const std::int64_t tp = o.op.tp.value_or(1);
  require(layout::placeable(s.experts, ep));
  require(layout::cuttable(s.hidden, s.intermediate, tp, o.op.fit));
  const std::int64_t width = layout::converted_width(s.intermediate, tp, o.op.fit);
  tools::TuneRequest r;
  r.backend = backend_of(o.op);
  r.arithmetic = s.arithmetic;
  r.shape = {s.experts / ep, s.hidden, layout::slice_of(width, tp, 0).width};
  r.num_experts = s.experts;
  r.top_k = s.top_k;
  r.tokens = parse_ranges(o.tokens, "--tokens");
  r.seconds = o.seconds;
  return r;
}

// Before anything is measured.
void check_out(const Options& o) {
  if (o.out.empty()) return;
  const OutputFile out = output_file("--out", o.out);
  if (!o.path.empty()) check_outside(out, o.path);
  tactics::check_lists_writable(o.out);
}

Json json_of(const tools::TuneResult& result) {
  const tactics::PreferredList& list = result.list;
  const tactics::Setting& s = list.setting;
  Json preferred = Json::array();
  for (const op::Tactic t : list.tactics) preferred.push_back({t.tile, t.config});
  Json times = Json::array();
  for (const tools::TacticTime& t : result.times)
    times.push_back(
        {{"tile", t.tactic.tile}, {"config", t.tactic.config}, {"tokens", t.tokens}, {"us", t.us}});
  return {{"package", s.package},
          {"device", s.device},
          {"arithmetic", op::name(list.arithmetic)},
          {"experts", s.shape.experts},
          {"hidden", s.shape.hidden},
          {"intermediate", s.shape.intermediate},
          {"num_experts", s.num_experts},
          {"top_k", s.top_k},
          {"preferred", preferred},
          {"times", times}};
}

// A line a tactic, the preferred ones first, in their order; a column a number of tokens.
void print(const tools::TuneResult& result, const std::vector<std::int64_t>& tokens, Output& out) {
  const tactics::PreferredList& list = result.list;
  out.line("{}; {}", tactics::sizes_text(list.setting), op::name(list.arithmetic));
  std::string head = fmt::format("{:<10} {:>5} {:>7}", "preferred", "tile", "config");
  for (const std::int64_t t : tokens) head += fmt::format(" {:>10}", counted(t, "token"));
  out.line("{}", head + "   (us a step, least)");
  std::vector<op::Tactic> all = list.tactics;
  for (const tools::TacticTime& t : result.times)
    if (std::find(all.begin(), all.end(), t.tactic) == all.end()) all.push_back(t.tactic);
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::string line =
        fmt::format("{:<10} {:>5} {:>7}", i < list.tactics.size() ? std::to_string(i + 1) : "-", all[i].tile,
                    all[i].config);
    for (const std::int64_t count : tokens) {
      const auto at = std::find_if(result.times.begin(), result.times.end(), [&](const tools::TacticTime& t) {
        return t.tactic == all[i] && t.tokens == count;
      });
      line += fmt::format(" {:>10}", at == result.times.end() ? "-" : fmt::format("{:.1f}", at->us));
    }
    out.line("{}", line);
  }
}

// One rank of the grid, by itself.
RankOptions alone_on(const RankOptions& grid) {
  RankOptions alone;
  alone.device = grid.device;
  alone.backend = grid.backend;
  return alone;
}

void run(const Options& o, Context& context) {
  refuse_copies("kerf tune");
  RankOptions alone = alone_on(o.op);
  if (alone.device != "cpu") check_rank_options(alone, context);
  tools::TuneRequest request = request_of(o, sizes_of(o));
  check_out(o);
  const Workers workers(o.threads > 0 ? o.threads : Context::threads());
  tensor::HostMemory memory;
  std::optional<tools::TuneResult> measured;
  {
    ProgressBar bar(context,
                    fmt::format("tactics of {} x {}", request.shape.hidden, request.shape.intermediate));
    request.progress = [&](std::int64_t done, std::int64_t of) { bar.update(done, of); };
    if (o.op.device == "cpu") {
      measured = tools::tune(request, memory, workers);
    } else {
      (void)run_ranks(alone, context,
                      [&](const decode::Rank& rank) { measured = tools::device_tune(request, rank); });
    }
  }
  const tools::TuneResult& result = *measured;
  if (!o.out.empty() && o.op.tp.value_or(1) == 1)
    context.log.warning("a list of whole experts: decode looks up lists of slices (--tp) alone");
  if (!o.out.empty())
    tactics::write_lists(o.out, result.list.tactics.empty() ? std::vector<tactics::PreferredList>()
                                                            : std::vector{result.list});

  if (context.json) {
    context.out.json({{"threads", workers.size()},
                      {"out", o.out.empty() ? Json() : Json(o.out)},
                      {"lists", Json::array({json_of(result)})}});
    return;
  }
  const tactics::Setting& setting = result.list.setting;
  context.out.line("package     {}", setting.package);
  context.out.line("device      {}, {}", setting.device, counted(workers.size(), "thread"));
  context.out.line("");
  print(result, request.tokens, context.out);
  if (o.out.empty()) return;
  context.out.line("");
  context.out.line("written to {}", o.out);
}

std::string tactics_help() {
  const op::Backend& cpu = op::backend("cpu");
  std::set<int> tiles;
  std::set<int> configs;
  for (const op::Tactic t : cpu.tactics(-1)) {
    tiles.insert(t.tile);
    configs.insert(t.config);
  }
  return fmt::format(
      "Measure tactics and write the lists that kerf decode --tactics reads (cpu: tiles {}; configs {})",
      fmt::join(tiles, ", "), fmt::join(configs, ", "));
}

}  // namespace

void add_tune(CLI::App& app, Context& context) {
  auto o = std::make_shared<Options>();
  CLI::App* command = add_command(app, context, "tune", tactics_help());
  command->add_option("CKPT", o->path, "Model directory; not needed where the sizes are given")
      ->check(not_empty());
  command->add_option("--experts", o->experts, "Experts, E")->transform(whole_number(1, most_size));
  command->add_option("--hidden", o->hidden, "Expert input and output width, H")
      ->transform(whole_number(1, most_size));
  command->add_option("--intermediate", o->intermediate, "Intermediate width, I")
      ->transform(whole_number(1, most_size));
  command->add_option("--top-k", o->top_k, "Experts per token, K")->transform(whole_number(1, most_size));
  command->add_option("--ep", o->op.ep, "As in decode: rows of ranks, so that a rank runs E / ep experts [1]")
      ->transform(whole_number(1, most_count));
  command
      ->add_option(
          "--tp", o->op.tp,
          "As in decode: ranks of a row, so that experts are slices of I / tp; 1: whole experts, for "
          "the report, as decode looks up lists of slices alone [1]")
      ->transform(whole_number(1, most_count));
  command->add_flag("--uneven", o->op.fit.uneven,
                    "Where tp does not divide the tiles of I: the widest of the slices that decode cuts");
  command->add_flag("--pad", o->op.fit.pad, "Add zeros to I, up to the next width that fits, as decode does");
  command->add_option("--tokens", o->tokens, "Tokens of the steps that are measured")->capture_default_str();
  command->add_option("--seconds", o->seconds, "Measure about so long in all")
      ->capture_default_str()
      ->check(seconds_number(86'400));
  command
      ->add_option(
          "--threads", o->threads,
          "Worker threads of the rank; lists are looked up at any number [KERF_THREADS, or all cores]")
      ->transform(whole_number(1, most_threads));
  command
      ->add_option("--out", o->out,
                   "File of lists to write; those for other packages, devices and sizes in it stay")
      ->check(not_empty());
  add_one_process_group(*command, "one rank is measured, by itself");
  add_device_option(*command, o->op);
  add_op_options(*command, o->op);
  command->callback([o, &context] { run(*o, context); });
}

}  // namespace kerf::cli
