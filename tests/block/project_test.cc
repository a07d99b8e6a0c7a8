// The projections' one order of sums: every instruction set against the order written out, and float64.
#include "kerf/block/project.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kerf/base/error.h"
#include "kerf/block/internal/kernels.h"
#include "kerf/numeric/bf16.h"
#include "tests/support/experts.h"
#include "tests/support/flushing.h"

namespace kerf::test {
namespace {

using block::Matrix;
using block::internal::Kernels;

std::vector<const Kernels*> all_kernels() {
  std::vector<const Kernels*> out = {&block::internal::scalar_kernels()};
  for (const Kernels* k : block::internal::vector_kernels()) out.push_back(k);
  return out;
}

std::vector<float> normals(std::size_t n, Random& random) {
  std::vector<float> out(n);
  for (float& v : out) v = random.normal();
  return out;
}
std::vector<std::uint16_t> rounded(const std::vector<float>& values) {
  std::vector<std::uint16_t> out;
  for (const float v : values) out.push_back(numeric::f32_to_bf16(v));
  return out;
}
std::vector<float> widened_values(const std::vector<std::uint16_t>& bits) {
  std::vector<float> out;
  for (const std::uint16_t b : bits) out.push_back(numeric::bf16_to_f32(b));
  return out;
}

// One partial at a time, then halves folded onto each other until one is left.
float plain_dot(const float* w, const float* x, std::size_t k) {
  std::vector<float> p;
  for (std::size_t m = 0; m < 256; ++m) {
    float sum = 0.0F;
    for (std::size_t h = m; h < k; h += 256) sum = std::fmaf(w[h], x[h], sum);
    p.push_back(sum);
  }
  while (p.size() > 1) {
    std::vector<float> folded;
    for (std::size_t m = 0; m < p.size() / 2; ++m) folded.push_back(p[m] + p[m + p.size() / 2]);
    p = folded;
  }
  return p[0];
}

std::uint32_t bits(float v) { return std::bit_cast<std::uint32_t>(v); }

TEST(Project, EveryKernelHasTheBitsOfThePlainOrder) {
  Random random(7);
  for (const std::size_t k : {1, 7, 16, 255, 256, 257, 512, 640, 1000, 2048, 4096}) {
    const std::vector<float> w = normals(k, random);
    const std::vector<std::uint16_t> w16 = rounded(w);
    const std::vector<float> w16_values = widened_values(w16);
    std::vector<std::vector<std::uint16_t>> x;
    std::vector<std::vector<float>> x_values;
    std::vector<const std::uint16_t*> rows;
    for (int t = 0; t < 4; ++t) {
      std::vector<float> row = normals(k, random);
      // Rows of all magnitudes, down to where products are subnormal.
      for (float& v : row) v = std::ldexp(v, t == 3 ? -130 : 10 * t);
      x.push_back(rounded(row));
      x_values.push_back(widened_values(x.back()));
    }
    for (const auto& row : x) rows.push_back(row.data());
    for (const Kernels* kernels : all_kernels()) {
      for (int count = 1; count <= 4; ++count) {
        std::vector<float> f32(4, -1.0F);
        std::vector<float> bf16(4, -1.0F);
        kernels->dots_f32(w.data(), static_cast<std::int64_t>(k), rows.data(), count, f32.data());
        kernels->dots_bf16(w16.data(), static_cast<std::int64_t>(k), rows.data(), count, bf16.data());
        for (std::size_t t = 0; t < 4; ++t) {
          const bool there = t < static_cast<std::size_t>(count);
          EXPECT_EQ(bits(f32[t]), bits(there ? plain_dot(w.data(), x_values[t].data(), k) : -1.0F))
              << kernels->isa << ", " << k << " values, token " << t << " of " << count;
          EXPECT_EQ(bits(bf16[t]), bits(there ? plain_dot(w16_values.data(), x_values[t].data(), k) : -1.0F))
              << kernels->isa << ", " << k << " values, token " << t << " of " << count;
        }
      }
    }
  }
}

// A dot of 16 and more values is summed in some other order by a naive loop: bits would tell.
TEST(Project, OrdersDiffer) {
  Random random(3);
  const std::vector<float> w = normals(2048, random);
  const std::vector<float> x = normals(2048, random);
  float naive = 0.0F;
  for (std::size_t h = 0; h < w.size(); ++h) naive = std::fmaf(w[h], x[h], naive);
  EXPECT_NE(bits(naive), bits(plain_dot(w.data(), x.data(), w.size())));
}

struct Case {
  Matrix weight;
  std::vector<float> w;
  std::vector<std::uint16_t> w16;
};

// A [n, k] weight of each dtype.
Case f32_case(std::int64_t n, std::int64_t k, std::uint64_t seed) {
  Random random(seed);
  Case out;
  out.w = normals(static_cast<std::size_t>(n * k), random);
  out.weight = {n, k, std::span<const float>(out.w)};
  return out;
}
Case bf16_case(std::int64_t n, std::int64_t k, std::uint64_t seed) {
  Case out = f32_case(n, k, seed);
  out.w16 = rounded(out.w);
  out.w = widened_values(out.w16);
  out.weight = {n, k, std::span<const std::uint16_t>(out.w16)};
  return out;
}

TEST(Project, TokensThreadsAndPlacesInTheStepDoNotMatter) {
  constexpr std::int64_t n = 70;
  constexpr std::int64_t k = 600;
  constexpr std::int64_t tokens = 9;
  Random random(11);
  const std::vector<std::uint16_t> x = rounded(normals(tokens * k, random));
  for (const Case& c : {f32_case(n, k, 1), bf16_case(n, k, 2)}) {
    std::vector<float> wanted;
    const std::vector<float> values = widened_values(x);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t row = 0; row < n; ++row)
        wanted.push_back(plain_dot(c.w.data() + row * k, values.data() + t * k, k));
    for (const int threads : {1, 2, 5}) {
      const Workers workers(threads);
      std::vector<float> all(tokens * n);
      block::project(c.weight, tokens, x, workers, std::span(all));
      EXPECT_EQ(0, std::memcmp(all.data(), wanted.data(), 4 * all.size())) << threads;
      std::vector<std::uint16_t> half(tokens * n);
      block::project(c.weight, tokens, x, workers, std::span(half));
      EXPECT_EQ(half, rounded(wanted)) << threads;
      for (std::int64_t t = 0; t < tokens; ++t) {  // alone
        std::vector<float> one(n);
        block::project(c.weight, 1, std::span(x).subspan(static_cast<std::size_t>(t * k), k), workers,
                       std::span(one));
        EXPECT_EQ(0, std::memcmp(one.data(), wanted.data() + t * n, 4 * n)) << t;
      }
    }
  }
}

// A value meets k / 256 fma in its partial and 8 additions while halving, each of which rounds by at most
// 2^-24 of what is then there: at most the sum of all magnitudes.
TEST(Project, IsNearFloat64) {
  constexpr std::int64_t n = 64;
  constexpr std::int64_t k = 2000;
  const Case c = f32_case(n, k, 5);
  Random random(6);
  const std::vector<std::uint16_t> x = rounded(normals(k, random));
  std::vector<float> out(n);
  block::project(c.weight, 1, x, Workers(1), std::span(out));
  for (std::int64_t row = 0; row < n; ++row) {
    double sum = 0;
    double magnitudes = 0;
    for (std::int64_t h = 0; h < k; ++h) {
      const double term = static_cast<double>(c.w[static_cast<std::size_t>(row * k + h)]) *
                          numeric::bf16_to_f32(x[static_cast<std::size_t>(h)]);
      sum += term;
      magnitudes += std::fabs(term);
    }
    EXPECT_NEAR(out[static_cast<std::size_t>(row)], sum, (k / 256.0 + 9) * 0x1p-24 * magnitudes) << row;
  }
}

TEST(Project, NanIsTheOneNanAndStaysInItsToken) {
  const Case c = bf16_case(3, 300, 8);
  Random random(9);
  std::vector<std::uint16_t> x = rounded(normals(600, random));
  std::vector<float> clean(6);
  block::project(c.weight, 2, x, Workers(1), std::span(clean));
  x[7] = 0xFFC1;
  std::vector<float> out(6);
  block::project(c.weight, 2, x, Workers(1), std::span(out));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(bits(out[i]), bits(std::numeric_limits<float>::quiet_NaN()));
    EXPECT_EQ(bits(out[3 + i]), bits(clean[3 + i]));
  }
  std::vector<std::uint16_t> half(6);
  block::project(c.weight, 2, x, Workers(1), std::span(half));
  EXPECT_EQ(half[0], numeric::bf16_nan);
}

