// How far a long command is, on standard error: a bar on a terminal, otherwise a line now and then (ten
// seconds apart), nothing with --quiet. Where what is counted is bytes, with their rate; with the time that
// is left at the rate so far.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "cli/context.h"

namespace kerf::cli {

class ProgressBar {
 public:
  enum class Counts { steps, bytes };
  ProgressBar(const Context& context, const std::string& what, Counts counts = Counts::steps);
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
  Counts counts_;
  bool terminal_;
  bool shown_ = false;
  Clock::time_point start_;
  Clock::time_point last_;
  std::mutex mutex_;
};

// What a stage of a command took, for --verbose.
class Stopwatch {
 public:
  explicit Stopwatch(const Context& context) : context_(context) {}
  // The time since the last lap, or since this was made.
  void lap(std::string_view stage);

 private:
  using Clock = std::chrono::steady_clock;

  const Context& context_;
  Clock::time_point last_ = Clock::now();
};

}  // namespace kerf::cli
