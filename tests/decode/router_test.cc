#include "kerf/decode/router.h"

#include <gtest/gtest.h>

namespace kerf::decode {
namespace {

checkpoint::ModelConfig config_of(const char* scoring, bool norm) {
  checkpoint::ModelConfig config;
  config.experts = 64;
  config.top_k = 4;
  config.router.scoring = scoring;
  config.router.norm_topk_prob = norm;
  return config;
}

TEST(RouterOf, NamesTheMethodThatComputesIt) {
  using routing::Method;
  EXPECT_EQ(router_of(config_of("softmax", true)).method, Method::renormalize);
  EXPECT_EQ(router_of(config_of("softmax", false)).method, Method::softmax);
  EXPECT_EQ(router_of(config_of("sigmoid", true)).method, Method::minimax2);
  EXPECT_EQ(router_of(config_of("sigmoid", false)).method, Method::sigmoid_renorm);
  EXPECT_FALSE(router_of(config_of("sigmoid", false)).norm_topk_prob);
  checkpoint::ModelConfig groups = config_of("sigmoid", true);
  groups.router.n_group = 8;
  groups.router.topk_group = 4;
  groups.router.routed_scaling = 2.5;
  groups.router.selection_bias = true;
  const routing::Router router = router_of(groups);
  EXPECT_EQ(router.method, Method::deepseek_v3);
  EXPECT_EQ(router.n_group, 8);
  EXPECT_EQ(router.topk_group, 4);
  EXPECT_EQ(router.routed_scaling, 2.5F);
}

// Muse Spark's parameters must give its own router.
TEST(RouterOf, MuseSparkIsMuseSpark) {
  checkpoint::ModelConfig config = config_of("sigmoid", true);
  config.router.selection_bias = true;
  config.router.logit_multiplier = 0.17677669529663687;
  config.router.sum_epsilon = 1e-15;
  const routing::Router got = router_of(config);
  const routing::Router wanted = routing::muse_spark_router(64, 4);
  std::vector<float> logits(64);
  std::vector<float> bias(64);
  for (std::size_t e = 0; e < 64; ++e) {
    logits[e] = static_cast<float>((e * 37) % 64) / 8.0F - 4.0F;
    bias[e] = static_cast<float>((e * 11) % 64) / 64.0F;
  }
  std::vector<std::int32_t> ids(4);
  std::vector<std::int32_t> wanted_ids(4);
  std::vector<float> weights(4);
  std::vector<float> wanted_weights(4);
  routing::select(got, logits, bias, ids, weights);
  routing::select(wanted, logits, bias, wanted_ids, wanted_weights);
  EXPECT_EQ(ids, wanted_ids);
  EXPECT_EQ(weights, wanted_weights);
}

// The weights of a token add up to the scaling factor, not to its square and not to 1; the tail adds no
// factor.
TEST(RouterOf, RoutedScalingIsAppliedOnce) {
  for (const std::int64_t groups : {1, 8}) {
    checkpoint::ModelConfig config = config_of("sigmoid", true);
    config.router.routed_scaling = 2.5;
    config.router.n_group = groups;
    config.router.topk_group = groups == 1 ? 1 : 4;
    config.router.selection_bias = true;
    const routing::Router router = router_of(config);
    std::vector<float> logits(64);
    for (std::size_t e = 0; e < 64; ++e) logits[e] = static_cast<float>((e * 37) % 64) / 16.0F - 2.0F;
    const std::vector<float> bias(64, 0.25F);
    std::vector<std::int32_t> ids(4);
    std::vector<float> weights(4);
    routing::select(router, logits, bias, ids, weights);
    // Four weights of one rounding each, in f32.
    EXPECT_NEAR(weights[0] + weights[1] + weights[2] + weights[3], 2.5F, 2.5F * 0x1p-21F) << groups;
  }
}

// A model that multiplies the experts' input by the weights is another one: no method stands for it.
TEST(RouterOf, WeightsOnTheInputAreRefused) {
  checkpoint::ModelConfig config = config_of("sigmoid", false);
  config.family = "llama-4";
  config.router.weights_on_input = true;
  try {
    (void)router_of(config);
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::unsupported);
    EXPECT_NE(std::string(e.what()).find("llama-4 multiplies the experts' input"), std::string::npos)
        << e.what();
  }
}

TEST(RouterOf, RefusesWhatNoMethodComputes) {
  const auto refused = [](checkpoint::ModelConfig config, const char* word) {
    try {
      (void)router_of(config);
      ADD_FAILURE() << "accepted, wanted a refusal about " << word;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::unsupported);
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
    }
  };
  checkpoint::ModelConfig config = config_of("softmax", true);
  config.router.routed_scaling = 2.5;
  refused(config, "2.5");
  config = config_of("softmax", true);
  config.router.selection_bias = true;
  refused(config, "bias");
  config = config_of("softmax", true);
  config.router.n_group = 4;
  refused(config, "4 groups");
  config = config_of("sigmoid", false);
  config.router.selection_bias = true;
  refused(config, "norm_topk_prob");
  refused(config_of("entmax", true), "entmax");
}

}  // namespace
}  // namespace kerf::decode
