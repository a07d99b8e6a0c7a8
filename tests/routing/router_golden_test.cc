// Every recorded selection: ids, weights in float64 within a derived bound, weights rounded to bf16 bit for
// bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kerf/numeric/bf16.h"
#include "kerf/routing/router.h"
#include "tests/support/npy.h"

namespace kerf::routing {
namespace {

constexpr double u = 0x1p-24;  // one f32 rounding, relative

std::vector<float> floats(const std::string& name, const std::string& dtype) {
  if (dtype == "fp32") return test::golden<float>(name);
  std::vector<float> out;
  for (const std::uint16_t bits : test::golden<std::uint16_t>(name))
    out.push_back(numeric::bf16_to_f32(bits));
  return out;
}

// The bf16 nearest to a double, ties to even, in one rounding.
std::uint16_t bf16_of(double value) {
  const std::uint16_t guess = numeric::f32_to_bf16(static_cast<float>(value));
  const auto distance = [&](int b) {
    return std::abs(static_cast<double>(numeric::bf16_to_f32(static_cast<std::uint16_t>(b))) - value);
  };
  int best = guess;
  for (const int other : {guess - 1, guess + 1}) {
    if (other < 0 || other > 0xFFFF) continue;
    const double d = distance(other);
    if (d < distance(best) || (d == distance(best) && other % 2 == 0)) best = other;
  }
  return static_cast<std::uint16_t>(best);
}

// How far a weight may be from exact arithmetic, relative. E is within 2 ulp, at most 4u relative; a sigmoid
// 1 / (1 + E) adds an addition and a division: 6u. E(x - max) with |x - max| <= D has its argument rounded
// once, which exp turns into D u: (4 + D) u. A sum of n positive terms that pass through at most a additions
// each is as far off as its worst term, and a u more.
double relative_bound(const Router& r, std::span<const float> logits) {
  double low = INFINITY;
  double high = -INFINITY;
  for (const float x : logits) {
    if (!std::isfinite(x)) continue;
    low = std::min(low, static_cast<double>(x));
    high = std::max(high, static_cast<double>(x));
  }
  const double d = std::max(high - low, 0.0);
  const auto k = static_cast<double>(r.top_k);
  double roundings = 0;
  switch (r.method) {
    case Method::top_k:
      roundings = 0;
      break;
    case Method::llama4:
    case Method::sigmoid:
    case Method::top_k_sigmoid:
      roundings = 6;
      break;
    // term, sum (partials of E / 256, then 8 halvings), division
    case Method::softmax:
      roundings = (4 + d) + (4 + d) + std::ceil(static_cast<double>(r.experts) / 256) + 8 + 1;
      break;
    case Method::renormalize:
    case Method::renormalize_naive:
      roundings = (4 + d) + (4 + d) + k + 1;
      break;
    case Method::sigmoid_renorm:
      roundings = 6 + 6 + k + 1;
      break;
    // term, scaling, sum, epsilon, division
    case Method::deepseek_v3:
    case Method::minimax2:
      roundings = 6 + 1 + 6 + k + 1 + 1;
      break;
  }
  return roundings * u * 1.01;  // 1.01: products of the roundings above
}

TEST(RouterGolden, EveryRecordedSelection) {
  const auto manifest = nlohmann::json::parse(test::golden_manifest());
  int cases = 0;
  int methods_seen = 0;
  for (const auto& c : manifest.at("meta").at("routing_selection")) {
    const auto name = c.at("name").get<std::string>();
    SCOPED_TRACE(name);
    const auto method = method_named(c.at("method").get<std::string>());
    ASSERT_TRUE(method.has_value());
    ASSERT_EQ(static_cast<int>(*method), c.at("method_id").get<int>());
    methods_seen |= 1 << static_cast<int>(*method);
    const auto shape = test::golden_shape(name + "_logits");
    const Router router{.method = *method,
                        .experts = shape.at(1),
                        .top_k = c.at("k"),
                        .n_group = c.at("n_group"),
                        .topk_group = c.at("topk_group"),
                        .routed_scaling = c.at("routed_scaling_factor"),
                        .norm_topk_prob = c.at("norm_topk_prob")};
    ASSERT_EQ(unsupported(router), std::nullopt);
    const auto logits = floats(name + "_logits", c.at("logits_dtype"));
    std::vector<float> bias;
    if (!c.at("bias_dtype").is_null()) bias = floats(name + "_bias", c.at("bias_dtype"));

    const auto routes = static_cast<std::size_t>(shape.at(0) * router.top_k);
    std::vector<std::int32_t> ids(routes, -7);
    std::vector<float> weights(routes, -7.0F);
    select(router, logits, bias, ids, weights);
    EXPECT_EQ(ids, test::golden<std::int32_t>(name + "_ids"));

    const auto exact = test::golden<double>(name + "_w");
    const auto device = test::golden<std::uint16_t>(name + "_w_h200");
    ASSERT_EQ(exact.size(), routes);
    ASSERT_EQ(device.size(), routes);
    ASSERT_TRUE(c.at("h200_bits_equal_rn").get<bool>());
    for (std::size_t i = 0; i < routes; ++i) {
      const std::size_t token = i / static_cast<std::size_t>(router.top_k);
      const auto experts = static_cast<std::size_t>(router.experts);
      const double bound = relative_bound(router, std::span(logits).subspan(token * experts, experts));
      // Below 2^-126 f32 has an absolute step instead of a relative one.
      EXPECT_LE(std::abs(static_cast<double>(weights[i]) - exact[i]), bound * std::abs(exact[i]) + 0x1p-126)
          << "route " << i;
      EXPECT_EQ(numeric::f32_to_bf16(weights[i]), bf16_of(exact[i])) << "route " << i;
      EXPECT_EQ(numeric::f32_to_bf16(weights[i]), device[i]) << "route " << i;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 44);
  EXPECT_EQ(methods_seen, (1 << 10) - 1);
}

TEST(RouterGolden, TheTestsOwnRoundingIsToNearestEven) {
  EXPECT_EQ(bf16_of(1.0), 0x3F80);
  EXPECT_EQ(bf16_of(1.0 + 0x1p-8), 0x3F80);            // tie, even below
  EXPECT_EQ(bf16_of(1.0 + 0x1p-8 + 0x1p-40), 0x3F81);  // lost where it passes through f32 first
  EXPECT_EQ(bf16_of(1.0 + 3 * 0x1p-8), 0x3F82);        // tie, even above
  EXPECT_EQ(bf16_of(1.0 + 3 * 0x1p-8 - 0x1p-40), 0x3F81);
}

}  // namespace
}  // namespace kerf::routing
