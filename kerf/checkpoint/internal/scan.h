// Values that are not finite, found at the speed of memory: a checkpoint has gigabytes of values, and hardly
// ever such a one. Files need not align anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kerf/base/function_ref.h"
#include "kerf/tensor/source.h"

namespace kerf::checkpoint::internal {

// Reads all of it, in order, through a buffer that a core's cache holds: `look` gets each piece, and where it
// begins. Pieces are whole in units of 8 bytes, but for the last.
void for_each_piece(const tensor::Source& source,
                    FunctionRef<void(std::int64_t at, std::span<const std::byte> piece)> look);

// Calls `found` with position and bits of every infinity and NaN, ascending. A call a fault and none a value.
void for_each_not_finite_bf16(std::span<const std::byte> values,
                              FunctionRef<void(std::size_t at, std::uint16_t bits)> found);
void for_each_not_finite_f32(std::span<const std::byte> values,
                             FunctionRef<void(std::size_t at, std::uint32_t bits)> found);

}  // namespace kerf::checkpoint::internal
