// Router, projections and norm as the library call makes them, from formulas written out: bit for bit.
#include "kerf/block/block.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tests/support/experts.h"
#include "tests/tail/plain.h"

namespace kerf::test {
namespace {

constexpr std::int64_t E = 8;
constexpr std::int64_t D = 320;  // the model's width
constexpr std::int64_t H = 128;  // the experts'

std::vector<std::uint16_t> random_bf16_values(std::int64_t n, float size, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::uint16_t> out;
  for (std::int64_t i = 0; i < n; ++i) out.push_back(bf16(size * random.normal()));
  return out;
}

struct Model {
  std::vector<float> gate;
  std::vector<float> bias;
  std::vector<std::uint16_t> pre = random_bf16_values(H * D, 0.06F, 2);
  std::vector<std::uint16_t> offsets = random_bf16_values(H, 0.2F, 3);
  std::vector<std::uint16_t> post = random_bf16_values(D * H, 0.09F, 4);

  Model() {
    Random random(1);
    for (std::int64_t i = 0; i < E * D; ++i) gate.push_back(0.3F * random.normal());
    for (std::int64_t i = 0; i < E; ++i) bias.push_back(0.1F * random.normal());
  }
  [[nodiscard]] block::Weights weights(float eps = 1e-5F) const {
    block::Weights w;
    w.gate = {E, D, std::span<const float>(gate)};
    w.router = routing::muse_spark_router(E, 2);
    w.bias = bias;
    w.pool = block::Pool{{H, D, std::span<const std::uint16_t>(pre)},
                         {tail::effective_gain(offsets, 1.0F), false, eps},
                         {D, H, std::span<const std::uint16_t>(post)}};
    return w;
  }
};

float plain_dot(const std::vector<float>& w, std::span<const std::uint16_t> x) {
  std::vector<float> p(256, 0.0F);
  for (std::size_t h = 0; h < w.size(); ++h) p[h % 256] = std::fmaf(w[h], f32(x[h]), p[h % 256]);
  while (p.size() > 1) {
    std::vector<float> half(p.size() / 2);
    for (std::size_t m = 0; m < half.size(); ++m) half[m] = p[m] + p[m + half.size()];
    p = half;
  }
  return p[0];
}

// Row n of a [., k] matrix.
std::vector<float> row_of(const std::vector<std::uint16_t>& m, std::int64_t n, std::int64_t k) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < k; ++i) out.push_back(f32(m[static_cast<std::size_t>(n * k + i)]));
  return out;
}

TEST(Block, EnterHasTheBitsOfThePlainFormulas) {
  const Model model;
  tensor::HostMemory memory;
  // Rows of about 1, and of about 2^-9, where eps decides.
  for (const float size : {1.0F, 0x1p-9F}) {
    for (const float eps : {1e-5F, 1e-8F}) {
      for (const std::int64_t tokens : {0, 1, 3, 8}) {
        const block::Weights w = model.weights(eps);
        ASSERT_FALSE(block::unsupported(w));
        const block::Scratch scratch(memory, w, 8, 2);
        const std::vector<std::uint16_t> x = random_bf16_values(tokens * D, size, 5);
        const block::Entered in = block::enter(w, tokens, x, Workers(2), scratch);
        ASSERT_EQ(in.logits.size(), static_cast<std::size_t>(tokens * E));
        ASSERT_EQ(in.rows.size(), static_cast<std::size_t>(tokens * H));
        for (std::int64_t t = 0; t < tokens; ++t) {
          const auto row = std::span(x).subspan(static_cast<std::size_t>(t * D), D);
          for (std::int64_t e = 0; e < E; ++e) {
            const std::vector<float> g(model.gate.begin() + e * D, model.gate.begin() + (e + 1) * D);
            EXPECT_EQ(in.logits[static_cast<std::size_t>(t * E + e)], plain_dot(g, row));
          }
          std::vector<std::uint16_t> pooled;
          for (std::int64_t h = 0; h < H; ++h)
            pooled.push_back(bf16(plain_dot(row_of(model.pre, h, D), row)));
          const std::vector<float> normed = plain_norm(pooled, w.pool->norm);
          for (std::int64_t h = 0; h < H; ++h)
            EXPECT_EQ(in.rows[static_cast<std::size_t>(t * H + h)], bf16(normed[static_cast<std::size_t>(h)]))
                << t << ", " << h << ", eps " << eps;
        }
      }
    }
  }
  EXPECT_EQ(memory.current(), 0);
}

