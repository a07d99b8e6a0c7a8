// The commands of the program inside this process: the reports and the texts are the program's own.

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/program.h"
#include "src/bind.h"
#include "src/callers_log.h"

namespace kerf::python {

namespace {

nb::object text_object(std::string_view text, const char* errors) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), errors));
}

// What the command wrote, and what it failed with: exit code, text as the program shows it, and whether
// --help would have said it.
nb::tuple run_command(const std::vector<nb::bytes>& arguments, nb::handle log) {
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
      cli::Context context(text, [&](LogLevel level, const std::string& line) {
        // A log that raises ends the command.
        if (!callers_log(level, line)) throw Error(ErrorKind::usage, "the log raised an exception");
      });
      try {
        (void)cli::run_program(static_cast<int>(argv.size()) - 1, argv.data(), context);
      } catch (const cli::NotUnderstood& error) {
        hint = error.hint();
        throw;
      }
    });
  }
  callers_log.raise_again();
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
      "run_command", &run_command, nb::arg("arguments"), nb::arg("log").none() = nb::none(),
      nb::sig("def run_command(arguments: Sequence[bytes], log: Callable[[str, str], None] | None = None) -> "
              "tuple[str, int | None, str | None, bool]"),
      "Runs a command of the program in this process. Returns what it wrote, the exit code and the text of "
      "its "
      "failure or None, and whether --help would have said it.");
}

}  // namespace kerf::python
