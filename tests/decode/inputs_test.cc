#include "kerf/decode/inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "kerf/base/error.h"
#include "kerf/decode/sha256.h"
#include "kerf/numeric/bf16.h"

namespace kerf::decode {
namespace {

using checkpoint::ExpertKind;

std::string digest(const Inputs& in) {
  Sha256 sha;
  sha.update(std::as_bytes(std::span(in.x)));
  sha.update(std::as_bytes(std::span(in.ids)));
  sha.update(std::as_bytes(std::span(in.weights)));
  sha.update(std::as_bytes(std::span(in.logits)));
  return sha.hex();
}

// Two builds on different machines must agree on these: a change here changes every published output digest.
TEST(Inputs, AreThoseOfEveryBuild) {
  EXPECT_EQ(digest(make_inputs(1, 0, 8, ExpertKind::nvfp4, {64, 256, 8})),
            "0146beb51649898c7f3646d0988b4bf38b4e44ace34af2061f0d583a7a82119c");
  EXPECT_EQ(digest(make_inputs(1, 0, 8, ExpertKind::bf16, {64, 256, 8})),
            "c3662e2867aacaf6cfc441fe3fabaccd0db0bc410983256786c6b08218facb8e");
}

TEST(Inputs, DependOnSeedLayerAndTokensAlone) {
  const InputShape shape{16, 64, 4};
  const std::string first = digest(make_inputs(7, 3, 5, ExpertKind::nvfp4, shape));
  EXPECT_EQ(first, digest(make_inputs(7, 3, 5, ExpertKind::nvfp4, shape)));
  EXPECT_NE(first, digest(make_inputs(8, 3, 5, ExpertKind::nvfp4, shape)));
  EXPECT_NE(first, digest(make_inputs(7, 4, 5, ExpertKind::nvfp4, shape)));
  EXPECT_NE(digest(make_inputs(7, 3, 4, ExpertKind::nvfp4, shape)), first);
}

TEST(Inputs, RowsAreBf16OfTheBellOverItsDeviation) {
  const Inputs in = make_inputs(11, 2, 64, ExpertKind::nvfp4, {8, 1024, 2});
  ASSERT_EQ(in.x.size(), 64U * 1024U);
  double sum = 0;
  double squares = 0;
  for (const std::uint16_t bits : in.x) {
    const double v = numeric::bf16_to_f32(bits);
    ASSERT_LE(std::fabs(v), 3.47);  // 131070 / 37837 = 3.464, rounded to bf16
    sum += v;
    squares += v * v;
  }
  const double n = static_cast<double>(in.x.size());
  // Mean of n unit-variance values: 5 deviations. Variance: the bell's kurtosis is 2.7, deviation sqrt(1.7 /
  // n).
  EXPECT_LT(std::fabs(sum / n), 5 / std::sqrt(n));
  EXPECT_LT(std::fabs(squares / n - 1), 5 * std::sqrt(1.7 / n) + 1e-5);
}

TEST(Inputs, RowsAloneAreThoseOfTheirWidth) {
  EXPECT_EQ(decode::make_rows(7, 3, 5, 64), make_inputs(7, 3, 5, ExpertKind::nvfp4, {16, 64, 4}).x);
  EXPECT_EQ(decode::make_rows(7, 3, 5, 96).size(), 5U * 96U);
  EXPECT_TRUE(decode::make_rows(7, 3, 0, 96).empty());
}

TEST(Inputs, ExpertsOfATokenAreDistinctAndAllAreReached) {
  const Inputs in = make_inputs(3, 0, 200, ExpertKind::nvfp4, {12, 64, 5});
  std::set<std::int32_t> seen;
  for (std::size_t t = 0; t < 200; ++t) {
    const std::set<std::int32_t> token(in.ids.begin() + static_cast<std::ptrdiff_t>(5 * t),
                                       in.ids.begin() + static_cast<std::ptrdiff_t>(5 * t + 5));
    EXPECT_EQ(token.size(), 5U);
    EXPECT_GE(*token.begin(), 0);
    EXPECT_LT(*token.rbegin(), 12);
    seen.insert(token.begin(), token.end());
  }
  EXPECT_EQ(seen.size(), 12U);
  EXPECT_TRUE(in.logits.empty());
}

TEST(Inputs, TopKOfAllExpertsIsAPermutation) {
  const Inputs in = make_inputs(3, 0, 3, ExpertKind::nvfp4, {6, 64, 6});
  for (std::size_t t = 0; t < 3; ++t) {
    std::vector<std::int32_t> token(in.ids.begin() + static_cast<std::ptrdiff_t>(6 * t),
                                    in.ids.begin() + static_cast<std::ptrdiff_t>(6 * t + 6));
    std::sort(token.begin(), token.end());
    EXPECT_EQ(token, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5}));
  }
}

