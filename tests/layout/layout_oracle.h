// Experts of random bytes, and the layout written down element by element: slow, and obvious beside the text
// of kerf/layout/rows.h.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "kerf/layout/convert.h"
#include "kerf/layout/rows.h"

namespace kerf::layout::test_support {

using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(std::int64_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes out(static_cast<std::size_t>(size));
  for (std::byte& b : out) b = static_cast<std::byte>(random() >> 56);
  return out;
}

// One expert as the checkpoint has it.
struct Nvfp4Expert {
  Nvfp4Expert(std::int64_t hidden, std::int64_t intermediate)
      : gate(size(hidden, intermediate)),
        gate_sf(gate.size() / 8),
        up(gate),
        up_sf(gate_sf),
        down(gate),
        down_sf(gate_sf) {}
  Nvfp4Expert(std::int64_t hidden, std::int64_t intermediate, std::uint64_t seed)
      : Nvfp4Expert(hidden, intermediate) {
    for (Bytes* b : {&gate, &gate_sf, &up, &up_sf, &down, &down_sf})
      *b = random_bytes(std::ssize(*b), ++seed * 977);
  }
  [[nodiscard]] LogicalNvfp4<const std::byte> view() const {
    return {gate, gate_sf, up, up_sf, down, down_sf};
  }
  [[nodiscard]] LogicalNvfp4<std::byte> target() { return {gate, gate_sf, up, up_sf, down, down_sf}; }
  friend bool operator==(const Nvfp4Expert&, const Nvfp4Expert&) = default;

  Bytes gate, gate_sf, up, up_sf, down, down_sf;

 private:
  static std::size_t size(std::int64_t hidden, std::int64_t intermediate) {
    return static_cast<std::size_t>(hidden * intermediate / 2);
  }
};

// Intermediate indices [first, first + width) of an expert, cut before conversion: rows of gate and up,
// columns of down.
inline Nvfp4Expert cut(const Nvfp4Expert& whole, std::int64_t hidden, std::int64_t intermediate,
                       std::int64_t first, std::int64_t width) {
  const auto rows = [&](const Bytes& m) {
    const auto row = std::ssize(m) / intermediate;
    return Bytes(m.begin() + first * row, m.begin() + (first + width) * row);
  };
  const auto columns = [&](const Bytes& m, std::int64_t values) {  // of one byte
    const auto row = std::ssize(m) / hidden;
    Bytes out;
    for (std::int64_t h = 0; h < hidden; ++h)
      out.insert(out.end(), m.begin() + h * row + first / values,
                 m.begin() + h * row + (first + width) / values);
    return out;
  };
  Nvfp4Expert slice(hidden, width);
  slice.gate = rows(whole.gate);
  slice.gate_sf = rows(whole.gate_sf);
  slice.up = rows(whole.up);
  slice.up_sf = rows(whole.up_sf);
  slice.down = columns(whole.down, 2);
  slice.down_sf = columns(whole.down_sf, 16);
  return slice;
}

// The widths of tp slices: the tiles of 64 dealt out one by one.
inline std::vector<std::int64_t> dealt(std::int64_t intermediate, std::int64_t tp) {
  std::vector<std::int64_t> widths(static_cast<std::size_t>(tp), 0);
  for (std::int64_t tile = 0; tile < intermediate / 64; ++tile)
    widths[static_cast<std::size_t>(tile % tp)] += 64;
  return widths;
}

// An expert of I widened by zeros: rows behind those of gate and up, columns behind those of down.
inline Nvfp4Expert widened(const Nvfp4Expert& x, std::int64_t hidden, std::int64_t width) {
  Nvfp4Expert out(hidden, width);
  for (const auto& [from, to] :
       {std::pair{&x.gate, &out.gate}, {&x.gate_sf, &out.gate_sf}, {&x.up, &out.up}, {&x.up_sf, &out.up_sf}})
    std::copy(from->begin(), from->end(), to->begin());
  for (const auto& [from, to] : {std::pair{&x.down, &out.down}, {&x.down_sf, &out.down_sf}})
    for (std::int64_t h = 0; h < hidden; ++h)
      std::copy_n(from->begin() + h * (std::ssize(*from) / hidden), std::ssize(*from) / hidden,
                  to->begin() + h * (std::ssize(*to) / hidden));
  return out;
}

struct Nvfp4Converted {
  Bytes w13, w13_sf, w2, w2_sf;
  friend bool operator==(const Nvfp4Converted&, const Nvfp4Converted&) = default;
};

// The conversion by definition, a byte at a time.
inline Nvfp4Converted converted_by_definition(const Nvfp4Expert& x, std::int64_t hidden,
                                              std::int64_t intermediate) {
  Nvfp4Converted out{Bytes(2 * x.up.size()), Bytes(2 * x.up_sf.size()), Bytes(x.down.size()),
                     Bytes(x.down_sf.size())};
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  for (const Half half : {Half::up, Half::gate})
    for (std::int64_t i = 0; i < intermediate; ++i) {
      const std::int64_t r = w13_converted(half, i);
      for (std::int64_t b = 0; b < hidden / 2; ++b)
        out.w13[at(r * hidden / 2 + b)] = (half == Half::up ? x.up : x.gate)[at(i * hidden / 2 + b)];
      for (std::int64_t k = 0; k < hidden / 16; ++k)
        out.w13_sf[at(scale_offset_128x4(r, k, hidden / 16))] =
            (half == Half::up ? x.up_sf : x.gate_sf)[at(i * hidden / 16 + k)];
    }
  for (std::int64_t h = 0; h < hidden; ++h) {
    const std::int64_t r = w2_converted(h);
    for (std::int64_t b = 0; b < intermediate / 2; ++b)
      out.w2[at(r * intermediate / 2 + b)] = x.down[at(h * intermediate / 2 + b)];
    for (std::int64_t k = 0; k < intermediate / 16; ++k)
      out.w2_sf[at(scale_offset_128x4(r, k, intermediate / 16))] = x.down_sf[at(h * intermediate / 16 + k)];
  }
  return out;
}

inline Nvfp4Converted converted(const Nvfp4Expert& x, std::int64_t hidden, std::int64_t intermediate) {
  Nvfp4Converted out{Bytes(2 * x.up.size()), Bytes(2 * x.up_sf.size()), Bytes(x.down.size()),
                     Bytes(x.down_sf.size())};
  convert(x.view(), hidden, intermediate, {out.w13, out.w13_sf, out.w2, out.w2_sf});
  return out;
}

// Converts an expert of random bytes: as the definition says, and restored to what it was.
inline testing::AssertionResult goes_and_comes_back(std::int64_t hidden, std::int64_t intermediate,
                                                    std::uint32_t seed) {
  const Nvfp4Expert expert(hidden, intermediate, seed);
  const Nvfp4Converted c = converted(expert, hidden, intermediate);
  if (!(c == converted_by_definition(expert, hidden, intermediate)))
    return testing::AssertionFailure() << "converted otherwise than defined";
  Nvfp4Expert back(hidden, intermediate);
  restore({c.w13, c.w13_sf, c.w2, c.w2_sf}, hidden, intermediate, back.target());
  if (!(back == expert)) return testing::AssertionFailure() << "not restored to what it was";
  return testing::AssertionSuccess();
}

struct Bf16Expert {
  Bf16Expert(std::int64_t hidden, std::int64_t intermediate)
      : gate(static_cast<std::size_t>(hidden * intermediate * 2)), up(gate), down(gate) {}
  Bf16Expert(std::int64_t hidden, std::int64_t intermediate, std::uint64_t seed)
      : Bf16Expert(hidden, intermediate) {
    for (Bytes* b : {&gate, &up, &down}) *b = random_bytes(std::ssize(*b), ++seed * 977);
  }
  friend bool operator==(const Bf16Expert&, const Bf16Expert&) = default;

