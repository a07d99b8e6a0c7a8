#include "kerf/routing/router.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kerf/numeric/exp.h"

namespace kerf::routing {
namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

using Ids = std::vector<std::int32_t>;
using Floats = std::vector<float>;

struct Selected {
  Ids ids;
  Floats weights;
};

Selected selected(const Router& router, const Floats& logits, const Floats& bias = {}) {
  const std::size_t routes =
      logits.size() / static_cast<std::size_t>(router.experts) * static_cast<std::size_t>(router.top_k);
  Selected out{Ids(routes, -7), Floats(routes, -7.0F)};
  select(router, logits, bias, out.ids, out.weights);
  return out;
}

std::vector<std::uint32_t> bits(const Floats& values) {
  std::vector<std::uint32_t> out;
  for (const float v : values) out.push_back(std::bit_cast<std::uint32_t>(v));
  return out;
}

float sigmoid(float x) { return numeric::sigmoid_f32(x); }

TEST(Method, NamesGoBothWays) {
  constexpr const char* op_names[] = {"Default", "Renormalize",   "DeepSeekV3", "Llama4",  "RenormalizeNaive",
                                      "TopK",    "SigmoidRenorm", "MiniMax2",   "Sigmoid", "TopKSigmoid"};
  for (int m = 0; m < 10; ++m) {
    const auto method = static_cast<Method>(m);
    EXPECT_EQ(method_named(name(method)), method);
    EXPECT_EQ(method_named(op_names[m]), method);
  }
  EXPECT_EQ(name(Method::deepseek_v3), "deepseek_v3");
  EXPECT_EQ(method_named("softmix"), std::nullopt);
  EXPECT_EQ(method_named(""), std::nullopt);
}

TEST(Select, TiesGoToTheLowerExpertAndPlusZeroIsAboveMinusZero) {
  const Router r{.method = Method::top_k, .experts = 6, .top_k = 6};
  EXPECT_EQ(selected(r, {-0.0F, 1.0F, 0.0F, -0.0F, 1.0F, 0.0F}).ids, (Ids{1, 4, 2, 5, 0, 3}));
  EXPECT_EQ(bits(selected(r, {-0.0F, 1.0F, 0.0F, -0.0F, 1.0F, 0.0F}).weights),
            bits({1.0F, 1.0F, 0.0F, 0.0F, -0.0F, -0.0F}));
}

TEST(Select, SignsInfinitiesAndSubnormalsAreOrderedAsNumbers) {
  const Router r{.method = Method::top_k, .experts = 8, .top_k = 8};
  EXPECT_EQ(selected(r, {-inf, -1.0F, -0x1p-149F, inf, 0x1p-149F, 2.0F, -3.0e38F, 0.5F}).ids,
            (Ids{3, 5, 7, 4, 2, 1, 6, 0}));
}

TEST(Select, NanLogitsComeLastInEveryMethod) {
  // Experts 0 and 3 are NaN (of either sign); the others must all be chosen before them.
  const Floats logits = {nan, -2.0F, -inf, -nan, 1.0F, -90.0F};
  for (int m = 0; m < 10; ++m) {
    Router r{.method = static_cast<Method>(m), .experts = 6, .top_k = 4};
    if (r.method == Method::llama4) r.top_k = 1;
    SCOPED_TRACE(name(r.method));
    const Selected s = selected(r, logits);
    for (std::size_t k = 0; k < s.ids.size(); ++k) {
      EXPECT_TRUE(s.ids[k] != 0 && s.ids[k] != 3) << s.ids[k];
      EXPECT_FALSE(std::isnan(s.weights[k]));
    }
    EXPECT_EQ(s.ids[0], 4);
    if (r.method == Method::llama4) continue;
    r.top_k = 6;
    const Selected all = selected(r, logits);
    EXPECT_EQ((Ids{all.ids.begin() + 4, all.ids.end()}), (Ids{0, 3})) << "nothing else was left";
    EXPECT_TRUE(std::isnan(all.weights[4]) && std::isnan(all.weights[5]));
  }
}

TEST(Select, OnlyNanLogitsGiveTheLowestIdsAndNanWeights) {
  for (int m = 0; m < 10; ++m) {
    Router r{.method = static_cast<Method>(m), .experts = 5, .top_k = 3};
    if (r.method == Method::llama4) r.top_k = 1;
    const Selected s = selected(r, Floats(5, nan));
    for (std::size_t k = 0; k < s.ids.size(); ++k) {
      EXPECT_EQ(s.ids[k], static_cast<std::int32_t>(k));
      EXPECT_TRUE(std::isnan(s.weights[k]));
    }
  }
}

TEST(Select, ANanBiasKeepsAnExpertBehindMinusInfinityAndAheadOfANanLogit) {
  const Router r{.method = Method::minimax2, .experts = 4, .top_k = 4};
  EXPECT_EQ(selected(r, {nan, 9.0F, 0.0F, 0.0F}, {0.0F, nan, -inf, 0.0F}).ids, (Ids{3, 2, 1, 0}));
}

TEST(Select, InfiniteSoftmaxGivesNanWeightsAndStillOrdersNanLogitsLast) {
  const Router r{.method = Method::softmax, .experts = 4, .top_k = 3};
  for (const Floats& logits : {Floats{nan, inf, 1.0F, 2.0F}, Floats{nan, -inf, -inf, -inf}}) {
    const Selected s = selected(r, logits);
    EXPECT_EQ(s.ids, (Ids{1, 2, 3}));
    for (const float w : s.weights) EXPECT_TRUE(std::isnan(w));
  }
}

TEST(Select, MinusInfinityChosenBesideANumberHasWeightZero) {
  const Router r{.method = Method::renormalize, .experts = 4, .top_k = 3};
  const Selected s = selected(r, {-inf, 0.0F, -inf, 0.0F});
  EXPECT_EQ(s.ids, (Ids{1, 3, 0}));
  EXPECT_EQ(bits(s.weights), bits({0.5F, 0.5F, 0.0F}));
}

TEST(Select, ANanRowLeavesItsNeighboursAlone) {
  const Router r{.method = Method::softmax, .experts = 3, .top_k = 2};
  const Floats row = {0.5F, -1.0F, 2.0F};
  const Selected alone = selected(r, row);
  const Selected three = selected(r, {0.5F, -1.0F, 2.0F, nan, nan, nan, 0.5F, -1.0F, 2.0F});
  for (const std::size_t first : {0U, 4U}) {
    EXPECT_TRUE(std::equal(alone.ids.begin(), alone.ids.end(), three.ids.begin() + first));
    EXPECT_TRUE(std::equal(alone.weights.begin(), alone.weights.end(), three.weights.begin() + first));
  }
}

TEST(Select, SoftmaxOverAllExpertsIsSummedInPartials) {
  // 600 experts: partial m takes m, m + 256, m + 512. The whole formula, worked out beside select().
  constexpr std::size_t n = 600;
  Floats x(n);
  for (std::size_t e = 0; e < n; ++e) x[e] = static_cast<float>((e * 7919) % 1201) / 128.0F - 5.0F;
  const float max = *std::ranges::max_element(x);
  Floats p(256, 0.0F);
  for (std::size_t m = 0; m < 256; ++m) {
    for (std::size_t e = m; e < n; e += 256) p[m] = p[m] + numeric::exp_f32(x[e] - max);
  }
  for (std::size_t half = 128; half > 0; half /= 2) {
    for (std::size_t m = 0; m < half; ++m) p[m] = p[m] + p[m + half];
  }
  const Router r{.method = Method::softmax, .experts = n, .top_k = 5};
  const Selected s = selected(r, x);
  for (std::size_t k = 0; k < 5; ++k) {
    const float expected = numeric::exp_f32(x[static_cast<std::size_t>(s.ids[k])] - max) / p[0];
    EXPECT_EQ(std::bit_cast<std::uint32_t>(s.weights[k]), std::bit_cast<std::uint32_t>(expected));
  }
}

TEST(Select, BiasMovesTheChoiceAndNotTheWeights) {
  for (const Method method : {Method::minimax2, Method::deepseek_v3}) {
    const Router r{.method = method, .experts = 4, .top_k = 2, .routed_scaling = 2.5F};
    const Selected s = selected(r, {3.0F, 2.0F, 0.0F, -1.0F}, {-1.0F, 0.0F, 1.0F, 0.0F});
    EXPECT_EQ(s.ids, (Ids{2, 1}));
    const float a = sigmoid(0.0F);
    const float b = sigmoid(2.0F);
    const float sum = 0.0F + a + b + 1e-20F;
    EXPECT_EQ(bits(s.weights), bits({a * 2.5F / sum, b * 2.5F / sum}));
  }
}

TEST(Select, SigmoidRenormDividesByTheSumOrItsFloor) {
  Router r{.method = Method::sigmoid_renorm, .experts = 3, .top_k = 2};
  const float a = sigmoid(1.0F);
  const float b = sigmoid(-2.0F);
  EXPECT_EQ(bits(selected(r, {-2.0F, -3.0F, 1.0F}).weights), bits({a / (a + b), b / (a + b)}));
  const float tiny = sigmoid(-80.0F);  // about 1.8e-35: the floor of the sum takes over
  EXPECT_EQ(bits(selected(r, {-80.0F, -80.0F, -80.0F}).weights), bits({tiny / 1e-20F, tiny / 1e-20F}));
  r.norm_topk_prob = false;
  EXPECT_EQ(bits(selected(r, {-2.0F, -3.0F, 1.0F}).weights), bits({a, b}));
}

TEST(Select, SaturatedSigmoidsTieByIdWhereLogitsDoNot) {
  const Floats logits = {30.0F, 20.0F, 40.0F, 0.0F};
  EXPECT_EQ(selected({.method = Method::sigmoid, .experts = 4, .top_k = 3}, logits).ids, (Ids{0, 1, 2}));
  EXPECT_EQ(selected({.method = Method::top_k_sigmoid, .experts = 4, .top_k = 3}, logits).ids,
            (Ids{2, 0, 1}));
}

TEST(Select, TheMultiplierComesBeforeEverything) {
  Router r{.method = Method::top_k_sigmoid, .experts = 3, .top_k = 3, .logit_multiplier = -0.5F};
  const Selected s = selected(r, {4.0F, -2.0F, 1.0F});
  EXPECT_EQ(s.ids, (Ids{1, 2, 0}));
  EXPECT_EQ(bits(s.weights), bits({sigmoid(1.0F), sigmoid(-0.5F), sigmoid(-2.0F)}));
  r.method = Method::top_k;
  EXPECT_EQ(bits(selected(r, {4.0F, -2.0F, 1.0F}).weights), bits({1.0F, -0.5F, -2.0F}));
}

TEST(Select, MuseSpark) {
  const Router r = muse_spark_router(6, 3);
  EXPECT_EQ(unsupported(r), std::nullopt);
  EXPECT_EQ(r.logit_multiplier, static_cast<float>(std::sqrt(1.0 / 32)));
  EXPECT_EQ(r.sum_epsilon, 1e-15F);
  EXPECT_EQ(r.routed_scaling, 1.0F);
  const Floats logits = {8.0F, -4.0F, 0.0F, 16.0F, 2.0F, -32.0F};
  const Selected s = selected(r, logits, {0.0F, 0.5F, 0.0F, -0.75F, 0.0F, 0.0F});
  // keys: .804, .830, .5, .194, .587, .003
  EXPECT_EQ(s.ids, (Ids{1, 0, 4}));
  const float m = r.logit_multiplier;
  const float w[] = {sigmoid(-4.0F * m), sigmoid(8.0F * m), sigmoid(2.0F * m)};
  const float sum = ((0.0F + w[0]) + w[1]) + w[2] + 1e-15F;
  EXPECT_EQ(bits(s.weights), bits({w[0] / sum, w[1] / sum, w[2] / sum}));
  // Where every score is far below the epsilon, it is the epsilon that they are divided by.
  const float faint = sigmoid(-400.0F * m);
  const float faint_sum = ((0.0F + faint) + faint) + faint + 1e-15F;
  EXPECT_EQ(bits(selected(r, Floats(6, -400.0F)).weights), bits(Floats(3, faint / faint_sum)));
  EXPECT_LT(faint / faint_sum, 1e-14F);
}

TEST(Select, GroupsAreRankedByTheSumOfTheirTwoBest) {
  // Keys through the bias alone (every sigmoid is .5). Group sums: {4, .1}: 4.1; {2.5, 2}: 4.5;
  // {3, 1.5}: 4.5;
  // {.2, .3}: .5. The best single expert is in group 0, which loses; groups 1 and 2 tie and both win.
  const Floats bias = {4.0F, 0.1F, 0.0F, 2.5F, 2.0F, 0.0F, 3.0F, 1.5F, 0.0F, 0.2F, 0.3F, 0.0F};
  Router r{.method = Method::deepseek_v3, .experts = 12, .top_k = 3, .n_group = 4, .topk_group = 2};
  const Floats logits(12, 0.0F);
  EXPECT_EQ(selected(r, logits, bias).ids, (Ids{6, 3, 4}));
  r.topk_group = 1;  // the tie goes to the lower group
  EXPECT_EQ(selected(r, logits, bias).ids, (Ids{3, 4, 5}));
  r.topk_group = 3;
  EXPECT_EQ(selected(r, logits, bias).ids, (Ids{0, 6, 3}));
  r.n_group = 1;
  r.topk_group = 1;
  EXPECT_EQ(selected(r, logits, bias).ids, (Ids{0, 6, 3}));
}

TEST(Select, AGroupWithFewerThanTwoNumbersComesLast) {
  Router r{.method = Method::deepseek_v3, .experts = 6, .top_k = 2, .n_group = 3, .topk_group = 1};
  EXPECT_EQ(selected(r, {9.0F, nan, -5.0F, -6.0F, nan, nan}).ids, (Ids{2, 3}));
  EXPECT_EQ(selected(r, {9.0F, nan, nan, 3.0F, nan, nan}).ids, (Ids{0, 1})) << "all last: the lowest group";
}

// Keys by the methods' definitions, a stable sort, and the groups by sorting too.
Ids by_sorting(const Router& r, const Floats& x, const Floats& bias) {
  const std::size_t n = x.size();
  Floats keys(n);
  float max = -inf;
  for (const float v : x) max = std::isnan(v) ? max : std::max(max, v);
  Floats p(256, 0.0F);
  for (std::size_t e = 0; e < n; ++e) {
    if (!std::isnan(x[e])) p[e % 256] += numeric::exp_f32(x[e] - max);
  }
  for (std::size_t half = 128; half > 0; half /= 2) {
    for (std::size_t m = 0; m < half; ++m) p[m] += p[m + half];
  }
  for (std::size_t e = 0; e < n; ++e) {
    const int m = static_cast<int>(r.method);
    if (m == 0) keys[e] = numeric::exp_f32(x[e] - max) / p[0];
    if (m == 1 || m == 3 || m == 4 || m == 5 || m == 9) keys[e] = x[e];
    if (m == 2 || m == 7) keys[e] = bias.empty() ? sigmoid(x[e]) : sigmoid(x[e]) + bias[e];
    if (m == 6 || m == 8) keys[e] = sigmoid(x[e]);
  }
  // The total order: numbers, then NaN keys, then NaN logits; -0 below +0.
  const auto place = [](float key, bool nan_logit) { return nan_logit ? 2 : std::isnan(key) ? 1 : 0; };
  const auto above = [&](float a, bool a_logit, float b, bool b_logit) {
    if (place(a, a_logit) != place(b, b_logit)) return place(a, a_logit) < place(b, b_logit);
    if (place(a, a_logit) != 0) return false;
    if (a != b) return a > b;
    return !std::signbit(a) && std::signbit(b);
  };
  const auto better = [&](std::size_t a, std::size_t b) {
    return above(keys[a], std::isnan(x[a]), keys[b], std::isnan(x[b]));
  };
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), better);
  std::vector<bool> open(n, r.n_group <= 1);
  if (r.n_group > 1) {
    const std::size_t size = n / static_cast<std::size_t>(r.n_group);
    Floats sums;
    for (std::size_t first = 0; first < n; first += size) {
      std::vector<std::size_t> inside(size);
      std::iota(inside.begin(), inside.end(), first);
      std::stable_sort(inside.begin(), inside.end(), better);
      sums.push_back(keys[inside[0]] + keys[inside[1]]);
    }
    std::vector<std::size_t> groups(sums.size());
    std::iota(groups.begin(), groups.end(), std::size_t{0});
    std::stable_sort(groups.begin(), groups.end(),
                     [&](std::size_t a, std::size_t b) { return above(sums[a], false, sums[b], false); });
    for (std::size_t g = 0; g < static_cast<std::size_t>(r.topk_group); ++g) {
      for (std::size_t e = 0; e < size; ++e) open[groups[g] * size + e] = true;
    }
  }
  Ids ids;
  for (const std::size_t e : order) {
    if (open[e] && ids.size() < static_cast<std::size_t>(r.top_k))
      ids.push_back(static_cast<std::int32_t>(e));
  }
  return ids;
}

