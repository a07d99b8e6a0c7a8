// Whole numbers in as few bytes as they need, seven bits a byte, the low ones first: no more bytes than the
// number has decimal digits.
#pragma once

#include <cstdint>
#include <vector>

namespace kerf::checkpoint::internal {

inline void put_varint(std::uint64_t value, std::vector<char>& to) {
  for (; value >= 0x80; value >>= 7U) to.push_back(static_cast<char>(value | 0x80U));
  to.push_back(static_cast<char>(value));
}

// Moves `at` behind the number.
inline std::uint64_t take_varint(const char*& at) {
  std::uint64_t value = 0;
  for (unsigned shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(*at++);
    value |= std::uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80) return value;
  }
}

}  // namespace kerf::checkpoint::internal
