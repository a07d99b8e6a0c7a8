// What the benches share: options of the form --name N, a clock, the median.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "kerf/numeric/median.h"

namespace kerf::bench {

using Clock = std::chrono::steady_clock;

inline double seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

// The number after --name, or `fallback`.
inline std::int64_t option(int argc, char** argv, const std::string& name, std::int64_t fallback) {
  for (int i = 1; i + 1 < argc; ++i)
    if (argv[i] == "--" + name) return std::atoll(argv[i + 1]);
  return fallback;
}

using numeric::median;

}  // namespace kerf::bench
