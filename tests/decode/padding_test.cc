// Padded widths compute the unpadded model: W4A4 rows, whole or sliced, have the bits of a canonical
// computation over the checkpoint's own matrices; BF16 and W4A16 rows are within their bound of f64.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/decode/runtime.h"
#include "kerf/decode/traffic.h"
#include "kerf/numeric/e2m1.h"
#include "kerf/numeric/e4m3.h"
#include "kerf/numeric/exp.h"
#include "kerf/numeric/nvfp4.h"
#include "kerf/numeric/segment_tree.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

using checkpoint::ExpertViews;
using decode::Mode;

constexpr std::int64_t kExperts = 12;
constexpr std::int64_t kHidden = 256;
constexpr std::int64_t kTokens = 5;

// Layer 0 has NVFP4 experts, layer 1 BF16 ones.
const Synthetic& model_of_width(std::int64_t intermediate) {
  static std::map<std::int64_t, Synthetic> made;
  return made.try_emplace(intermediate, kExperts, kHidden, intermediate, std::vector<std::int64_t>{1}, 2)
      .first->second;
}

decode::LayerInputs inputs() {
  const decode::Inputs made =
      decode::make_inputs(9, 0, kTokens, checkpoint::ExpertKind::nvfp4, {kExperts, kHidden, 4});
  decode::LayerInputs in;
  in.rows_name = "x";
  in.routes_name = "topk_ids";
  in.tokens = kTokens;
  in.x = made.x;
  in.ids = made.ids;
  in.weights = made.weights;
  return in;
}

std::uint8_t byte_at(const tensor::TensorView& view, std::int64_t i) {
  return static_cast<std::uint8_t>(view.bytes[static_cast<std::size_t>(i)]);
}

// An NVFP4 matrix [rows, K] of the file.
struct Matrix {
  tensor::TensorView codes, scales;
  std::int64_t k;

  [[nodiscard]] std::uint8_t code(std::int64_t row, std::int64_t i) const {
    return static_cast<std::uint8_t>((byte_at(codes, row * k / 2 + i / 2) >> (4 * (i % 2))) & 15U);
  }
  [[nodiscard]] float scale(std::int64_t row, std::int64_t block) const {
    return numeric::e4m3_to_f32(byte_at(scales, row * k / 16 + block));
  }
  // With a quantised row; blocks [first, first + a_sf.size()) of K.
  [[nodiscard]] float dot(std::int64_t row, std::int64_t first, std::span<const std::uint8_t> a,
                          std::span<const std::uint8_t> a_sf) const {
    return numeric::canonical_dot(
        std::ssize(a_sf),
        [&](std::int64_t b) {
          float sum = 0;
          for (std::int64_t i = 0; i < 16; ++i) {
            const std::uint8_t byte = a[static_cast<std::size_t>(8 * b + i / 2)];
            const auto other = static_cast<std::uint8_t>((byte >> (4 * (i % 2))) & 15U);
            sum += numeric::e2m1_to_f32(code(row, 16 * (first + b) + i)) * numeric::e2m1_to_f32(other);
          }
          return sum;  // exact: a multiple of 1/4 below 2^10
        },
        [&](std::int64_t b) {
          return scale(row, first + b) * numeric::e4m3_to_f32(a_sf[static_cast<std::size_t>(b)]);
        });
  }
};

// One expert's row [H], of the intermediate indices [begin, end) alone, from the files as docs/numerics.md
// says.
std::vector<std::uint16_t> canonical_row(const checkpoint::MoeLayer& layer, std::int64_t expert,
                                         std::span<const std::uint16_t> x, std::int64_t intermediate,
                                         std::int64_t begin, std::int64_t end) {
  const FpGuard guard;
  checkpoint::Faults faults;
  const checkpoint::LayerScales s = layer.scales(faults);
  const auto e = static_cast<std::size_t>(expert);
  const ExpertViews v = layer.expert(expert);
  const Matrix gate{v.gate, v.gate_sf, kHidden};
  const Matrix up{v.up, v.up_sf, kHidden};
  const Matrix down{v.down, v.down_sf, intermediate};
  std::vector<std::uint8_t> a(kHidden / 2);
  std::vector<std::uint8_t> a_sf(kHidden / 16);
  numeric::quantise_rows(x, kHidden, 1.0F / s.in13, a, a_sf);
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
  for (std::int64_t first = begin; first < end; first += 16) {
    std::array<float, 16> h{};
    for (std::int64_t i = 0; i < 16; ++i) {
      const float g = gate.dot(first + i, 0, a, a_sf) * (s.in13 * s.ws2_gate[e]);
      const float u = up.dot(first + i, 0, a, a_sf) * (s.in13 * s.ws2_up[e] / s.in2);
      h[static_cast<std::size_t>(i)] = u * (g * numeric::sigmoid_f32(g));
    }
    const numeric::Nvfp4Block block = numeric::requantise_block(h);
    codes.insert(codes.end(), block.codes.begin(), block.codes.end());
    scales.push_back(block.scale);
  }
  std::vector<std::uint16_t> row;
  for (std::int64_t i = 0; i < kHidden; ++i)
    row.push_back(numeric::f32_to_bf16(s.in2 * s.ws2_down[e] * down.dot(i, begin / 16, codes, scales)));
  return row;
}

