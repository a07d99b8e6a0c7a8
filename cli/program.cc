#include "cli/program.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <vector>

#include "cli/commands.h"

namespace kerf::cli {

CLI::App* add_command(CLI::App& app, Context& context, const std::string& name,
                      const std::string& description, bool reports) {
  CLI::App* command = app.add_subcommand(name, description);
  if (reports) command->add_flag("--json", context.json, "Write the report as JSON");
  command->add_flag("--quiet", context.quiet, "Warnings and errors only");
  command->add_flag("--verbose", context.verbose, "Also what each stage takes, and each layer's probe");
  return command;
}

namespace {

// In the order of the help text.
constexpr std::array commands = {
    add_inspect, add_verify, add_plan,   add_decode, add_run, add_bench,
    add_tune,    add_check,  add_export, add_synth,  add_env,
};

constexpr const char* footer =
    "Exit codes: 0 ok, 1 standard output could not be written, 2 usage (or a file could not be written),\n"
    "3 checkpoint, 4 unsupported, 5 peer, 6 probe, 7 memory, 8 device, 70 bug. Reports go to standard "
    "output, everything else to standard error.";

}  // namespace

int run_program(int argc, char** argv, Context& context) {
  CLI::App app{"kerf: the routed experts of mixture-of-experts decode", "kerf"};
  app.set_version_flag("--version", std::string("kerf ") + std::string(version()));
  app.footer(footer);
  app.require_subcommand(1);
  for (const auto& add : commands) add(app, context);
  // CLI11 would only say that a subcommand is required.
  if (argc > 1 && argv[1][0] != '-') {
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
    if (std::find(names.begin(), names.end(), argv[1]) == names.end()) {
      throw NotUnderstood(
          fmt::format("there is no command '{}'; there are {}", argv[1], fmt::join(names, ", ")), false);
    }
  }
  try {
    app.parse(argc, argv);
    return exit_ok;
  } catch (const CLI::Success& e) {
    std::ostringstream text;  // --help, --version
    const int code = app.exit(e, text, text);
    context.out.write(text.str());
    return code;
  } catch (const CLI::ParseError& e) {
    throw NotUnderstood(e.what(), true);
  }
}

}  // namespace kerf::cli
