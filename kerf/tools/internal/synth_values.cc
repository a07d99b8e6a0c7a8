#include "kerf/tools/internal/synth_values.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "kerf/numeric/bf16.h"
#include "kerf/numeric/e2m1.h"
#include "kerf/numeric/e4m3.h"
#include "kerf/numeric/splitmix.h"

namespace kerf::tools::internal {

namespace {

using Table = std::array<std::uint8_t, 256>;

// How many of 128 normals get each magnitude code, where the block's largest of 16 (1.9 deviations on
// average) is scaled to 6: code c takes the normals between its rounding boundaries times 1.9 / 6.
constexpr std::array<int, 8> code_counts = {8, 16, 15, 14, 19, 21, 20, 15};
static_assert(std::accumulate(code_counts.begin(), code_counts.end(), 0) == 128);

// How many of 256 blocks get each e4m3 scale, from 80 (0x6A) to 320 (0x7A): the largest of 16 normals is
// below a with probability erf(a / sqrt 2)^16, and 5.5 deviations (the largest of a whole matrix) stand for
// 448.
constexpr std::uint8_t first_scale = 0x6A;
constexpr std::array<int, 17> scale_counts = {1, 1, 3, 5, 8, 11, 23, 40, 43, 39, 30, 21, 13, 8, 6, 3, 1};
static_assert(std::accumulate(scale_counts.begin(), scale_counts.end(), 0) == 256);

constexpr Table code_table() {
  Table table{};
  std::size_t at = 0;
  for (std::size_t code = 0; code < code_counts.size(); ++code)
    for (int i = 0; i < code_counts[code]; ++i) {
      table[at++] = static_cast<std::uint8_t>(code);
      table[at++] = static_cast<std::uint8_t>(code | 8U);
    }
  return table;
}

constexpr Table scale_table() {
  Table table{};
  std::size_t at = 0;
  for (std::size_t i = 0; i < scale_counts.size(); ++i)
    for (int n = 0; n < scale_counts[i]; ++n) table[at++] = static_cast<std::uint8_t>(first_scale + i);
  return table;
}

constexpr Table codes = code_table();
constexpr Table scales = scale_table();

template <typename Value>
constexpr float mean_square(const Table& table, Value value) {
  // Exact: the squares are multiples of 1/4 (codes) or of 64 (scales), and their sums below 2^24 of those.
  float sum = 0.0F;
  for (const std::uint8_t code : table) sum += value(code) * value(code);
  return sum / 256.0F;
}

float centred(std::uint64_t word) { return static_cast<float>(numeric::bell(word)); }

// Writes units of `Unit` bytes, made by unit(i), over [begin, begin + out.size()).
template <std::size_t Unit, typename Make>
void fill_units(std::int64_t begin, std::span<std::byte> out, Make make) {
  auto index = static_cast<std::uint64_t>(begin) / Unit;
  std::byte* to = out.data();
  std::size_t left = out.size();
  for (; left >= Unit; left -= Unit, to += Unit) {
    const auto unit = make(index++);
    static_assert(sizeof(unit) == Unit);
    std::memcpy(to, &unit, Unit);
  }
  if (left > 0) {
    const auto unit = make(index);
    std::memcpy(to, &unit, left);
  }
}

// `size` bytes at `at`, which lie in one unit of 8.
void copy_bytes(const Source& source, std::int64_t at, std::int64_t size, std::byte* to) {
  constexpr std::int64_t unit = 8;
  std::array<std::byte, unit> around{};
  fill_bytes(source, at / unit * unit, around);
  std::copy_n(around.begin() + at % unit, size, to);
}

void fill_matrices(const Matrices& m, std::int64_t begin, std::span<std::byte> out) {
  const std::int64_t matrix_bytes = m.rows * m.columns * m.element;
  const auto end = begin + std::ssize(out);
  if (!m.transposed) {
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t inside = at % matrix_bytes;
      const std::int64_t count = std::min(end - at, matrix_bytes - inside);
      fill_bytes(m.sources[static_cast<std::size_t>(at / matrix_bytes)], inside,
                 out.subspan(static_cast<std::size_t>(at - begin), static_cast<std::size_t>(count)));
      at += count;
    }
    return;
  }
  const std::int64_t width = m.each * m.rows;
  for (std::int64_t i = begin / m.element; i < end / m.element; ++i) {
    const std::int64_t block = i / (width * m.columns);
    const std::int64_t column = i / width % m.columns;
    const std::int64_t place = i % width;
    const std::int64_t which = m.alternating ? place % m.each : place / m.rows;
    const std::int64_t row = m.alternating ? place / m.each : place % m.rows;
    copy_bytes(m.sources[static_cast<std::size_t>(block * m.each + which)],
               (row * m.columns + column) * m.element, m.element, out.data() + (i * m.element - begin));
  }
}

}  // namespace

std::uint64_t stream_of(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = numeric::SplitMix(seed)[0];
  for (const char c : name) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001B3U;  // FNV-1a
  return numeric::SplitMix(hash)[0];
}

float code_rms() {
  static constexpr float square = mean_square(codes, [](std::uint8_t c) { return numeric::e2m1_to_f32(c); });
  return std::sqrt(square);
}

float scale_rms() {
  static constexpr float square = mean_square(scales, [](std::uint8_t c) { return numeric::e4m3_to_f32(c); });
  return std::sqrt(square);
}

void fill_bytes(const Source& source, std::int64_t from, std::span<std::byte> out) {
  const numeric::SplitMix stream(source.stream);
  const std::int64_t begin = from + source.skip;
  switch (source.fill) {
    case Fill::codes:
      fill_units<4>(begin, out, [stream](std::uint64_t i) {
        const std::uint64_t word = stream[i];
        std::array<std::uint8_t, 4> unit{};
        for (std::size_t b = 0; b < 4; ++b)
          unit[b] = static_cast<std::uint8_t>(codes[(word >> (16 * b)) & 0xFFU] |
                                              (codes[(word >> (16 * b + 8)) & 0xFFU] << 4));
        return unit;
      });
      return;
    case Fill::block_scales:
      fill_units<8>(begin, out, [stream](std::uint64_t i) {
        const std::uint64_t word = stream[i];
        std::array<std::uint8_t, 8> unit{};
        for (std::size_t b = 0; b < 8; ++b) unit[b] = scales[(word >> (8 * b)) & 0xFFU];
        return unit;
      });
      return;
    case Fill::bf16_normal:
      fill_units<2>(begin, out,
                    [stream, factor = source.deviation / numeric::bell_deviation](std::uint64_t i) {
                      return numeric::f32_to_bf16(centred(stream[i]) * factor);
                    });
      return;
    case Fill::f32_normal:
      fill_units<4>(begin, out,
                    [stream, factor = source.deviation / numeric::bell_deviation](std::uint64_t i) {
                      return centred(stream[i]) * factor;
                    });
      return;
    case Fill::f32_values: {
      const auto bytes = std::as_bytes(std::span(source.values)).subspan(static_cast<std::size_t>(begin));
      std::copy_n(bytes.begin(), out.size(), out.begin());
      return;
    }
    case Fill::matrices:
      fill_matrices(*source.matrices, begin, out);
      return;
  }
}

}  // namespace kerf::tools::internal
