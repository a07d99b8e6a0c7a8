// Values that cannot be used, found at the speed of memory: a checkpoint has gigabytes of them, and hardly
// ever a fault. Block-scale bytes are unusable where NaN (0x7F, 0xFF) or negative (0x81 to 0xFE); -0 (0x80)
// can be used. Floating-point values are unusable where not finite. Files need not align anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kerf/base/function_ref.h"

namespace kerf::checkpoint::internal {

constexpr bool usable_block_scale(std::byte code) {
  return code < std::byte{0x7F} || code == std::byte{0x80};
}

// Whether all of them are usable. A pass over the bytes without a branch a byte.
bool usable_block_scales(std::span<const std::byte> codes);

// Calls `found` with position and bits of every infinity and NaN, ascending. A call a fault and none a value.
void for_each_not_finite_bf16(std::span<const std::byte> values,
                              FunctionRef<void(std::size_t at, std::uint16_t bits)> found);
void for_each_not_finite_f32(std::span<const std::byte> values,
                             FunctionRef<void(std::size_t at, std::uint32_t bits)> found);

}  // namespace kerf::checkpoint::internal
