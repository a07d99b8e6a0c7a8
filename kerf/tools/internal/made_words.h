// The words that a made-up tensor consists of: random ones, of which some bits are set for them.
#pragma once

#include <cstdint>

#include "kerf/numeric/splitmix.h"

namespace kerf::tools::internal {

struct MadeWords {
  numeric::SplitMix stream;
  std::uint64_t before = 0;  // number of the tensor's first word in the stream
  std::uint64_t kept = ~std::uint64_t{0};
  std::uint64_t set = 0;

  [[nodiscard]] constexpr std::uint64_t operator[](std::uint64_t i) const {
    return (stream[before + i] & kept) | set;
  }
};

}  // namespace kerf::tools::internal
