// A layer of random experts, whole and cut, straight from layout::convert.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "kerf/layout/convert.h"
#include "kerf/layout/experts.h"
#include "kerf/layout/geometry.h"

namespace kerf::test {

using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(std::int64_t count, std::mt19937& random) {
  Bytes out(static_cast<std::size_t>(count));
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}

// Columns [first, first + count) of a [rows, columns] matrix of bytes.
inline Bytes columns_of(const Bytes& matrix, std::int64_t columns, std::int64_t first, std::int64_t count) {
  Bytes out;
  for (auto row = matrix.begin(); row != matrix.end(); row += columns)
    out.insert(out.end(), row + first, row + first + count);
  return out;
}
inline Bytes rows_of(const Bytes& matrix, std::int64_t columns, std::int64_t first, std::int64_t count) {
  return {matrix.begin() + first * columns, matrix.begin() + (first + count) * columns};
}

struct LogicalExpert {
  Bytes gate, gate_sf, up, up_sf, down, down_sf;
};

struct Layer {
  std::int64_t hidden, intermediate;
  std::vector<LogicalExpert> experts;
  std::vector<std::uint32_t> g1_alphas, g1_scale_c, g2_alphas;  // bits, NaN payloads among them
  std::uint32_t a1_gscale = 0x3F801234U;
  std::uint32_t a2_gscale = 0x7FC00001U;
};

inline Layer random_layer(std::int64_t experts, std::int64_t hidden, std::int64_t intermediate,
                          unsigned seed) {
  std::mt19937 random(seed);
  Layer layer{hidden, intermediate, {}, {}, {}, {}};
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t codes = intermediate * hidden / 2;
    const std::int64_t scales = intermediate * hidden / 16;
    layer.experts.push_back({random_bytes(codes, random), random_bytes(scales, random),
                             random_bytes(codes, random), random_bytes(scales, random),
                             random_bytes(codes, random), random_bytes(scales, random)});
    for (auto* scalars : {&layer.g1_alphas, &layer.g1_scale_c, &layer.g2_alphas})
      scalars->push_back(static_cast<std::uint32_t>(random()));
  }
  return layer;
}

// Slice `part` of `tp`: the tiles of 64 dealt out one by one.
inline layout::Slice part_of(std::int64_t intermediate, std::int64_t tp, std::int64_t part) {
  std::vector<std::int64_t> widths(static_cast<std::size_t>(tp), 0);
  if (tp == 1) return {0, intermediate};
  for (std::int64_t tile = 0; tile < intermediate / 64; ++tile)
    widths[static_cast<std::size_t>(tile % tp)] += 64;
  return {std::accumulate(widths.begin(), widths.begin() + part, std::int64_t{0}),
          widths[static_cast<std::size_t>(part)]};
}

// The slice of one expert, cut before conversion.
inline LogicalExpert slice_of(const Layer& layer, const LogicalExpert& e, const layout::Slice& slice) {
  const auto [first, width] = slice;
  const std::int64_t h = layer.hidden;
  const std::int64_t i = layer.intermediate;
  return {rows_of(e.gate, h / 2, first, width),
          rows_of(e.gate_sf, h / 16, first, width),
          rows_of(e.up, h / 2, first, width),
          rows_of(e.up_sf, h / 16, first, width),
          columns_of(e.down, i / 2, first / 2, width / 2),
          columns_of(e.down_sf, i / 16, first / 16, width / 16)};
}

// Experts [first, first + count) of slice `part` of `tp`, converted one by one.
inline layout::Nvfp4Experts convert_experts(const Layer& layer, std::int64_t first, std::int64_t count,
                                            std::int64_t tp, std::int64_t part, tensor::Memory& memory) {
  const layout::Slice slice = part_of(layer.intermediate, tp, part);
  layout::Nvfp4Experts out(memory, {count, layer.hidden, slice.width}, first);
  const auto nth = [&](const tensor::Tensor& t, std::int64_t i) {
    const std::size_t bytes = t.bytes().size() / static_cast<std::size_t>(count);
    return t.bytes().subspan(static_cast<std::size_t>(i) * bytes, bytes);
  };
  for (std::int64_t i = 0; i < count; ++i) {
    const auto global = static_cast<std::size_t>(first + i);
    const LogicalExpert e = slice_of(layer, layer.experts[global], slice);
    layout::convert(
        layout::LogicalNvfp4<const std::byte>{e.gate, e.gate_sf, e.up, e.up_sf, e.down, e.down_sf},
        layer.hidden, slice.width,
        layout::ConvertedNvfp4<std::byte>{nth(out.w13, i), nth(out.w13_sf, i), nth(out.w2, i),
                                          nth(out.w2_sf, i)});
    out.g1_alphas.as<std::uint32_t>()[static_cast<std::size_t>(i)] = layer.g1_alphas[global];
    out.g1_scale_c.as<std::uint32_t>()[static_cast<std::size_t>(i)] = layer.g1_scale_c[global];
    out.g2_alphas.as<std::uint32_t>()[static_cast<std::size_t>(i)] = layer.g2_alphas[global];
  }
  out.a1_gscale.as<std::uint32_t>()[0] = layer.a1_gscale;
  out.a2_gscale.as<std::uint32_t>()[0] = layer.a2_gscale;
  return out;
}

// Every byte of the nine tensors, in a row.
inline Bytes all_bytes(const layout::Nvfp4View& view) {
  Bytes out;
  for (const auto* t : {&view.w13, &view.w13_sf, &view.w2, &view.w2_sf, &view.g1_alphas, &view.g1_scale_c,
                        &view.g2_alphas, &view.a1_gscale, &view.a2_gscale})
    out.insert(out.end(), t->bytes.begin(), t->bytes.end());
  return out;
}

}  // namespace kerf::test
