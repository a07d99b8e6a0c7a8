// The loop of the plain read, chosen at run time for this processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kerf::tools::internal {

// The XOR of all 8-byte words of a run of any size and alignment, the last one filled up with zeros.
std::uint64_t xor_words(std::span<const std::byte> bytes);

}  // namespace kerf::tools::internal
