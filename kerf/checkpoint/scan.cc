#include "kerf/checkpoint/internal/scan.h"

#include <cstdint>

namespace kerf::checkpoint::internal {

bool usable_block_scales(std::span<const std::byte> codes) {
  // One accumulator of bytes, and/compare/or only: the compiler turns this into vector instructions.
  const auto* at = reinterpret_cast<const std::uint8_t*>(codes.data());
  std::uint8_t bad = 0;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const std::uint8_t code = at[i];
    bad = static_cast<std::uint8_t>(
        bad | (static_cast<std::uint8_t>(code >= 0x7F) & static_cast<std::uint8_t>(code != 0x80)));
  }
  return bad == 0;
}

}  // namespace kerf::checkpoint::internal
