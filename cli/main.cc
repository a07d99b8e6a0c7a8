// The program: its commands, its exit codes, and the handlers by which any failure becomes a message and a
// code.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/progress.h"

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

// Parses and runs the chosen command; what CLI11 throws becomes an exit code here, everything else goes on.
int parse(int argc, char** argv, Context& context) {
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
    std::ostringstream text;  // --help, --version
    const int code = app.exit(e, text, text);
    context.out.write(text.str());
    return code;
  } catch (const CLI::ParseError& e) {
    context.error(e.what());
    std::fputs("Run kerf --help, or kerf COMMAND --help.\n", stderr);
    return static_cast<int>(ErrorKind::usage);
  }
}

// A message of an error; of a rank's process other than the first, led by which it is.
void print_error(const Reason& why, const Context& context) {
  const int rank = context.rank;
  context.error(fmt::format("{}{}{}", rank > 0 ? fmt::format("[rank {}] ", rank) : "", why.text,
                            why.kind == ErrorKind::bug ? " (this is a bug in kerf)" : ""));
}

// What standard output could not take, with that exit code; nothing is said where its reader went away.
Verdict unwritten(Context& context) {
  const int error = context.out.finish();
  if (error == 0) return std::nullopt;
  return Reason{
      static_cast<ErrorKind>(exit_output),
      error == EPIPE ? "" : "cannot write to standard output: " + std::generic_category().message(error)};
}

// Where ranks are processes, all of them end in the same way: each tells the others how it did.
int run(int argc, char** argv, Context& context) {
  int code = exit_ok;
  bool group_failed = false;
  Stopwatch time(context);
  Verdict failed = attempt([&] {
    try {
      code = parse(argc, argv, context);
    } catch (const comm::GroupFailed&) {
      group_failed = true;
      throw;
    }
  });
  time.lap("in all");
  if (!context.program) {
    if (failed) print_error(*failed, context);
    return failed ? static_cast<int>(failed->kind) : code;
  }
  if (!failed) failed = unwritten(context);
  failed = context.program->settle(failed, group_failed);
  if (failed && !failed->text.empty()) print_error(*failed, context);
  if (failed) code = static_cast<int>(failed->kind);
  (void)std::fflush(stderr);
  context.program->end(code);
  return code;
}

// oneTBB starts threads from its own threads, where nobody can catch that there is no memory for another one;
// it says so in words alone.
[[noreturn]] void ended_without_a_handler() noexcept {
  Reason why{ErrorKind::memory, "out of memory"};  // short: stored in place
  try {
    const std::exception_ptr thrown = std::current_exception();
    Verdict found = Reason{ErrorKind::bug, "ended without an exception"};
    if (thrown) found = attempt([&] { std::rethrow_exception(thrown); });
    if (found->text.find("pthread_create") != std::string::npos) found->kind = ErrorKind::memory;
    why = std::move(*found);
  } catch (...) {
    // Not even the text could be made.
  }
  std::fprintf(stderr, "kerf: error: %s%s\n", why.text.c_str(),
               why.kind == ErrorKind::bug ? " (this is a bug in kerf)" : "");
  ::_exit(static_cast<int>(why.kind));
}

// A stream that is closed gets a descriptor on which writes fail, so that no file that is opened later takes
// its number and receives what was meant for the stream.
void hold_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) < 0 && errno == EBADF) (void)::open("/dev/null", O_RDONLY);
}

}  // namespace

}  // namespace kerf::cli

int main(int argc, char** argv) {
  kerf::cli::hold_streams();
  // A reader that goes away must show as a failed write, not end the process.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // nor must a limit on the size of files
  kerf::cli::tell_of_interrupts();
  std::set_terminate(kerf::cli::ended_without_a_handler);
  try {
    kerf::cli::Context context;
    const int code = kerf::cli::run(argc, argv, context);
    if (const kerf::Verdict failed = kerf::cli::unwritten(context)) {
      if (!failed->text.empty() && !context.program) context.error(failed->text);
      return code != 0 ? code : kerf::cli::exit_output;
    }
    return code;
  } catch (const std::bad_alloc&) {
    std::fputs("kerf: error: out of memory\n", stderr);
    return static_cast<int>(kerf::ErrorKind::memory);
  } catch (...) {
    std::fputs("kerf: error: an exception could not be reported (this is a bug in kerf)\n", stderr);
    return static_cast<int>(kerf::ErrorKind::bug);
  }
}
