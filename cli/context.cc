#include "cli/context.h"

#include <cerrno>
#include <cstdio>
#include <string>

#include "cli/stderr_log.h"

namespace kerf::cli {

void Output::write(std::string_view text) {
  if (error_ != 0) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) error_ = errno != 0 ? errno : EIO;
}

void Output::json(const Json& value) {
  // Names in damaged files need not be UTF-8: they are shown, not refused.
  write(value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

int Output::finish() {
  if (std::fflush(stdout) != 0 && error_ == 0) error_ = errno != 0 ? errno : EIO;
  return error_;
}

Context::Context()
    : log([this, sink = stderr_sink()](LogLevel level, const std::string& text) {
        if (!speaks) return;
        if (level == LogLevel::debug && !verbose) return;
        if (level == LogLevel::info && quiet) return;
        sink(level, printable(text, true));
      }) {}

int Context::threads() { return env_positive("KERF_THREADS", most_threads).value_or(available_cores()); }

void Context::error(std::string_view text) const { write_error(printable(text, true)); }

}  // namespace kerf::cli
