// What the blocks of an NVFP4 matrix say about it: how many are nothing but zeros, and between what their
// scales lie.
#pragma once

#include <cstdint>
#include <span>

namespace kerf::numeric {

// What is found.
struct BlockScan {
  std::int64_t blocks = 0;
  // Blocks whose 16 values are all zero: their codes are 0 or -0, or their scale is. (Quantisers give blocks
  // of zeros some scale or other that is not zero.)
  std::int64_t zeros = 0;
  // Smallest and largest scale code of the others, as far as it is a positive number; both 0 where there is
  // none.
  std::uint8_t least = 0;
  std::uint8_t most = 0;
};

// `codes`: 8 bytes a block; `scales`: e4m3, one a block. Error{bug} where the two do not fit.
BlockScan scan_blocks(std::span<const std::uint8_t> codes, std::span<const std::uint8_t> scales);

}  // namespace kerf::numeric
