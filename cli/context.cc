#include "cli/context.h"

#include <cerrno>
#include <cstdio>
#include <string>
#include <utility>

#include "cli/stderr_log.h"

namespace kerf::cli {

void Output::write(std::string_view text) {
  if (text_ != nullptr) return static_cast<void>(text_->append(text));
  if (error_ != 0) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) error_ = errno != 0 ? errno : EIO;
}

namespace {

constexpr std::size_t most_string = 4096;    // of JSON: as long as a path can be
constexpr std::size_t most_message = 16384;  // of a line

// A file may say names without end; whatever came through to here is bounded.
void cut_strings(Json& value) {
  if (value.is_string()) {
    auto& text = value.get_ref<std::string&>();
    if (text.size() > most_string) text = cut(text, most_string);
  } else if (value.is_structured()) {
    for (Json& item : value) cut_strings(item);
  }
}

}  // namespace

std::string line_of(std::string_view text) { return printable(cut(text, most_message)); }

void Output::json(Json value) {
  cut_strings(value);
  // Names in damaged files need not be UTF-8: they are shown, not refused.
  write(plain_json(value.dump(2, ' ', false, Json::error_handler_t::replace)) + "\n");
}

int Output::finish() {
  if (text_ != nullptr) return 0;
  if (std::fflush(stdout) != 0 && error_ == 0) error_ = errno != 0 ? errno : EIO;
  return error_;
}

Context::Context() : Context(nullptr, stderr_sink()) {}

Context::Context(std::string& text, Log::Sink sink) : Context(&text, std::move(sink)) {}

Context::Context(std::string* report, Log::Sink to)
    : out(report), log([this, sink = std::move(to)](LogLevel level, const std::string& text) {
        if (!speaks) return;
        if (level == LogLevel::debug && !verbose) return;
        if (level == LogLevel::info && quiet) return;
        sink(level, line_of(text));
      }) {}

int Context::threads() { return env_positive("KERF_THREADS", most_threads).value_or(available_cores()); }

void Context::error(std::string_view text) const { write_error(line_of(text)); }

}  // namespace kerf::cli
