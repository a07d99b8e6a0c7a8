#include <cstring>

#include "bench/stream_copy.h"

namespace kerf::bench {

void stream_copy(const std::byte* from, std::byte* to, std::size_t bytes) { std::memcpy(to, from, bytes); }

}  // namespace kerf::bench
