#include "cli/context.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>

namespace kerf::cli {

namespace {

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
  }
  return spdlog::level::warn;
}

// Plain lines for information, a marked word for what needs attention.
std::shared_ptr<spdlog::logger> stderr_logger() {
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  auto logger = std::make_shared<spdlog::logger>("kerf", std::move(sink));
  logger->set_level(spdlog::level::debug);
  logger->set_pattern("kerf: %^%l%$: %v");
  return logger;
}

}  // namespace

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
    : log([this, logger = stderr_logger()](LogLevel level, const std::string& text) {
        if (level == LogLevel::debug && !verbose) return;
        if (level == LogLevel::info && quiet) return;
        logger->log(level_of(level), printable(text, true));
      }) {}

int Context::threads() { return env_positive("KERF_THREADS", most_threads).value_or(available_cores()); }

void Context::error(std::string_view text) const { stderr_logger()->error(printable(text, true)); }

}  // namespace kerf::cli
