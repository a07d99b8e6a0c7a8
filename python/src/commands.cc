// The commands of the program inside this process: the reports and the texts are the program's own.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/program.h"
#include "src/bind.h"

namespace kerf::python {

namespace {

using LogSink = std::function<void(std::string, std::string)>;

// What the command wrote, and what it failed with.
nb::tuple run_command(const std::vector<std::string>& arguments, const std::optional<LogSink>& log) {
  std::vector<std::string> words = {"kerf"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::string text;
  Verdict failed;
  {
    const nb::gil_scoped_release released;
    failed = attempt([&] {
      Log::Sink sink = [](LogLevel, const std::string&) {};
      if (log)
        sink = [&log](LogLevel level, const std::string& line) {
          const nb::gil_scoped_acquire held;
          (*log)(level_name(level), line);
        };
      cli::Context context(text, std::move(sink));
      (void)cli::run_program(static_cast<int>(argv.size()) - 1, argv.data(), context);
    });
  }
  nb::object kind = nb::none();
  nb::object why = nb::none();
  if (failed) {
    kind = nb::cast(static_cast<int>(failed->kind));
    why = nb::steal(
        PyUnicode_DecodeUTF8(failed->text.data(), static_cast<Py_ssize_t>(failed->text.size()), "replace"));
  }
  return nb::make_tuple(nb::str(text.data(), text.size()), kind, why);
}

}  // namespace

void bind_commands(nb::module_& m) {
  m.attr("version") = std::string(version());
  m.attr("probe_limit") = decode::probe_limit;
  m.attr("layout") = std::string(checkpoint::export_layout);
  m.def("run_command", &run_command, nb::arg("arguments"), nb::arg("log") = nb::none(),
        "Runs a command of the program in this process. Returns what it wrote, and (exit code, text) of its "
        "failure or None.");
}

}  // namespace kerf::python
