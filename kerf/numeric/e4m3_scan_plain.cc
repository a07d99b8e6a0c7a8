#include "kerf/numeric/e4m3_scan.h"

namespace kerf::numeric {

bool regular_scales(std::span<const std::uint8_t> codes) {
  // One accumulator as wide as a code, comparisons and bit operations only: the compiler makes vectors of it.
  std::uint8_t bad = 0;
  for (const std::uint8_t code : codes)
    bad = static_cast<std::uint8_t>(
        bad | (static_cast<std::uint8_t>(code >= 0x7F) & static_cast<std::uint8_t>(code != 0x80)));
  return bad == 0;
}

}  // namespace kerf::numeric