struct Case {
  std::int64_t intermediate;
  int ep, tp;
  layout::Fit fit;
  std::vector<std::int64_t> slices;  // after padding
};

// Runs the layer on the case's ranks, TP where they share experts.
decode::LayerResult run(const Case& c, std::int64_t layer, op::Input input = op::Input::nvfp4,
                        const std::string& backend = "cpu") {
  const checkpoint::Checkpoint from = model_of_width(c.intermediate).open();
  std::vector<decode::LayerResult> results(static_cast<std::size_t>(c.ep * c.tp));
  on_grid(c.ep, c.tp, [&](const decode::Rank& rank) {
    decode::LayerOptions options;
    options.layer = layer;
    options.mode = c.tp > 1 ? Mode::tp : Mode::ep;
    options.fit = c.fit;
    options.input = input;
    options.backend = backend;
    options.unfinalized = true;
    results[static_cast<std::size_t>(rank.group.rank())] = decode::run_layer(from, options, inputs(), rank);
  });
  for (const decode::LayerResult& r : results) EXPECT_EQ(r.y, results[0].y);
  return results[0];
}

TEST(Padded, W4a4RowsHaveTheBitsOfTheUnpaddedModel) {
  const layout::Fit pad{false, true};
  const layout::Fit both{true, true};
  const std::vector<Case> cases = {{96, 1, 1, pad, {128}},
                                   {80, 2, 1, pad, {128}},
                                   {208, 1, 1, pad, {256}},
                                   {96, 1, 2, pad, {64, 64}},
                                   {208, 1, 2, pad, {128, 128}},
                                   {208, 1, 3, both, {128, 64, 64}},
                                   {192, 1, 2, pad, {128, 128}},
                                   {208, 2, 2, pad, {128, 128}},
                                   {80, 1, 4, pad, {64, 64, 64, 64}},
                                   {192, 1, 2, {true, false}, {128, 64}}};
  for (const Case& c : cases)
    for (const std::string backend : {"cpu", "reference"}) {
      SCOPED_TRACE(fmt::format("{} on {} x {}, {}", c.intermediate, c.ep, c.tp, backend));
      const checkpoint::Checkpoint from = model_of_width(c.intermediate).open();
      const checkpoint::MoeLayer& layer = from.layer(0);
      const decode::LayerInputs in = inputs();
      const decode::LayerResult got = run(c, 0, op::Input::nvfp4, backend);
      std::int64_t compared = 0;
      for (std::size_t r = 0; r < got.ranks.size(); ++r) {
        const std::size_t part = r % static_cast<std::size_t>(c.tp);
        std::int64_t begin = 0;
        for (std::size_t p = 0; p < part; ++p) begin += c.slices[p];
        const std::int64_t end = std::min(begin + c.slices[part], c.intermediate);
        for (std::size_t route = 0; route < in.ids.size(); ++route) {
          const std::int32_t row = got.ranks[r].map[route];
          if (row < 0) continue;
          const auto x = std::span(in.x).subspan(route / 4 * kHidden, kHidden);
          const auto begins = got.ranks[r].rows.begin() + row * kHidden;
          const std::vector<std::uint16_t> have(begins, begins + kHidden);
          ASSERT_EQ(have, canonical_row(layer, in.ids[route], x, c.intermediate, begin, end))
              << "rank " << r << " route " << route;
          ++compared;
        }
      }
      EXPECT_EQ(compared, kTokens * 4 * c.tp);
    }
}

// Weights of the model as f64.
struct Dense {
  std::vector<double> gate, up, down;  // [I, H], [I, H], [H, I]
};

std::vector<double> bf16_matrix(const tensor::TensorView& view) {
  std::vector<double> out;
  for (std::size_t i = 0; i < view.bytes.size() / 2; ++i)
    out.push_back(numeric::bf16_to_f32(
        static_cast<std::uint16_t>(byte_at(view, static_cast<std::int64_t>(2 * i)) |
                                   byte_at(view, static_cast<std::int64_t>(2 * i + 1)) << 8)));
  return out;
}
std::vector<double> nvfp4_matrix(const tensor::TensorView& codes, const tensor::TensorView& scales,
                                 std::int64_t rows, std::int64_t k, float factor) {
  const Matrix m{codes, scales, k};
  std::vector<double> out;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < k; ++i)
      out.push_back(static_cast<double>(numeric::e2m1_to_f32(m.code(r, i))) * m.scale(r, i / 16) * factor);
  return out;
}
Dense dense(const checkpoint::MoeLayer& layer, std::int64_t expert, std::int64_t intermediate) {
  const ExpertViews v = layer.expert(expert);
  if (layer.kind() == checkpoint::ExpertKind::bf16)
    return {bf16_matrix(v.gate), bf16_matrix(v.up), bf16_matrix(v.down)};
  checkpoint::Faults faults;
  const checkpoint::LayerScales s = layer.scales(faults);
  const auto e = static_cast<std::size_t>(expert);
  return {nvfp4_matrix(v.gate, v.gate_sf, intermediate, kHidden, s.ws2_gate[e]),
          nvfp4_matrix(v.up, v.up_sf, intermediate, kHidden, s.ws2_up[e]),
          nvfp4_matrix(v.down, v.down_sf, kHidden, intermediate, s.ws2_down[e])};
}

