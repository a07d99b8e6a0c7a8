// What count_allocations.h counts in a test program: this thread's allocations, and those of all threads.
// Zero in a program of which no file includes that.
#pragma once

#include <atomic>
#include <cstdint>

namespace kerf::test {
inline thread_local std::int64_t allocations = 0;
inline std::atomic<std::int64_t> all_allocations{0};
}  // namespace kerf::test