TEST(Inputs, WeightsOfATokenArePositiveAndSumToOne) {
  const Inputs in = make_inputs(5, 1, 100, ExpertKind::nvfp4, {64, 64, 8});
  for (std::size_t t = 0; t < 100; ++t) {
    double sum = 0;
    for (std::size_t k = 0; k < 8; ++k) {
      EXPECT_GT(in.weights[8 * t + k], 0.0F);
      sum += in.weights[8 * t + k];
    }
    EXPECT_NEAR(sum, 1.0, 8 * 0x1p-24);  // each of eight quotients below 1 rounds once, at most half of 2^-24
  }
}

TEST(Inputs, LogitsAreIntegersOver256) {
  const Inputs in = make_inputs(5, 1, 100, ExpertKind::bf16, {64, 64, 8});
  EXPECT_TRUE(in.ids.empty());
  EXPECT_TRUE(in.weights.empty());
  ASSERT_EQ(in.logits.size(), 6400U);
  for (const float v : in.logits) {
    EXPECT_EQ(v * 256.0F, std::nearbyint(v * 256.0F));
    EXPECT_GE(v, -4.0F);
    EXPECT_LT(v, 4.0F);
  }
}

TEST(Inputs, NoTokensMakeNoValues) {
  const Inputs in = make_inputs(1, 0, 0, ExpertKind::nvfp4, {4, 64, 2});
  EXPECT_TRUE(in.x.empty());
  EXPECT_TRUE(in.ids.empty());
}

TEST(Inputs, RefusesMoreExpertsATokenThanThereAre) {
  EXPECT_THROW(make_inputs(1, 0, 1, ExpertKind::nvfp4, {4, 64, 5}), Error);
}

// The layout of the probe's routes where 64 routes meet 256 experts, written out.
TEST(SpreadRoutes, FollowsTheStrideWhereItDivides) {
  const std::vector<std::int32_t> ids = spread_routes(8, 8, 256);
  for (std::int32_t r = 0; r < 64; ++r) EXPECT_EQ(ids[static_cast<std::size_t>(r)], r * 4 + (r / 8) % 4);
}

TEST(SpreadRoutes, WrapsWhereThereAreFewerExperts) {
  const std::vector<std::int32_t> ids = spread_routes(3, 2, 4);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{0, 1, 2, 3, 0, 1}));
}

TEST(SpreadRoutes, EveryRankServesSomeAndATokensExpertsAreDistinct) {
  for (const std::int64_t experts : {4, 16, 60, 64, 100, 160, 255, 256, 384}) {
    for (const std::int64_t top_k : {1, 2, 4, 8}) {
      for (const std::int64_t ranks : {1, 2, 4, 5, 8, 16, 20}) {
        if (experts % ranks != 0 || top_k > experts) continue;
        const std::int64_t tokens = (2 * ranks + top_k - 1) / top_k;
        const std::vector<std::int32_t> ids = spread_routes(tokens, top_k, experts);
        std::set<std::int64_t> served;
        for (const std::int32_t id : ids) {
          ASSERT_GE(id, 0);
          ASSERT_LT(id, experts);
          served.insert(id / (experts / ranks));
        }
        EXPECT_EQ(static_cast<std::int64_t>(served.size()), ranks) << experts << " " << top_k << " " << ranks;
        for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
          const auto first = ids.begin() + static_cast<std::ptrdiff_t>(t * static_cast<std::size_t>(top_k));
          EXPECT_EQ(std::set<std::int32_t>(first, first + top_k).size(), static_cast<std::size_t>(top_k));
        }
      }
    }
  }
}

TEST(UnitRows, HaveUnitRms) {
  const std::vector<std::uint16_t> x = unit_rows(20261023, 8, 512);
  for (std::size_t t = 0; t < 8; ++t) {
    double squares = 0;
    for (std::size_t h = 0; h < 512; ++h) {
      const double v = numeric::bf16_to_f32(x[t * 512 + h]);
      squares += v * v;
    }
    EXPECT_NEAR(std::sqrt(squares / 512), 1.0, 0x1p-8);  // bf16: every value is within 2^-8 of its exact one
  }
}

}  // namespace
}  // namespace kerf::decode
