// Which e4m3 codes can be block scales: those that are numbers and not negative. -0 (0x80) can.
#pragma once

#include <cstdint>
#include <span>

namespace kerf::numeric {

// Not NaN (0x7F, 0xFF) and not negative (0x81 to 0xFE).
constexpr bool regular_scale(std::uint8_t code) { return code < 0x7F || code == 0x80; }

// Whether all of them are regular. A pass without a branch a byte: there are gigabytes of them, and hardly
// ever one that is not.
bool regular_scales(std::span<const std::uint8_t> codes);

}  // namespace kerf::numeric
