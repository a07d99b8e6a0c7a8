// What a log was told to warn of.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "kerf/base/log.h"

namespace kerf::test {

class Warnings {
 public:
  [[nodiscard]] Log log() {
    return Log([this](LogLevel level, const std::string& line) {
      const std::lock_guard lock(mutex_);
      if (level == LogLevel::warning) lines_.push_back(line);
    });
  }
  [[nodiscard]] std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  // How many of them hold the words.
  [[nodiscard]] std::size_t with(const std::string& words) const {
    std::size_t count = 0;
    for (const std::string& line : lines()) count += line.find(words) != std::string::npos ? 1U : 0U;
    return count;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace kerf::test
