// kerf bench: decode steps of one made-up layer, each beside a plain read of as many bytes.
#include <algorithm>
#include <memory>
#include <optional>

#include "cli/busiest.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cli/text.h"

namespace kerf::cli {

namespace {

constexpr std::int64_t most_pairs = 100'000;

struct Options {
  layout::ExpertsShape shape;
  std::int64_t top_k = 0;
  std::string batches = "1,4,8,16,32";
  std::string sizes;
  std::string weights = "nvfp4";
  std::string mode = "both";
  std::int64_t pairs = 9;
  std::uint64_t seed = 1;
  std::string plot;
  bool busiest_rank = false;
  RankOptions ranks;  // ranks, threads, device, act and backend alone
};

op::Arithmetic arithmetic_of(const Options& o) {
  if (o.weights == "bf16") return op::Arithmetic::bf16;
  return input_of(o.ranks) == op::Input::nvfp4 ? op::Arithmetic::w4a4 : op::Arithmetic::w4a16;
}

// "both" is EP, and expert TP as far as there is anything to cut.
std::vector<decode::Mode> modes_of(const Options& o, const Context& context) {
  using decode::Mode;
  if (o.mode == "tp") return {Mode::tp};
  if (o.mode == "ep") return {Mode::ep};
  if (o.ranks.ranks > 1 && o.weights == "nvfp4") return {Mode::ep, Mode::tp};
  context.log.info(o.ranks.ranks == 1 ? "one rank: nothing to cut, EP only (--ranks N for expert TP)"
                                      : "BF16 experts stay EP");
  return {Mode::ep};
}

tools::BenchRequest request_of(const Options& o, const Context& context) {
  tools::BenchRequest r;
  r.backend = backend_of(o.ranks);
  r.arithmetic = arithmetic_of(o);
  r.shape = o.shape;
  r.top_k = o.top_k;
  r.batches = parse_ranges(o.batches, "--batch");
  if (!o.sizes.empty()) r.sizes = parse_ranges(o.sizes, "--sizes");
  r.modes = modes_of(o, context);
  r.pairs = o.pairs;
  r.seed = o.seed;
  r.memory = deploy::this_machine().memory;
  return r;
}

const char* activation(const tools::BenchRequest& r) {
  return r.arithmetic == op::Arithmetic::w4a4 ? "nvfp4" : "bf16";
}

// The device's name where steps run on one.
std::string machine_of(const Options& o) {
  return o.ranks.device == "cpu" ? machine_name() : op::backend(backend_of(o.ranks)).device();
}

Json json_of(const tools::BenchRequest& r, const tools::BenchReport& report, const Options& o) {
  Json steps = Json::array();
  for (const tools::BenchStep& s : report.steps)
    steps.push_back({{"intermediate", s.intermediate},
                     {"batch", s.batch},
                     {"mode", decode::name(s.mode)},
                     {"activation", activation(r)},
                     {"experts_distinct", s.experts_distinct},
                     {"bytes", s.bytes},
                     {"busiest_rank_bytes", s.busiest_rank_bytes},
                     {"us", s.us},
                     {"read_us", s.read_us},
                     {"fraction_of_read", s.fraction},
                     {"fraction_min", s.fraction_least},
                     {"fraction_max", s.fraction_most},
                     {"gbps", s.gbps},
                     {"read_gbps", s.read_gbps},
                     {"pairs", r.pairs}});
  return {{"machine", machine_of(o)},
          {"backend", r.backend},
          {"package", op::backend(r.backend).package()},
          {"threads", report.threads},
          {"ranks", o.ranks.ranks},
          {"experts", r.shape.experts},
          {"hidden", r.shape.hidden},
          {"intermediate", r.shape.intermediate},
          {"top_k", r.top_k},
          {"weights", o.weights},
          {"activation", activation(r)},
          {"seed", r.seed},
          {"plot", o.plot.empty() ? Json() : Json(o.plot)},
          {"steps", steps}};
}

// "ep 0.62 to 0.71, tp 0.60": the modes' fractions at the layer's own width.
std::string headline(const tools::BenchRequest& r, const tools::BenchReport& report) {
  std::string out;
  for (const decode::Mode mode : r.modes) {
    std::vector<double> fractions;
    for (const tools::BenchStep& s : report.steps)
      if (s.mode == mode && s.intermediate == r.shape.intermediate) fractions.push_back(s.fraction);
    const auto [least, most] = std::minmax_element(fractions.begin(), fractions.end());
    out += fmt::format("{}{} {:.2f}", out.empty() ? "" : ", ", decode::name(mode), *least);
    if (fractions.size() > 1) out += fmt::format(" to {:.2f}", *most);
  }
  return out;
}

void print(const tools::BenchRequest& r, const tools::BenchReport& report, const Options& o, Output& out) {
  out.line("fraction of a plain read of the same bytes: {} ({} of {} x {}, top {}, {}; {})",
           headline(r, report), counted(r.shape.experts, "expert"), r.shape.hidden, r.shape.intermediate,
           r.top_k, op::name(r.arithmetic),
           r.batches.size() == 1 ? fmt::format("batch {}", r.batches.front())
                                 : fmt::format("{} batches", r.batches.size()));
  out.line("");
  out.line("machine     {}", machine_of(o));
  out.line("runs on     {}, {}, backend {} ({})", counted(o.ranks.ranks, "rank"),
           counted(report.threads, "thread"), r.backend, op::backend(r.backend).package());
  out.line("made up     from seed {}", r.seed);
  out.line("pairs       {} of a step and a read, in turns, each on the experts touched longest ago; medians",
           r.pairs);
  out.line("");
  out.line("{:<4} {:>6} {:>6} {:>8} {:>12} {:>10} {:>10} {:>7} {:>9} {:>9}  {}", "mode", "width", "batch",
           "experts", "bytes", "us a step", "us a read", "GB/s", "read GB/s", "step:read", "least to most");
  for (const tools::BenchStep& s : report.steps)
    out.line(
        "{:<4} {:>6} {:>6} {:>8} {:>12} {:>10.1f} {:>10.1f} {:>7.2f} {:>9.2f} {:>9.2f}  {:.2f} to {:.2f}",
        decode::name(s.mode), s.intermediate, s.batch, s.experts_distinct, bytes_text(s.bytes), s.us,
        s.read_us, s.gbps, s.read_gbps, s.fraction, s.fraction_least, s.fraction_most);
  if (o.plot.empty()) return;
  out.line("");
  out.line("plot written to {}", o.plot);
}

// Nothing keeps a small layer out of a large cache.
void tell_of_cache(const tools::BenchRequest& r, const tools::BenchReport& report, const Context& context) {
  const auto smallest = std::ranges::min_element(report.steps, {}, &tools::BenchStep::intermediate);
  const std::int64_t layer = smallest->bytes / smallest->experts_distinct * r.shape.experts;
  if (layer < 2 * largest_cache())
    context.log.info(fmt::format(
        "the layer of width {} has {}, the largest cache {}: steps and reads may find weights there",
        smallest->intermediate, bytes_text(layer), bytes_text(largest_cache())));
}

// One rank on a device, whose memory its weights are in.
void run_on_device(const Options& o, Context& context) {
  RankOptions one = o.ranks;
  one.ranks = 1;
  tools::BenchRequest request = request_of(o, context);
  if (o.busiest_rank) {
    std::vector<tools::BusiestStep> steps;
    (void)run_ranks(one, context, [&](const decode::Rank& rank) {
      steps = tools::busiest_rank(request, o.ranks.ranks, rank);
    });
    if (!context.json) return print_busiest(steps, o.ranks.ranks, context.out);
    return context.out.json({{"machine", machine_of(o)},
                             {"package", op::backend(request.backend).package()},
                             {"ranks", o.ranks.ranks},
                             {"experts", request.shape.experts},
                             {"hidden", request.shape.hidden},
                             {"intermediate", request.shape.intermediate},
                             {"top_k", request.top_k},
                             {"activation", activation(request)},
                             {"draws", request.pairs},
                             {"steps", busiest_json(steps)}});
  }
  request.modes = {decode::Mode::ep};
  std::optional<tools::BenchReport> report;
  (void)run_ranks(o.ranks, context,
                  [&](const decode::Rank& rank) { report = tools::device_bench(request, rank); });
  if (!report) throw Error(ErrorKind::bug, "the rank ended without a report");
  if (!o.plot.empty()) tools::write_svg(o.plot, tools::bench_chart(request, *report));
  if (context.json)
    context.out.json(json_of(request, *report, o));
  else
    print(request, *report, o, context.out);
}

void run(const Options& given, Context& context) {
  Options o = given;
  refuse_copies("kerf bench");
  check_rank_options(o.ranks, context);
  if (o.busiest_rank && o.ranks.device == "cpu")
    throw Error(ErrorKind::usage, "--busiest-rank times each rank's share alone on a device: --device cuda");
  if (o.ranks.device != "cpu") return run_on_device(o, context);
  tools::BenchRequest request = request_of(o, context);
  const int threads =
      threads_per_rank(o.ranks.threads > 0 ? o.ranks.threads : Context::threads(), o.ranks.ranks);
  require(tools::bench_refused(request, o.ranks.ranks, threads));  // before so many ranks are started
  if (!o.plot.empty()) (void)output_file("--plot", o.plot);
  std::optional<tools::BenchReport> report;
  {
    ProgressBar bar(context, "measuring steps");
    request.progress = [&](std::int64_t done, std::int64_t of) { bar.update(done, of); };
    (void)run_ranks(o.ranks, context, [&](const decode::Rank& rank) {
      tools::BenchReport mine = tools::bench(request, rank);
      if (rank.group.rank() == 0) report = std::move(mine);
    });
  }
  if (!report) throw Error(ErrorKind::bug, "the ranks ended without a report");
  tell_of_cache(request, *report, context);
  if (!o.plot.empty()) tools::write_svg(o.plot, tools::bench_chart(request, *report));
  if (context.json)
    context.out.json(json_of(request, *report, o));
  else
    print(request, *report, o, context.out);
}

void add_shape(CLI::App& command, Options& o) {
  const auto size = [&](const char* name, std::int64_t& value, const char* what) {
    command.add_option(name, value, what)->required()->transform(whole_number(1, most_size));
  };
  size("--experts", o.shape.experts, "Experts, E");
  size("--hidden", o.shape.hidden, "Expert input and output width, H");
  size("--intermediate", o.shape.intermediate, "Intermediate width, I");
  size("--top-k", o.top_k, "Experts per token, K");
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      add_command(app, context, "bench",
                  "Measure decode steps of one made-up layer, each beside a plain read of as many bytes");
  add_shape(*command, *o);
  command->add_option("--batch", o->batches, "Tokens of a step, such as 1,8")->capture_default_str();
  command
      ->add_option("--sizes", o->sizes,
                   "Intermediate widths to measure too, such as 512,1024, at the first batch")
      ->check(not_empty());
  command
      ->add_option("--weights", o->weights,
                   "What the experts are: nvfp4, or bf16 (which are given bf16 rows)")
      ->capture_default_str()
      ->check(CLI::IsMember({"nvfp4", "bf16"}));
  add_op_options(*command, o->ranks);
  add_device_option(*command, o->ranks);
  command->add_flag(
      "--busiest-rank", o->busiest_rank,
      "On a device: each rank's share of EP and expert TP alone, the slowest of --ranks counts");
  command->add_option("--ranks", o->ranks.ranks, "Ranks, threads of this process")
      ->capture_default_str()
      ->transform(whole_number(1, most_ranks));
  add_one_process_group(*command, "ranks are measured beside reads of the same memory, as threads (--ranks)");
  command->add_option("--mode", o->mode, "ep, tp or both (EP, and expert TP where there is anything to cut)")
      ->capture_default_str()
      ->check(CLI::IsMember({"ep", "tp", "both"}));
  command
      ->add_option("--threads", o->ranks.threads,
                   "Worker threads of all ranks together [KERF_THREADS, or all cores]")
      ->transform(whole_number(1, most_threads));
  command->add_option("--pairs", o->pairs, "Pairs of a step and a read for each figure")
      ->capture_default_str()
      ->transform(whole_number(1, most_pairs));
  command->add_option("--seed", o->seed, "Seed of experts, rows and routes")
      ->transform(seed_number())
      ->capture_default_str();
  command
      ->add_option("--plot", o->plot,
                   "SVG file to write: the fraction against tokens and, with --sizes, against the width")
      ->check(not_empty());
  command->callback([o, &context] { run(*o, context); });
}

}  // namespace kerf::cli