  Bytes gate, up, down;
};

struct Bf16Converted {
  Bytes w13, w2;
  friend bool operator==(const Bf16Converted&, const Bf16Converted&) = default;
};

inline Bf16Converted converted_by_definition(const Bf16Expert& x, std::int64_t hidden,
                                             std::int64_t intermediate) {
  Bf16Converted out{Bytes(2 * x.up.size()), Bytes(x.down.size())};
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  // Byte b of (row r of `rows`, column k).
  const auto block_major = [](std::int64_t rows, std::int64_t r, std::int64_t k, std::int64_t b) {
    return ((k / 64 * rows + r) * 64 + k % 64) * 2 + b;
  };
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t i = 0; i < intermediate; ++i)
      for (std::int64_t h = 0; h < hidden; ++h) {
        const std::int64_t ih = 2 * (i * hidden + h) + b;
        out.w13[at(block_major(2 * intermediate, w13_converted(Half::up, i), h, b))] = x.up[at(ih)];
        out.w13[at(block_major(2 * intermediate, w13_converted(Half::gate, i), h, b))] = x.gate[at(ih)];
        out.w2[at(block_major(hidden, w2_converted(h), i, b))] = x.down[at(2 * (h * intermediate + i) + b)];
      }
  return out;
}

inline Bf16Expert widened(const Bf16Expert& x, std::int64_t hidden, std::int64_t width) {
  Bf16Expert out(hidden, width);
  std::copy(x.gate.begin(), x.gate.end(), out.gate.begin());
  std::copy(x.up.begin(), x.up.end(), out.up.begin());
  for (std::int64_t h = 0; h < hidden; ++h)
    std::copy_n(x.down.begin() + h * (std::ssize(x.down) / hidden), std::ssize(x.down) / hidden,
                out.down.begin() + h * 2 * width);
  return out;
}

}  // namespace kerf::layout::test_support
