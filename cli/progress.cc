#include "cli/progress.h"

#include <unistd.h>

#include <cstdio>

#include "cli/rate.h"

namespace kerf::cli {

namespace {

constexpr auto bar_period = std::chrono::milliseconds(100);
constexpr auto line_period = std::chrono::seconds(10);
constexpr int bar_width = 30;

}  // namespace

ProgressBar::ProgressBar(const Context& context, const std::string& what, Counts counts)
    : context_(context),
      what_(printable(what)),
      counts_(counts),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      last_(start_) {}

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
  const std::string rate =
      rate_text(counts_ == Counts::bytes, done, total, std::chrono::duration<double>(now - start_).count());
  if (!terminal_) {
    context_.log.info(fmt::format("{}: {:.0f} %{}{}", what_, 100 * part, rate.empty() ? "" : ", ", rate));
    return;
  }
  const int filled = static_cast<int>(part * bar_width);
  const std::string bar = std::string(static_cast<std::size_t>(filled), '#') +
                          std::string(static_cast<std::size_t>(bar_width - filled), '.');
  // A shorter line than the one before leaves nothing of it behind.
  std::fputs(fmt::format("\r{} [{}] {:3.0f} % {}\033[K", what_, bar, 100 * part, rate).c_str(), stderr);
  shown_ = true;
}

void Stopwatch::lap(std::string_view stage) {
  const Clock::time_point now = Clock::now();
  context_.log.debug(fmt::format("{}: {:.3f} s", stage, std::chrono::duration<double>(now - last_).count()));
  last_ = now;
}

}  // namespace kerf::cli
