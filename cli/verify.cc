// kerf verify: looks through shapes and scales of the routed experts for faults.
#include <memory>

#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/text.h"

namespace kerf::cli {

namespace {

void run(const std::string& path, Context& context) {
  const auto checkpoint = checkpoint::Checkpoint::open(path);
  tools::VerifyReport r;
  {
    ProgressBar bar(context, "verifying");
    r = tools::verify(checkpoint, Workers(Context::threads()),
                      [&](std::int64_t done, std::int64_t total) { bar.update(done, total); });
  }
  for (const std::string& note : checkpoint.notes()) context.log.info(note);
  if (context.json) {
    context.out.json({{"checkpoint", checkpoint.directory().string()},
                      {"layers", r.layers},
                      {"experts", r.experts},
                      {"bytes_checked", r.bytes_checked},
                      {"faults_total", r.faults.total()},
                      {"faults", faults_json(r.faults)},
                      {"notes", checkpoint.notes()}});
  } else {
    const std::string counts = fmt::format("{}, {}, {} checked", counted(r.layers, "layer"),
                                           counted(r.experts, "expert"), counted(r.bytes_checked, "byte"));
    if (r.faults.empty()) {
      context.out.line("no faults: {}", counts);
    } else {
      context.out.line("{}: {}", counted(r.faults.total(), "fault"), counts);
      print_faults(r.faults, context.out);
    }
  }
  if (!r.faults.empty())
    throw Error(ErrorKind::checkpoint, fmt::format("{}: {} of {}", checkpoint.directory().string(),
                                                   counted(r.faults.total(), "fault"),
                                                   counted(std::ssize(r.faults.groups()), "kind")));
}

}  // namespace

void add_verify(CLI::App& app, Context& context) {
  auto path = std::make_shared<std::string>();
  CLI::App* command =
      add_command(app, context, "verify", "Check every byte that can be wrong; exit 3 on a fault");
  command->add_option("CKPT", *path, "Model directory")->required();
  command->callback([path, &context] { run(*path, context); });
}

}  // namespace kerf::cli