RC_GTEST_PROP(Select, EqualsAStableSortOfTheKeys, ()) {
  Router r{.method = static_cast<Method>(*rc::gen::inRange(0, 10))};
  if (r.method == Method::deepseek_v3 && *rc::gen::arbitrary<bool>()) {
    r.n_group = *rc::gen::inRange<std::int64_t>(2, 9);
    r.topk_group = *rc::gen::inRange<std::int64_t>(1, r.n_group + 1);
    const auto size = *rc::gen::inRange<std::int64_t>(2, 12);
    r.experts = r.n_group * size;
    r.top_k = *rc::gen::inRange<std::int64_t>(1, r.topk_group * size + 1);
  } else {
    r.experts = *rc::gen::inRange<std::int64_t>(1, 600);
    r.top_k = r.method == Method::llama4 ? 1 : *rc::gen::inRange<std::int64_t>(1, r.experts + 1);
  }
  RC_ASSERT(unsupported(r) == std::nullopt);
  // Few distinct values, so that ties abound; or small fractions, so that they do not.
  static const Floats odd = {0.0F, -0.0F, 1.0F, -1.0F, inf, -inf, nan, 0x1p-149F, 40.0F, -120.0F, 0.25F};
  const bool special = *rc::gen::arbitrary<bool>();
  const auto values = [&] {
    const auto numbers = *rc::gen::container<std::vector<int>>(static_cast<std::size_t>(r.experts),
                                                               rc::gen::inRange(-2000, 2000));
    Floats out;
    for (const int v : numbers) {
      out.push_back(special ? odd[static_cast<std::size_t>(v + 2000) % odd.size()]
                            : static_cast<float>(v) / 256.0F);
    }
    return out;
  };
  const Floats logits = values();
  const bool biased =
      (r.method == Method::deepseek_v3 || r.method == Method::minimax2) && *rc::gen::arbitrary<bool>();
  const Floats bias = biased ? values() : Floats{};
  RC_ASSERT(selected(r, logits, bias).ids == by_sorting(r, logits, bias));
}

