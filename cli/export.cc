// kerf export: a checkpoint's experts in the converted layout, one file a rank, for starts that convert
// nothing; and back.
#include <chrono>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cli/room.h"
#include "cli/text.h"

namespace kerf::cli {

namespace {

struct Options {
  std::string checkpoint;
  std::string out;
  std::optional<std::string> to;
  std::optional<std::string> layers;
  bool expert_tp = false;
  RankOptions ranks;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void report_logical(const Options& o, const tools::LogicalReport& r, double seconds, Context& context) {
  if (context.json) {
    context.out.json({{"export", o.checkpoint},
                      {"directory", o.out},
                      {"layers", r.layers},
                      {"tensors", r.tensors},
                      {"bytes", r.bytes},
                      {"seconds", seconds}});
    return;
  }
  context.out.line("{}: {}, {}, {} under ModelOpt's names, in {:.2f} s", o.out, counted(r.layers, "layer"),
                   counted(r.tensors, "tensor"), bytes_text(r.bytes), seconds);
}

void to_logical(const Options& o, const checkpoint::Checkpoint& from, Context& context) {
  const auto start = std::chrono::steady_clock::now();
  tools::LogicalReport r;
  {
    ProgressBar bar(context, "writing " + o.out);
    const Workers workers(o.ranks.threads > 0 ? o.ranks.threads : Context::threads());
    r = tools::export_logical(from, o.out, workers,
                              [&](std::int64_t done, std::int64_t of) { bar.update(done, of); });
  }
  report_logical(o, r, seconds_since(start), context);
}

void report(const Options& o, const tools::ExportReport& r, double seconds, Context& context) {
  if (context.json) {
    context.out.json({{"checkpoint", o.checkpoint},
                      {"directory", o.out},
                      {"id", r.id},
                      {"layers", r.layers},
                      {"nvfp4_layers", r.nvfp4_layers},
                      {"ranks", r.ranks},
                      {"ep", r.ep},
                      {"tp", r.tp},
                      {"converted_intermediate", r.width},
                      {"bytes", r.bytes},
                      {"largest_file_bytes", r.largest_bytes},
                      {"probe_max_rel_l2", r.tp > 1 ? Json(r.max_rel_l2) : Json()},
                      {"seconds", seconds}});
    return;
  }
  context.out.line("{}: {} for {}: {}", o.out, counted(r.layers, "layer"), counted(r.ranks, "rank"),
                   r.tp > 1 ? fmt::format("slices, EP {} x TP {}, of experts {} wide; BF16 layers whole",
                                          r.ep, r.tp, r.width)
                            : std::string("whole experts"));
  if (r.tp > 1) context.out.line("probe  slices against whole experts: rel L2 up to {:.6f}", r.max_rel_l2);
  context.out.line("{} in {:.2f} s ({:.2f} GB/s), the largest file {}; id {}", bytes_text(r.bytes), seconds,
                   static_cast<double>(r.bytes) * 1e-9 / seconds, bytes_text(r.largest_bytes), r.id);
}

void run(const Options& given, Context& context) {
  Options o = given;
  if (o.to && o.ranks.group != "local")
    throw Error(ErrorKind::usage, fmt::format("--to {} with --group {}: one process writes it, wanted local",
                                              *o.to, o.ranks.group));
  check_rank_options(o.ranks, context);
  require_same_options(
      o.ranks, context, "export",
      {{"--layers", o.layers.value_or("not given")}, {"--expert-tp", o.expert_tp ? "given" : "not given"}});
  const auto from = checkpoint::Checkpoint::open(o.checkpoint);
  for (const std::string& note : from.notes()) context.log.info(note);
  if (o.to) return to_logical(o, from, context);
  if (o.ranks.device != "cpu")
    throw Error(ErrorKind::usage, "--device cuda: an export is converted in the host's memory; wanted cpu");
  const decode::GridShape grid = grid_of(o.ranks);
  const bool tp = o.expert_tp || o.ranks.tp.value_or(1) > 1;
  tools::ExportOptions options;
  if (o.layers) options.layers = parse_ranges(*o.layers, "--layers");
  options.layers = decode::select_layers(from, options.layers);
  options.expert_tp = tp;
  options.fit = o.ranks.fit;
  if (tp) require(decode::shardable(from, options.layers, static_cast<int>(grid.tp), o.ranks.fit));
  require(layout::placeable(from.config().experts, o.ranks.ranks));  // before so many ranks are started
  require_room(from, o.ranks, {.layers = options.layers, .expert_tp = tp, .layer_by_layer = true});
  const auto start = std::chrono::steady_clock::now();
  std::optional<tools::ExportReport> r;
  bool reports = false;
  {
    ProgressBar bar(context, "exporting to " + o.out);
    options.progress = [&](std::int64_t done, std::int64_t of) { bar.update(done, of); };
    reports = run_ranks(o.ranks, context, [&](const decode::Rank& rank) {
      tools::ExportReport mine = tools::export_experts(from, o.out, options, rank);
      if (rank.group.rank() == 0) r = std::move(mine);
    });
  }
  if (!reports) return;
  if (!r) throw Error(ErrorKind::bug, "the ranks ended without a report");
  report(o, *r, seconds_since(start), context);
}

}  // namespace

void add_export(CLI::App& app, Context& context) {
  auto o = std::make_shared<Options>();
  CLI::App* command = add_command(
      app, context, "export", "Experts in the converted layout, one file a rank, and back (--to logical)");
  command->footer(
      "kerf decode OUT and kerf run OUT start from the files without converting anything. An earlier export "
      "in OUT\n"
      "is replaced once the new one is whole; what a run leaves that fails or is stopped does not start, and "
      "the next\n"
      "one removes it. So it is with --to logical, which marks its directory by a file .kerf-export.");
  command->add_option("CKPT", o->checkpoint, "Model directory; an export with --to logical")
      ->required()
      ->check(not_empty());
  command
      ->add_option("OUT", o->out, "Directory to write: new, empty, or an earlier export's, which is replaced")
      ->required()
      ->check(not_empty());
  command
      ->add_option("--to", o->to,
                   "logical: undo an export: a checkpoint with the source's tensors, under ModelOpt's names")
      ->check(CLI::IsMember({"logical"}));
  command->add_flag(
      "--expert-tp", o->expert_tp,
      "Slices of NVFP4 experts, cut over the ranks (or the rows of --ep and --tp; --tp above 1 asks for it, "
      "too) [whole experts]");
  command->add_option("--layers", o->layers, "Layers, such as 0-3,7 [all with routed experts]");
  add_rank_options(*command, o->ranks);
  command->callback([o, &context] { run(*o, context); });
}

}  // namespace kerf::cli
