// The program: its commands, its exit codes, and the handlers by which any failure becomes a message and a
// code.
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "cli/commands.h"

namespace kerf::cli {

CLI::App* add_command(CLI::App& app, Context& context, const std::string& name,
                      const std::string& description, bool reports) {
  CLI::App* command = app.add_subcommand(name, description);
  if (reports) command->add_flag("--json", context.json, "Write the report as JSON");
  command->add_flag("--quiet", context.quiet, "Warnings and errors only");
  command->add_flag("--verbose", context.verbose, "Say more");
  return command;
}

const CLI::Validator& whole_number() {
  static const CLI::Validator check(
      [](const std::string& text) -> std::string {
        const char* const end = text.data() + text.size();
        std::int64_t number = 0;
        std::uint64_t large = 0;  // seeds use all 64 bits
        const auto is = [&](auto& value) {
          const auto [last, code] = std::from_chars(text.data(), end, value);
          return code == std::errc() && last == end;
        };
        return is(number) || is(large) ? "" : "'" + text + "' is not a whole number of 64 bits";
      },
      "", "whole number");
  return check;
}

namespace {

// In the order of the help text.
constexpr std::array commands = {
    add_inspect, add_verify, add_plan, add_decode, add_run, add_synth, add_env,
};

constexpr const char* footer =
    "Exit codes: 0 ok, 1 output could not be written, 2 usage, 3 checkpoint, 4 unsupported, 5 peer, 6 "
    "probe,\n"
    "7 memory, 8 device, 70 bug. Reports go to standard output, everything else to standard error.";

// Parses, runs the chosen command, and gives the exit code.
int run(int argc, char** argv, Context& context) {
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
      context.error(fmt::format("there is no command '{}'; there are {}", argv[1], fmt::join(names, ", ")));
      return static_cast<int>(ErrorKind::usage);
    }
  }
  try {
    app.parse(argc, argv);
    return exit_ok;
  } catch (const CLI::Success& e) {
    return app.exit(e);  // --help, --version: to standard output
  } catch (const CLI::ParseError& e) {
    context.error(e.what());
    std::fputs("Run kerf --help, or kerf COMMAND --help.\n", stderr);
    return static_cast<int>(ErrorKind::usage);
  } catch (const Error& e) {
    context.error(e.what());
    return e.exit_code();
  } catch (const std::bad_alloc&) {
    context.error("out of memory");
    return static_cast<int>(ErrorKind::memory);
  } catch (const std::exception& e) {
    context.error(fmt::format("{} (this is a bug in kerf)", e.what()));
    return static_cast<int>(ErrorKind::bug);
  }
}

}  // namespace

}  // namespace kerf::cli

int main(int argc, char** argv) {
  // A reader that goes away must show as a failed write, not end the process.
  std::signal(SIGPIPE, SIG_IGN);
  try {
    kerf::cli::Context context;
    const int code = kerf::cli::run(argc, argv, context);
    if (const int error = context.out.finish(); error != 0) {
      if (error != EPIPE)
        context.error(
            fmt::format("cannot write to standard output: {}", std::generic_category().message(error)));
      return code != 0 ? code : kerf::cli::exit_output;
    }
    return code;
  } catch (...) {
    std::fputs("kerf: error: an exception could not be reported (this is a bug in kerf)\n", stderr);
    return static_cast<int>(kerf::ErrorKind::bug);
  }
}