TEST(Select, NoTokensIsLegal) {
  const Router r{.method = Method::renormalize, .experts = 8, .top_k = 2};
  EXPECT_TRUE(selected(r, {}).ids.empty());
}

ErrorKind kind_of(const Router& r, std::size_t logits, std::size_t bias, std::size_t ids,
                  std::size_t weights) {
  const Floats l(logits), b(bias);
  Ids i(ids);
  Floats w(weights);
  try {
    select(r, l, b, i, w);
  } catch (const Error& error) {
    return error.kind();
  }
  return ErrorKind::bug;  // no error
}

TEST(Select, SizesThatDoNotFitAreUsageErrors) {
  const Router r{.method = Method::minimax2, .experts = 8, .top_k = 2};
  EXPECT_EQ(kind_of(r, 16, 8, 4, 4), ErrorKind::bug);
  EXPECT_EQ(kind_of(r, 15, 8, 4, 4), ErrorKind::usage);
  EXPECT_EQ(kind_of(r, 16, 7, 4, 4), ErrorKind::usage);
  EXPECT_EQ(kind_of(r, 16, 8, 3, 4), ErrorKind::usage);
  EXPECT_EQ(kind_of(r, 16, 8, 4, 5), ErrorKind::usage);
  const Router unbiased{.method = Method::sigmoid, .experts = 8, .top_k = 2};
  EXPECT_EQ(kind_of(unbiased, 16, 0, 4, 4), ErrorKind::bug);
  EXPECT_EQ(kind_of(unbiased, 16, 8, 4, 4), ErrorKind::usage) << "a bias that would be ignored";
  const Router impossible{.method = Method::sigmoid, .experts = 8, .top_k = 9};
  EXPECT_EQ(kind_of(impossible, 16, 0, 18, 18), ErrorKind::usage);
}