// The bound of docs/numerics.md for rows whose intermediate is rounded to bf16: 17/16 * 2^-8 of the terms'
// magnitudes and of the row. It would not survive one column of down that met the wrong row of gate and up.
TEST(Padded, Bf16AndW4a16RowsAreNearTheUnpaddedModelInF64) {
  for (const std::int64_t intermediate : {96, 80, 208})
    for (const std::int64_t layer : {0, 1}) {
      SCOPED_TRACE(fmt::format("layer {} of width {}", layer, intermediate));
      const Case c{intermediate, 2, 1, {false, true}, {}};
      const checkpoint::Checkpoint from = model_of_width(intermediate).open();
      const decode::LayerInputs in = inputs();
      const decode::LayerResult got = run(c, layer, op::Input::bf16);
      int compared = 0;
      for (const decode::RankRows& rank : got.ranks)
        for (std::size_t route = 0; route < in.ids.size(); ++route) {
          if (rank.map[route] < 0) continue;
          const Dense w = dense(from.layer(layer), in.ids[route], intermediate);
          const auto x = std::span(in.x).subspan(route / 4 * kHidden, kHidden);
          std::vector<double> h;
          for (std::int64_t i = 0; i < intermediate; ++i) {
            double g = 0;
            double u = 0;
            for (std::int64_t k = 0; k < kHidden; ++k) {
              g += w.gate[static_cast<std::size_t>(i * kHidden + k)] *
                   numeric::bf16_to_f32(x[static_cast<std::size_t>(k)]);
              u += w.up[static_cast<std::size_t>(i * kHidden + k)] *
                   numeric::bf16_to_f32(x[static_cast<std::size_t>(k)]);
            }
            h.push_back(u * g / (1 + std::exp(-g)));
          }
          for (std::int64_t o = 0; o < kHidden; ++o) {
            double sum = 0;
            double magnitudes = 0;
            for (std::int64_t i = 0; i < intermediate; ++i) {
              const double term =
                  h[static_cast<std::size_t>(i)] * w.down[static_cast<std::size_t>(o * intermediate + i)];
              sum += term;
              magnitudes += std::abs(term);
            }
            const double have =
                numeric::bf16_to_f32(rank.rows[static_cast<std::size_t>(rank.map[route] * kHidden + o)]);
            ASSERT_LE(std::abs(have - sum), 17.0 / 16 / 256 * (magnitudes + std::abs(sum)))
                << route << " " << o;
          }
          ++compared;
        }
      EXPECT_EQ(compared, kTokens * 4);
    }
}

TEST(Padded, StockAndSlicesHaveTheWidthsThatReportsGive) {
  const checkpoint::Checkpoint from = model_of_width(208).open();
  on_grid(1, 2, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.expert_tp = true;
    options.build.fit.pad = true;
    const auto runtime = decode::Runtime::build(from, options, rank);
    EXPECT_EQ(runtime.layers()[0].ep->shape().intermediate, 256);
    EXPECT_EQ(runtime.layers()[0].tp->shape().intermediate, 128);
    EXPECT_EQ(runtime.layers()[1].ep->shape().intermediate, 256);
    EXPECT_LT(runtime.sharding()->max_rel_l2, decode::probe_limit);
    const std::vector<std::int32_t> ids = {0, 1, 7};
    EXPECT_EQ(decode::busiest_rank_bytes(runtime.layers()[0], Mode::ep, ids, rank),
              2 * 256 * (3 * kHidden / 2 * 9 / 8));
  });
}

TEST(Padded, IsRefusedWithoutLeaveAndSaysWhatWouldHelp) {
  for (const auto& [intermediate, width] : {std::pair{96, "128"}, {80, "128"}, {208, "256"}}) {
    const checkpoint::Checkpoint from = model_of_width(intermediate).open();
    const auto verdicts =
        thrown_on({2, 1, {}}, [&](const decode::Rank& rank) { (void)decode::build(from, {}, rank); });
    expect_all_refuse(verdicts, ErrorKind::unsupported,
                      {"layer 0", fmt::format("intermediate {} is not a multiple of 64", intermediate),
                       fmt::format("--pad would add zeros up to {}", width)});
  }
}

}  // namespace
}  // namespace kerf::test
