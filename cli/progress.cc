#include "cli/progress.h"

#include <unistd.h>

#include <cstdio>

namespace kerf::cli {

namespace {

constexpr auto bar_period = std::chrono::milliseconds(100);
constexpr auto line_period = std::chrono::seconds(10);
constexpr int bar_width = 30;

}  // namespace

ProgressBar::ProgressBar(const Context& context, const std::string& what)
    : context_(context), what_(printable(what)), terminal_(isatty(STDERR_FILENO) == 1), last_(Clock::now()) {}

ProgressBar::~ProgressBar() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::update(std::int64_t done, std::int64_t total) {
  if (context_.quiet || total < 1) return;
  const std::scoped_lock lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (terminal_ ? now - last_ < bar_period : now - last_ < line_period) return;
  last_ = now;
  const double part = static_cast<double>(done) / static_cast<double>(total);
  if (!terminal_) {
    context_.log.info(fmt::format("{}: {:.0f} %", what_, 100 * part));
    return;
  }
  const int filled = static_cast<int>(part * bar_width);
  const std::string bar = std::string(static_cast<std::size_t>(filled), '#') +
                          std::string(static_cast<std::size_t>(bar_width - filled), '.');
  std::fputs(fmt::format("\r{} [{}] {:3.0f} %", what_, bar, 100 * part).c_str(), stderr);
  shown_ = true;
}

void Stopwatch::lap(std::string_view stage) {
  const Clock::time_point now = Clock::now();
  context_.log.debug(fmt::format("{}: {:.3f} s", stage, std::chrono::duration<double>(now - last_).count()));
  last_ = now;
}

}  // namespace kerf::cli
