// The commands of the program inside this process: the reports and the texts are the program's own.

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/program.h"
#include "src/bind.h"

namespace kerf::python {

namespace {

using LogSink = std::function<void(std::string, std::string)>;

// The caller's log. What it raises ends the command, whichever rank's thread it was called from, and comes
// out as it is: kerf's error about it would say less.
class CallersLog {
 public:
  explicit CallersLog(const std::optional<LogSink>& log) : log_(log) {}

  void operator()(LogLevel level, const std::string& line) {
    if (!log_) return;
    const Locked held;  // and with it what was raised
    if (!raised_) {
      try {
        (*log_)(level_name(level), line);
        return;
      } catch (const nb::python_error&) {
        raised_ = std::current_exception();
      }
    }
    throw Error(ErrorKind::usage, "the log raised an exception");
  }
  // With the interpreter's lock held.
  void rethrow() const {
    if (raised_) std::rethrow_exception(raised_);
  }

 private:
  const std::optional<LogSink>& log_;
  std::exception_ptr raised_;
};

nb::object text_object(std::string_view text, const char* errors) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), errors));
}

// What the command wrote, and what it failed with: exit code, text as the program shows it, and whether
// --help would have said it.
nb::tuple run_command(const std::vector<nb::bytes>& arguments, const std::optional<LogSink>& log) {
  std::vector<std::string> words = {"kerf"};
  for (const nb::bytes& word : arguments) {
    words.emplace_back(word.c_str(), word.size());
    if (words.back().find('\0') != std::string::npos)
      throw Error(ErrorKind::usage, "an argument has a null character in it: " + shown(words.back()));
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::string text;
  Verdict failed;
  bool hint = false;
  CallersLog callers_log(log);
  {
    const Unlocked released;
    failed = attempt([&] {
      cli::Context context(text, [&](LogLevel level, const std::string& line) { callers_log(level, line); });
      try {
        (void)cli::run_program(static_cast<int>(argv.size()) - 1, argv.data(), context);
      } catch (const cli::NotUnderstood& error) {
        hint = error.hint();
        throw;
      }
    });
  }
  callers_log.rethrow();
  nb::object kind = nb::none();
  nb::object why = nb::none();
  if (failed) {
    kind = nb::cast(static_cast<int>(failed->kind));
    why = text_object(cli::line_of(failed->text), "replace");
  }
  // Paths come out as they went in.
  return nb::make_tuple(text_object(text, "surrogateescape"), kind, why, hint);
}

}  // namespace

void bind_commands(nb::module_& m) {
  m.attr("version") = std::string(version());
  m.attr("probe_limit") = decode::probe_limit;
  m.attr("layout") = std::string(checkpoint::export_layout);
  m.def(
      "run_command", &run_command, nb::arg("arguments"), nb::arg("log") = nb::none(),
      nb::sig("def run_command(arguments: Sequence[bytes], log: Callable[[str, str], None] | None = None) -> "
              "tuple[str, int | None, str | None, bool]"),
      "Runs a command of the program in this process. Returns what it wrote, the exit code and the text of "
      "its "
      "failure or None, and whether --help would have said it.");
}

}  // namespace kerf::python
