#include "cli/stderr_log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

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

Log::Sink stderr_sink() {
  return [logger = stderr_logger()](LogLevel level, const std::string& text) {
    logger->log(level_of(level), text);
  };
}

void write_error(std::string_view text) { stderr_logger()->error(text); }

}  // namespace kerf::cli