TEST(Block, LeaveProjectsBack) {
  const Model model;
  const block::Weights w = model.weights();
  tensor::HostMemory memory;
  const block::Scratch scratch(memory, w, 3, 1);
  const std::vector<std::uint16_t> m = random_bf16_values(3 * H, 1.0F, 6);
  const auto out = block::leave(w, 3, m, Workers(1), scratch);
  ASSERT_EQ(out.size(), 3U * D);
  for (std::int64_t t = 0; t < 3; ++t)
    for (std::int64_t d = 0; d < D; ++d)
      EXPECT_EQ(out[static_cast<std::size_t>(t * D + d)],
                bf16(plain_dot(row_of(model.post, d, H),
                               std::span(m).subspan(static_cast<std::size_t>(t * H), H))));
}

TEST(Block, WithoutAPoolRowsPassThrough) {
  const Model model;
  block::Weights w = model.weights();
  w.pool.reset();
  w.router = {.experts = E, .top_k = 2};
  w.bias = {};
  EXPECT_EQ(w.hidden(), D);
  EXPECT_EQ(w.bytes(), E * D * 4);
  tensor::HostMemory memory;
  const block::Scratch scratch(memory, w, 3, 1);
  EXPECT_EQ(memory.current(), 3 * E * 4);  // logits alone
  const std::vector<std::uint16_t> x = random_bf16_values(3 * D, 1.0F, 7);
  const block::Entered in = block::enter(w, 3, x, Workers(1), scratch);
  EXPECT_EQ(in.rows.data(), x.data());
  EXPECT_EQ(in.rows.size(), x.size());
  EXPECT_EQ(in.logits[E],
            plain_dot({model.gate.begin(), model.gate.begin() + D}, std::span(x).subspan(D, D)));
  EXPECT_EQ(block::leave(w, 3, x, Workers(1), scratch).data(), x.data());
}

TEST(Block, SizesThatDoNotFitAreRefused) {
  const Model model;
  const block::Weights good = model.weights();
  const auto why = [&](auto spoil) {
    block::Weights w = good;
    spoil(w);
    const Verdict v = block::unsupported(w);
    return v ? v->text : std::string();
  };
  EXPECT_EQ(why([](block::Weights&) {}), "");
  EXPECT_NE(why([](block::Weights& w) { w.router.experts = 9; }), "");
  EXPECT_NE(why([](block::Weights& w) { w.bias = w.bias.first(7); }), "");
  EXPECT_NE(why([](block::Weights& w) { w.pool->post.rows = 128; }), "");
  EXPECT_NE(why([](block::Weights& w) { w.pool->post.columns = 64; }), "");
  EXPECT_NE(why([](block::Weights& w) { w.pool->pre.columns = 64; }), "");
  EXPECT_NE(why([](block::Weights& w) { w.pool->norm.gain = std::vector<std::uint16_t>(H - 1); }), "");
  tensor::HostMemory memory;
  const block::Scratch small(memory, good, 2, 1);
  const std::vector<std::uint16_t> x(3 * D);
  const Verdict v = attempt([&] { (void)block::enter(good, 3, x, Workers(1), small); });
  ASSERT_TRUE(v);
  EXPECT_NE(v->text.find("scratch logits"), std::string::npos) << v->text;
}

}  // namespace
}  // namespace kerf::test