std::string reason(const Router& r) {
  const Verdict verdict = unsupported(r);
  return verdict ? verdict->text : "";
}

TEST(Unsupported, SaysWhy) {
  const Router good{.method = Method::deepseek_v3, .experts = 256, .top_k = 8, .n_group = 8, .topk_group = 4};
  EXPECT_EQ(reason(good), "");
  const auto changed = [&](auto change) {
    Router r = good;
    change(r);
    return reason(r);
  };
  EXPECT_EQ(changed([](Router& r) { r.experts = 0; }), "a router over 0 experts: at least 1 is wanted");
  EXPECT_NE(changed([](Router& r) { r.experts = std::int64_t{1} << 40; }), "");
  EXPECT_EQ(changed([](Router& r) { r.top_k = 0; }), "top 0 of 256 experts: wanted is 1 to 256");
  EXPECT_EQ(changed([](Router& r) { r.top_k = -8; }), "top -8 of 256 experts: wanted is 1 to 256");
  EXPECT_EQ(changed([](Router& r) { r.top_k = 257; }), "top 257 of 256 experts: wanted is 1 to 256");
  EXPECT_EQ(changed([](Router& r) { r.n_group = 7; }), "256 experts do not divide into 7 groups");
  EXPECT_EQ(changed([](Router& r) { r.n_group = 512; }), "512 expert groups; at most 256 are possible");
  EXPECT_EQ(changed([](Router& r) { r.n_group = 256; }),
            "256 expert groups of 1 expert: groups are ranked by their two best, so two are needed");
  EXPECT_EQ(changed([](Router& r) { r.topk_group = 9; }), "the best 9 of 8 expert groups: wanted is 1 to 8");
  EXPECT_EQ(changed([](Router& r) { r.topk_group = 0; }), "the best 0 of 8 expert groups: wanted is 1 to 8");
  EXPECT_EQ(changed([](Router& r) { r.n_group = -1; }),
            "the best 4 of -1 expert groups: wanted is 0 (no groups) or more");
  EXPECT_EQ(changed([](Router& r) { r = {.experts = 8, .top_k = 2, .topk_group = -1}; }),
            "the best -1 of 0 expert groups: wanted is 0 (no groups) or more");
  EXPECT_EQ(changed([](Router& r) { r.top_k = 129; }),
            "top 129 of the 128 experts that 4 of 8 groups hold: there are not that many");
  EXPECT_EQ(changed([](Router& r) { r.top_k = 128; }), "");
  EXPECT_EQ(changed([](Router& r) { r.n_group = 0; }),
            "the best 4 of 1 expert groups: there are not that many");
  EXPECT_EQ(changed([](Router& r) { r.method = Method::minimax2; }),
            "routing method minimax2 has no expert groups; got 8 of them");
  EXPECT_EQ(changed([](Router& r) { r.norm_topk_prob = false; }),
            "routing method deepseek_v3 always renormalises; got norm_topk_prob = false");
  EXPECT_NE(changed([](Router& r) { r.method = static_cast<Method>(10); }), "");
  EXPECT_NE(changed([](Router& r) { r.logit_multiplier = nan; }), "");
  EXPECT_NE(changed([](Router& r) { r.logit_multiplier = 0.0F; }), "");
  EXPECT_NE(changed([](Router& r) { r.routed_scaling = inf; }), "");
  EXPECT_NE(changed([](Router& r) { r.sum_epsilon = -1.0F; }), "");
  EXPECT_NE(changed([](Router& r) { r.sum_epsilon = nan; }), "");
  EXPECT_EQ(reason({.method = Method::llama4, .experts = 16, .top_k = 2}),
            "routing method llama4 chooses 1 expert a token; got top 2");
  EXPECT_EQ(reason({.method = Method::llama4, .experts = 16, .top_k = 1}), "");
  EXPECT_EQ(reason({.method = Method::softmax, .experts = 16, .top_k = 2, .routed_scaling = 2.5F}),
            "routing method softmax has no routed scaling; got 2.5");
  EXPECT_EQ(reason({.method = Method::softmax, .experts = 16, .top_k = 16, .norm_topk_prob = false}), "");
}

}  // namespace
}  // namespace kerf::routing
