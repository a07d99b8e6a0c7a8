#include "kerf/tools/internal/xor_words.h"

#include <cstring>

namespace kerf::tools::internal {

std::uint64_t xor_words(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0;
  std::uint64_t word = 0;
  const std::size_t whole = bytes.size() / 8 * 8;
  for (std::size_t at = 0; at < whole; at += 8) {
    std::memcpy(&word, bytes.data() + at, 8);
    sum ^= word;
  }
  word = 0;
  if (whole < bytes.size()) std::memcpy(&word, bytes.data() + whole, bytes.size() - whole);
  return sum ^ word;
}

}  // namespace kerf::tools::internal
