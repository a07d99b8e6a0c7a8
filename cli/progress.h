// How far a long command is, on standard error: a bar on a terminal, otherwise a line now and then (ten
// seconds apart), nothing with --quiet.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "cli/context.h"

namespace kerf::cli {

class ProgressBar {
 public:
  ProgressBar(const Context& context, std::string what);
  ~ProgressBar();  // clears the bar
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ProgressBar(ProgressBar&&) = delete;
  ProgressBar& operator=(ProgressBar&&) = delete;

  // Any thread may call it.
  void update(std::int64_t done, std::int64_t total);

 private:
  using Clock = std::chrono::steady_clock;

  const Context& context_;
  std::string what_;
  bool terminal_;
  bool shown_ = false;
  Clock::time_point last_;
  std::mutex mutex_;
};

}  // namespace kerf::cli
