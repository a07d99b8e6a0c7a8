// How often tests of processes do the same.
#pragma once

#include <algorithm>
#include <cstdlib>

namespace kerf::test {

// FAULT_TIMES, or three: how processes end is a matter of chance. ./dev faults asks for 20.
inline int fault_times() {
  const char* const given = std::getenv("FAULT_TIMES");
  return given != nullptr ? std::clamp(std::atoi(given), 1, 1000) : 3;
}

}  // namespace kerf::test