TEST(Project, KeepsSubnormalsWhereTheCallerFlushes) {
  const Case c = bf16_case(5, 300, 8);
  Random random(10);
  std::vector<float> tiny = normals(300, random);
  for (float& v : tiny) v *= 0x1p-130F;
  const std::vector<std::uint16_t> x = rounded(tiny);
  std::vector<float> wanted(5);
  for (std::size_t row = 0; row < 5; ++row)
    wanted[row] = plain_dot(c.w.data() + row * 300, widened_values(x).data(), 300);
  EXPECT_NE(wanted[0], 0.0F);
  for (const int threads : {1, 3}) {
    const Workers workers(threads);
    std::vector<float> out(5);
    {
      const Flushing mode;
      block::project(c.weight, 1, x, workers, std::span(out));
      EXPECT_TRUE(Flushing::now());
    }
    EXPECT_EQ(0, std::memcmp(out.data(), wanted.data(), 4 * out.size())) << threads;
  }
}

TEST(Project, SizesThatDoNotFitAreBugs) {
  const Case c = bf16_case(3, 300, 8);
  const std::vector<std::uint16_t> x(600);
  std::vector<float> out(6);
  const auto refused = [&](std::int64_t tokens, std::size_t in, std::size_t to) {
    const Verdict v = attempt([&] {
      block::project(c.weight, tokens, std::span(x).first(in), Workers(1), std::span(out).first(to));
    });
    return v.has_value() && v->kind == ErrorKind::bug;
  };
  EXPECT_FALSE(refused(2, 600, 6));
  EXPECT_FALSE(refused(0, 0, 0));
  EXPECT_TRUE(refused(1, 600, 3));
  EXPECT_TRUE(refused(2, 600, 5));
  EXPECT_TRUE(refused(-1, 0, 0));
}

}  // namespace
}  // namespace kerf::test
