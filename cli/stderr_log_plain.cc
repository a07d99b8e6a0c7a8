// The lines without colours.
#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "cli/stderr_log.h"

namespace kerf::cli {

namespace {

std::string_view word_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return "debug";
    case LogLevel::info:
      return "info";
    case LogLevel::warning:
      return "warning";
  }
  return "warning";
}

// One call a line: the stream's own lock keeps lines of several threads whole.
void write_line(std::string_view word, std::string_view text) {
  const std::string line = fmt::format("kerf: {}: {}\n", word, text);
  (void)std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

Log::Sink stderr_sink() {
  return [](LogLevel level, const std::string& text) { write_line(word_of(level), text); };
}

void write_error(std::string_view text) { write_line("error", text); }

}  // namespace kerf::cli
