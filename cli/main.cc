// The program: its exit codes, and the handlers by which any failure becomes a message and a code.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "cli/interrupt.h"
#include "cli/program.h"
#include "cli/progress.h"

namespace kerf::cli {

namespace {

// What the command line asks for; a line that makes no sense is told of here, with where to look.
int parse(int argc, char** argv, Context& context) {
  try {
    return run_program(argc, argv, context);
  } catch (const NotUnderstood& e) {
    context.error(e.what());
    if (e.hint()) std::fputs("Run kerf --help, or kerf COMMAND --help.\n", stderr);
    return e.exit_code();
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
