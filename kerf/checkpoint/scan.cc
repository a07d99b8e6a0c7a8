#include "kerf/checkpoint/internal/scan.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

namespace kerf::checkpoint::internal {

namespace {

// Words whose exponent is all ones.
template <typename Word, Word exponent>
void for_each_not_finite(std::span<const std::byte> values, FunctionRef<void(std::size_t, Word)> found) {
  constexpr std::size_t run = 4096;  // words looked at together before any of them is looked at alone
  const std::size_t words = values.size() / sizeof(Word);
  std::array<Word, run> buffer{};
  for (std::size_t first = 0; first < words; first += run) {
    const std::size_t count = std::min(run, words - first);
    std::memcpy(buffer.data(), values.data() + sizeof(Word) * first, sizeof(Word) * count);
    Word bad = 0;  // as wide as the values, so that the compiler makes vectors of the loop
    for (std::size_t i = 0; i < count; ++i)
      bad = static_cast<Word>(bad | static_cast<Word>((buffer[i] & exponent) == exponent));
    if (bad == 0) continue;
    for (std::size_t i = 0; i < count; ++i)
      if ((buffer[i] & exponent) == exponent) found(first + i, buffer[i]);
  }
}

}  // namespace

void for_each_piece(const tensor::Source& source,
                    FunctionRef<void(std::int64_t at, std::span<const std::byte> piece)> look) {
  constexpr std::int64_t most = std::int64_t{1} << 17;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(most, source.bytes())));
  for (std::int64_t at = 0; at < source.bytes(); at += most) {
    const auto piece = std::span(buffer).first(static_cast<std::size_t>(std::min(most, source.bytes() - at)));
    source.read(at, piece);
    look(at, piece);
  }
}

void for_each_not_finite_bf16(std::span<const std::byte> values,
                              FunctionRef<void(std::size_t at, std::uint16_t bits)> found) {
  for_each_not_finite<std::uint16_t, 0x7F80>(values, found);
}

void for_each_not_finite_f32(std::span<const std::byte> values,
                             FunctionRef<void(std::size_t at, std::uint32_t bits)> found) {
  for_each_not_finite<std::uint32_t, 0x7F800000U>(values, found);
}

}  // namespace kerf::checkpoint::internal
