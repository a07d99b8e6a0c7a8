// Block-scale bytes that cannot be used: NaN (0x7F, 0xFF) and negative values (0x81 to 0xFE). -0 (0x80) can.
#pragma once

#include <cstddef>
#include <span>

namespace kerf::checkpoint::internal {

constexpr bool usable_block_scale(std::byte code) {
  return code < std::byte{0x7F} || code == std::byte{0x80};
}

// Whether all of them are usable. A pass over the bytes without a branch a byte: a checkpoint has gigabytes
// of them, and hardly ever a fault.
bool usable_block_scales(std::span<const std::byte> codes);

}  // namespace kerf::checkpoint::internal
