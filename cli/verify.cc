// kerf verify: looks through shapes and scales of the routed experts for faults.
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cli/report.h"
#include "cli/text.h"

namespace kerf::cli {

namespace {

// Pairs of a scan and a read that --measure times.
constexpr int measured_pairs = 9;

double gbps(std::int64_t bytes, double seconds) { return static_cast<double>(bytes) / seconds / 1e9; }

Json speed_json(const tools::VerifySpeed& s) {
  return {{"bytes", s.bytes},
          {"pairs", s.pairs},
          {"seconds", s.seconds},
          {"read_seconds", s.read_seconds},
          {"gbps", gbps(s.bytes, s.seconds)},
          {"read_gbps", gbps(s.bytes, s.read_seconds)},
          {"fraction_of_read", s.fraction},
          {"fraction_min", s.fraction_least},
          {"fraction_max", s.fraction_most}};
}

void print_speed(const tools::VerifySpeed& s, Output& out) {
  out.line(
      "scan {:.2f} GB/s, plain read of the same bytes {:.2f} GB/s: {:.2f} of it ({:.2f} to {:.2f}; medians "
      "of {} pairs, in turns, from memory)",
      gbps(s.bytes, s.seconds), gbps(s.bytes, s.read_seconds), s.fraction, s.fraction_least, s.fraction_most,
      s.pairs);
}

void run(const std::string& path, const std::string& source, bool measure, Context& context) {
  refuse_copies("kerf verify");
  const auto checkpoint = checkpoint::Checkpoint::open(path);
  tools::VerifyReport r;
  {
    ProgressBar bar(context, "verifying");
    r = tools::verify(checkpoint, Workers(Context::threads()),
                      [&](std::int64_t done, std::int64_t total) { bar.update(done, total); });
    if (!source.empty()) tools::verify_source(checkpoint, source, Workers(Context::threads()), r);
  }
  std::optional<tools::VerifySpeed> speed;
  if (measure) speed = tools::verify_speed(checkpoint, Workers(Context::threads()), measured_pairs);
  for (const std::string& note : checkpoint.notes()) context.log.info(note);
  for (const std::string& warning : r.warnings) context.log.warning(warning);
  if (context.json) {
    Json json = {{"checkpoint", checkpoint.directory().string()},
                 {"layers", r.layers},
                 {"experts", r.experts},
                 {"bytes_checked", r.bytes_checked},
                 {"faults_total", r.faults.total()},
                 {"faults", faults_json(r.faults)},
                 {"warnings", r.warnings},
                 {"notes", checkpoint.notes()}};
    if (speed) json["speed"] = speed_json(*speed);
    context.out.json(json);
  } else {
    const char* const units = checkpoint.exported() != nullptr ? "rank's file" : "expert";
    const std::string counts = fmt::format("{}, {}, {} checked", counted(r.layers, "layer"),
                                           counted(r.experts, units), counted(r.bytes_checked, "byte"));
    if (r.faults.empty()) {
      context.out.line("no faults: {}", counts);
    } else {
      context.out.line("{}: {}", counted(r.faults.total(), "fault"), counts);
      print_faults(r.faults, context.out);
    }
    if (speed) print_speed(*speed, context.out);
  }
  if (!r.faults.empty())
    throw Error(ErrorKind::checkpoint, fmt::format("{}: {} of {}", checkpoint.directory().string(),
                                                   counted(r.faults.total(), "fault"),
                                                   counted(std::ssize(r.faults.groups()), "kind")));
}

}  // namespace

void add_verify(CLI::App& app, Context& context) {
  auto path = std::make_shared<std::string>();
  auto source = std::make_shared<std::string>();
  auto measure = std::make_shared<bool>(false);
  CLI::App* command =
      add_command(app, context, "verify", "Check every byte that can be wrong; exit 3 on a fault");
  command->add_option("CKPT", *path, "Model directory")->required();
  command
      ->add_option("--source", *source,
                   "Of an export: the checkpoint that it was made of, all of which is read and compared")
      ->check(not_empty());
  command->add_flag("--measure", *measure,
                    "Also time the scan beside a plain read of the same bytes, both from memory");
  command->callback([path, source, measure, &context] { run(*path, *source, *measure, context); });
}

}  // namespace kerf::cli
