// What every command is given: where data goes (standard output, checked), where messages go (standard error)
// and the options that all commands share. Nothing else writes to standard output; beside the log only the
// progress bar, the hint after a usage error and the handlers of last resort write to standard error.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "cli/text.h"
#include "kerf/kerf.h"

namespace kerf::cli {

using Json = nlohmann::ordered_json;  // keys in the order they were written

// What the program answers beside kerf::ErrorKind's values.
inline constexpr int exit_ok = 0;
inline constexpr int exit_output = 1;  // standard output could not be written

// A line for a terminal: printable (kerf/base/text.h), and of bounded length.
std::string line_of(std::string_view text);

// Standard output; lines are made so, and JSON says the same characters in their escaped form. A write that
// fails is remembered, and the program ends with exit_output.
class Output {
 public:
  // Where a text is given, everything goes there instead.
  explicit Output(std::string* text = nullptr) : text_(text) {}

  void write(std::string_view text);
  template <typename... Args>
  void line(fmt::format_string<Args...> text, Args&&... args) {
    write(line_of(fmt::format(text, std::forward<Args>(args)...)) + "\n");
  }
  void json(Json value);  // indented, with a newline at the end; strings without end are cut
  // Flushes; 0, or the errno of the first write that failed.
  [[nodiscard]] int finish();

 private:
  std::string* text_;
  int error_ = 0;
};

struct Context {
  Context();  // of a program: standard output, standard error
  // Of a caller: the report is added to `text`, messages go to `sink`.
  Context(std::string& text, Log::Sink sink);
  ~Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  Context(Context&&) = delete;
  Context& operator=(Context&&) = delete;

  bool json = false;     // --json: one JSON value on standard output instead of text
  bool quiet = false;    // --quiet: warnings and errors only
  bool verbose = false;  // --verbose: details besides
  bool speaks = true;    // false: another process reports; errors alone are this one's to print
  int rank = 0;          // of this process, where it is a rank
  std::unique_ptr<comm::Program> program;  // where this process is a rank of several, by MPI or TCP
  Output out;
  Log log;  // to standard error (or the caller's sink), as quiet and verbose say; any thread may call it

  // Worker threads in all: KERF_THREADS, or the cores of this process.
  [[nodiscard]] static int threads();
  // An error's line on standard error, whatever quiet says.
  void error(std::string_view text) const;

 private:
  Context(std::string* text, Log::Sink sink);
};

}  // namespace kerf::cli
