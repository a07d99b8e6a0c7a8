#include "kerf/tools/internal/xor_words.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace kerf::tools::internal {

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kAhead = 2048;  // bytes between asking for a line and reading it

}  // namespace

// Four streams that ask early, as in xor_words.cc; the compiler makes the eight sums the vectors that it has.
std::uint64_t xor_words(std::span<const std::byte> bytes) {
  const std::byte* p = bytes.data();
  std::array<std::uint64_t, kLine / 8> sums{};
  const auto take = [&](const std::byte* line) {
    __builtin_prefetch(line + kAhead);
    std::array<std::uint64_t, kLine / 8> words{};
    std::memcpy(words.data(), line, kLine);
    for (std::size_t i = 0; i < words.size(); ++i) sums[i] ^= words[i];
  };
  const std::size_t part = bytes.size() / 4 / kLine * kLine;
  for (std::size_t at = 0; at < part; at += kLine)
    for (std::size_t stream = 0; stream < 4; ++stream) take(p + stream * part + at);
  std::uint64_t sum = 0;
  for (const std::uint64_t s : sums) sum ^= s;
  for (std::size_t at = 4 * part; at < bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, p + at, std::min<std::size_t>(8, bytes.size() - at));
    sum ^= word;
  }
  return sum;
}

}  // namespace kerf::tools::internal
