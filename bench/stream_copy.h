// The fastest copy of a large block that this processor has: vectors of its widest kind, loads asked for
// early, stores past the caches. glibc's memcpy does as much for blocks of some size, and as fast on some
// machines.
#pragma once

#include <cstddef>

namespace kerf::bench {

// Both ends aligned to 64; bytes % 64 == 0.
void stream_copy(const std::byte* from, std::byte* to, std::size_t bytes);

}  // namespace kerf::bench
