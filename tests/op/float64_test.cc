// W4A4 against f64, with a bound that is derived and not tuned.
//
// The dots: every product is exact; a term passes at most 4 fma of its chain, 3 adds of the segment and one
// add a level of the tree, so a dot is off by at most (7 + levels) * 2^-24 times its sum of magnitudes. The
// activation h = u * (g * sigmoid(g)): errors of u and g enter with slopes |g sigmoid(g)| and at most 1.1
// |u|; E, the division and the products add below 8 + |g| roundings. Requantisation is a step function: where
// f64's value cannot be told from a boundary with that error, the block may differ by one step (a code by 2
// block scales at most; a block scale by an eighth, which moves a code by one step too). Such blocks are rare
// (asserted), and their steps are added to the bound. Everywhere else the codes must be f64's.
#include <gtest/gtest.h>

#include <cmath>

#include "kerf/layout/rows.h"
#include "kerf/numeric/bf16.h"
#include "kerf/numeric/nvfp4.h"
#include "kerf/op/op.h"
#include "tests/support/experts.h"

namespace kerf::op {
namespace {

constexpr double kUnit = 0x1p-24;
constexpr layout::ExpertsShape kShape{2, 1152, 320};

struct Exact {
  double value = 0;
  double error = 0;
};

double code_value(std::uint8_t byte, std::int64_t k) {
  return numeric::e2m1_to_f32(static_cast<std::uint8_t>(k % 2 == 0 ? byte & 15U : byte >> 4));
}

// A matrix of the converted layout in f64.
struct Matrix {
  std::span<const std::uint8_t> codes;
  std::span<const std::uint8_t> scales;
  std::int64_t k;

  [[nodiscard]] double at(std::int64_t row, std::int64_t i) const {
    const auto offset = static_cast<std::size_t>(layout::scale_offset_128x4(row, i / 16, k / 16));
    return code_value(codes[static_cast<std::size_t>(row * k / 2 + i / 2)], i) *
           numeric::e4m3_to_f32(scales[offset]);
  }
};

double dot_error(double magnitudes, std::int64_t k) {
  const double levels = std::ceil(std::log2(std::max(1.0, std::ceil(static_cast<double>(k) / 512))));
  return (7 + levels) * kUnit * magnitudes;
}

Exact dot(const Matrix& w, std::int64_t row, const std::vector<double>& x) {
  Exact out;
  double magnitudes = 0;
  for (std::int64_t i = 0; i < w.k; ++i) {
    const double term = w.at(row, i) * x[static_cast<std::size_t>(i)];
    out.value += term;
    magnitudes += std::abs(term);
  }
  out.error = dot_error(magnitudes, w.k);
  return out;
}

Exact activated(const Exact& up, const Exact& gate, double gate_scale, double up_scale) {
  const double g = gate.value * gate_scale;
  const double u = up.value * up_scale;
  const double silu = g / (1 + std::exp(-g));
  Exact h;
  h.value = u * silu;
  h.error = up.error * up_scale * std::abs(silu) + 1.1 * std::abs(u) * gate.error * gate_scale +
            (8 + std::abs(g)) * kUnit * std::abs(h.value);
  return h;
}

struct Quantised {
  std::vector<double> value;  // f64's choice
  std::vector<double> slack;  // how far another choice may be
  int unsure = 0;
};

Quantised requantise(const std::vector<Exact>& h) {
  Quantised out;
  for (std::size_t b = 0; b < h.size(); b += 16) {
    double largest = 0;
    double error = 0;
    for (std::size_t i = b; i < b + 16; ++i) {
      largest = std::max(largest, std::abs(h[i].value));
      error = std::max(error, h[i].error);
    }
    const auto scale_of = [](double a) { return numeric::f32_to_e4m3(static_cast<float>(a / 6)); };
    error += 4 * kUnit * largest;
    const bool scale_unsure = scale_of(largest - error) != scale_of(largest + error);
    const double scale = numeric::e4m3_to_f32(scale_of(largest));
    bool block_unsure = scale_unsure;
    for (std::size_t i = b; i < b + 16; ++i) {
      const auto code_of = [&](double v) {
        return scale == 0 ? 0 : numeric::f32_to_e2m1(static_cast<float>(v / scale)) & 15;
      };
      const double wide = h[i].error + 4 * kUnit * std::abs(h[i].value);
      const bool unsure = code_of(h[i].value - wide) != code_of(h[i].value + wide);
      block_unsure |= unsure;
      out.value.push_back(numeric::e2m1_to_f32(static_cast<std::uint8_t>(code_of(h[i].value))) * scale);
      out.slack.push_back(scale_unsure ? 3 * scale : unsure ? 2 * scale : 0);
    }
    out.unsure += block_unsure ? 1 : 0;
  }
  return out;
}

TEST(Float64, EveryBackendIsWithinTheDerivedBound) {
  tensor::HostMemory memory;
  const auto experts = test::random_nvfp4(memory, kShape, 0, 101);
  const auto step = test::random_step(4, 2, 2, kShape.hidden, 102);
  const auto [n, hidden, inter] = kShape;
  int blocks = 0;
  int unsure = 0;
  for (const std::string& name : backend_names()) {
    const auto got =
        test::run_op(*backend(name).bind(Nvfp4Args{experts.view(), 2, 2, Input::nvfp4, {}}), step);
    for (std::int64_t r = 0; r < 8; ++r) {
      const auto e = static_cast<std::size_t>(step.ids[static_cast<std::size_t>(r)]);
      const auto part = [&](const tensor::Tensor& t) {
        const auto all = t.as<std::uint8_t>();
        return std::span<const std::uint8_t>(all).subspan(e * all.size() / 2, all.size() / 2);
      };
      const Matrix w13{part(experts.w13), part(experts.w13_sf), hidden};
      const Matrix w2{part(experts.w2), part(experts.w2_sf), inter};
      std::vector<double> x;
      for (std::int64_t k = 0; k < hidden; ++k) {
        const std::int64_t at = (r / 2) * hidden + k;
        x.push_back(code_value(step.a[static_cast<std::size_t>(at / 2)], k) *
                    numeric::e4m3_to_f32(step.a_sf[static_cast<std::size_t>(at / 16)]));
      }
      std::vector<Exact> h;
      for (std::int64_t i = 0; i < inter; ++i)
        h.push_back(activated(dot(w13, layout::w13_converted(layout::Half::up, i), x),
                              dot(w13, layout::w13_converted(layout::Half::gate, i), x),
                              experts.g1_alphas.as<float>()[e], experts.g1_scale_c.as<float>()[e]));
      const Quantised q = requantise(h);
      blocks += static_cast<int>(inter / 16);
      unsure += q.unsure;
      const double g2 = experts.g2_alphas.as<float>()[e];
      for (std::int64_t o = 0; o < hidden; ++o) {
        const std::int64_t row = layout::w2_converted(o);
        const Exact y = dot(w2, row, q.value);
        double slack = y.error;
        for (std::int64_t i = 0; i < inter; ++i)
          slack += std::abs(w2.at(row, i)) * q.slack[static_cast<std::size_t>(i)];
        const double want = y.value * g2;
        ASSERT_NEAR(numeric::bf16_to_f32(got.rows[static_cast<std::size_t>(r * hidden + o)]), want,
                    slack * g2 + (0x1p-8 + 2 * kUnit) * (std::abs(want) + slack * g2))
            << name << " route " << r << " output " << o;
      }
    }
  }
  EXPECT_LE(unsure * 20, blocks) << "too many blocks sit on a boundary for the bound to mean anything";
}

}  // namespace
}  // namespace kerf::op
