#include "kerf/numeric/block_scan.h"

#include <algorithm>
#include <cstring>

#include "kerf/base/format.h"
#include "kerf/numeric/e4m3_scan.h"
#include "kerf/numeric/nvfp4.h"

namespace kerf::numeric {

BlockScan scan_blocks(std::span<const std::uint8_t> codes, std::span<const std::uint8_t> scales) {
  constexpr std::size_t block_bytes = nvfp4_block / 2;
  if (codes.size() != scales.size() * block_bytes)
    fail(ErrorKind::bug, "{} bytes of codes and {} block scales", codes.size(), scales.size());
  constexpr std::uint64_t magnitudes = 0x7777777777777777U;  // without the codes' signs
  BlockScan out;
  std::uint8_t least = 0xFF;
  std::uint8_t most = 0;
  for (std::size_t b = 0; b < scales.size(); ++b) {
    std::uint64_t word = 0;
    std::memcpy(&word, codes.data() + b * block_bytes, block_bytes);
    const std::uint8_t scale = scales[b];
    const bool zero = (word & magnitudes) == 0 || (scale & 0x7FU) == 0;
    out.zeros += zero ? 1 : 0;
    const bool counts = !zero && regular_scale(scale);
    least = std::min(least, counts ? scale : std::uint8_t{0xFF});
    most = std::max(most, counts ? scale : std::uint8_t{0});
  }
  out.blocks = std::ssize(scales);
  out.least = most == 0 ? std::uint8_t{0} : least;
  out.most = most;
  return out;
}

}  // namespace kerf::numeric
