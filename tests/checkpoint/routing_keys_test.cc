// How experts are chosen and weighed: keys that contradict each other or the model, what families' code does
// where keys are silent, and what kerf computes nothing of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "kerf/decode/router.h"
#include "kerf/tools/verify.h"
#include "tests/checkpoint/refusal.h"

namespace kerf::checkpoint {
namespace {

using nlohmann::json;
using test::Onehot;
using test::refusal;
using test::refused_open;
using test::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

ModelConfig read(const json& config) {
  const TempDir dir;
  std::ofstream(dir.path() / "config.json") << config.dump();
  return read_model_config(dir.path());
}

json model(const json& more) {
  json out = {{"hidden_size", 256},       {"moe_intermediate_size", 128}, {"num_experts", 8},
              {"num_experts_per_tok", 2}, {"num_hidden_layers", 2},       {"hidden_act", "silu"}};
  out.update(more);
  return out;
}

json sigmoid(json more) {
  more["scoring_func"] = "sigmoid";
  more["norm_topk_prob"] = true;
  return model(more);
}

std::string contradiction(const json& config) {
  return refusal([&] { (void)read(config); }, ErrorKind::checkpoint);
}

TEST(RoutingKeys, SynonymsMustAgree) {
  EXPECT_THAT(contradiction(model({{"norm_topk_prob", true}, {"moe_renormalize", false}})),
              HasSubstr("config.json: norm_topk_prob is true but moe_renormalize is false"));
  EXPECT_THAT(contradiction(model({{"scoring_func", "softmax"}, {"moe_router_activation_func", "sigmoid"}})),
              HasSubstr("scoring_func is \"softmax\" but moe_router_activation_func is \"sigmoid\""));
  EXPECT_THAT(contradiction(model({{"n_group", 2}, {"num_expert_group", 4}})),
              HasSubstr("n_group is 2 but num_expert_group is 4"));
  EXPECT_THAT(contradiction(model({{"hidden_act", "silu"}, {"hidden_activation", "swigluoai"}})),
              HasSubstr("hidden_act is \"silu\" but hidden_activation is \"swigluoai\""));
  EXPECT_THAT(refusal(
                  [&] {
                    (void)read(model({{"hidden_activation", "gelu"}}));
                  },
                  ErrorKind::unsupported),
              HasSubstr("hidden_activation is 'gelu'"));
  EXPECT_NO_THROW(read(model({{"hidden_act", "silu"}, {"hidden_activation", "swiglu"}})));
  EXPECT_NO_THROW(read(sigmoid({{"moe_renormalize", true}, {"moe_router_activation_func", "sigmoid"}})));
  EXPECT_THAT(contradiction(model({{"topk_method", "noaux_tc"}, {"use_routing_bias", false}})),
              HasSubstr("topk_method is \"noaux_tc\" but use_routing_bias is false"));
}

TEST(RoutingKeys, BesideAndBelowTextConfigTheSame) {
  for (const auto& [key, one, other] : {std::tuple<const char*, json, json>{"num_experts_per_tok", 2, 4},
                                        {"norm_topk_prob", true, false},
                                        {"hidden_act", "silu", "gelu"},
                                        {"output_multiplier", 1.0, 0.5},
                                        {"routed_scaling_factor", 1.0, 2.5}}) {
    json config = {{"text_config", model({{key, one}})}, {key, other}};
    EXPECT_THAT(contradiction(config),
                AllOf(HasSubstr(std::string("text_config.") + key + " is " + one.dump()),
                      HasSubstr(std::string(key) + " is " + other.dump())));
    config[key] = one;
    EXPECT_NO_THROW(read(config)) << key;
  }
}

TEST(RoutingKeys, GroupsMustFitTheExperts) {
  EXPECT_THAT(contradiction(sigmoid({{"n_group", 3}, {"topk_group", 2}})),
              HasSubstr("config.json: n_group is 3, wanted a number that divides 8 experts"));
  EXPECT_THAT(contradiction(sigmoid({{"n_group", 8}, {"topk_group", 2}})),
              HasSubstr("n_group is 8, wanted at most 4 for 8 experts"));
  EXPECT_THAT(contradiction(sigmoid({{"n_group", 4}, {"topk_group", 5}})),
              HasSubstr("topk_group is 5, wanted 1 to 4 (n_group)"));
  EXPECT_THAT(contradiction(sigmoid({{"num_expert_group", 4}})),
              HasSubstr("topk_group is 0 where there is none, wanted 1 to 4"));
  EXPECT_THAT(contradiction(sigmoid({{"topk_group", 2}})),
              HasSubstr("topk_group is 2, wanted at most the 1 group"));
  EXPECT_THAT(contradiction(sigmoid({{"n_group", 4}, {"topk_group", 1}, {"num_experts_per_tok", 3}})),
              HasSubstr("3 experts per token, wanted at most the 2 that 1 of 4 groups hold"));
  EXPECT_THAT(contradiction(sigmoid({{"n_group", 4}, {"topk_group", 2}, {"use_grouped_topk", false}})),
              HasSubstr("use_grouped_topk is false but n_group is 4"));
  EXPECT_EQ(read(sigmoid({{"n_group", 4}, {"topk_group", 2}, {"use_grouped_topk", true}})).router.n_group, 4);
}

// The values of transformers' own classes.
TEST(RoutingKeys, WhatFamiliesDoWhereTheirFileIsSilent) {
  struct Case {
    const char* type;
    std::int64_t n_group;
    std::int64_t topk_group;
    double scaling;
    bool normalises;
  };
  for (const Case& c : {Case{"deepseek_v3", 8, 4, 2.5, true}, Case{"deepseek_v32", 8, 4, 2.5, true},
                        Case{"kimi_linear", 0, 0, 2.446, true}, Case{"glm4_moe", 0, 0, 1.0, true},
                        Case{"glm4_moe_lite", 0, 0, 1.8, true}, Case{"glm_moe_dsa", 0, 0, 2.5, true},
                        Case{"dots1", 0, 0, 1.0, false}, Case{"minimax_m3_vl_text", 0, 0, 2.0, true},
                        Case{"exaone_moe", 0, 0, 2.5, true}, Case{"minimax_m2", 0, 0, 1.0, true}}) {
    const ModelConfig config = read(model({{"model_type", c.type}, {"num_experts", 256}}));
    EXPECT_EQ(config.router.scoring, "sigmoid") << c.type;
    EXPECT_TRUE(config.router.selection_bias) << c.type;
    EXPECT_EQ(config.router.n_group, c.n_group) << c.type;
    EXPECT_EQ(config.router.topk_group, c.topk_group) << c.type;
    EXPECT_EQ(config.router.routed_scaling, c.scaling) << c.type;
    EXPECT_EQ(config.router.norm_topk_prob, c.normalises) << c.type;
    EXPECT_EQ(config.router.assumptions.empty(), c.n_group == 0 && c.scaling == 1.0) << c.type;
  }
  // null is an answer: none.
  const ModelConfig none =
      read(model({{"model_type", "deepseek_v3"}, {"n_group", nullptr}, {"routed_scaling_factor", nullptr}}));
  EXPECT_EQ(none.router.n_group, 0);
  EXPECT_EQ(none.router.routed_scaling, 1.0);
  EXPECT_THAT(contradiction(model({{"model_type", "deepseek_v3"}, {"num_experts", 12}})),
              HasSubstr("n_group is 8 in deepseek-v3's code where the file has none, wanted a number that "
                        "divides 12 experts"));
  EXPECT_EQ(read(model({{"model_type", "glm5_next_text"}})).swiglu.limit, 10.0);
  EXPECT_THAT(refusal(
                  [&] {
                    (void)read(model({{"model_type", "minimax_m2"}, {"routed_scaling_factor", 2.5}}));
                  },
                  ErrorKind::unsupported),
              HasSubstr("routed_scaling_factor is 2.5, but minimax-m2's code multiplies by none"));
  EXPECT_THAT(refusal(
                  [&] {
                    (void)read(model({{"model_type", "jamba"}, {"norm_topk_prob", true}}));
                  },
                  ErrorKind::unsupported),
              HasSubstr("norm_topk_prob is true, but jamba never normalises"));
}

std::string unrouted(const json& config) {
  return refusal([&] { (void)decode::router_of(read(config)); }, ErrorKind::unsupported);
}

// Their experts are computed, for routes that come with their weights; their router is not.
TEST(RoutingKeys, RoutersThatKerfDoesNotHaveAreNamed) {
  EXPECT_THAT(unrouted(model({{"model_type", "phimoe"}})),
              AllOf(HasSubstr("config.json: phimoe"), HasSubstr("sparsemixer")));
  EXPECT_THAT(unrouted(model({{"model_type", "ernie4_5_moe"}})), HasSubstr("softmax with a bias"));
  EXPECT_THAT(unrouted(model({{"model_type", "longcat_flash"}})), HasSubstr("zero_expert_num"));
  EXPECT_THAT(unrouted(model({{"model_type", "kolibri1"}})), HasSubstr("logits with a bias"));
  EXPECT_THAT(unrouted(model({{"model_type", "deepseek_v2"}, {"routed_scaling_factor", 16.0}})),
              HasSubstr("config.json: routed_scaling_factor is 16.0 beside scoring_func is \"softmax\" in "
                        "deepseek-v2's code"));
  EXPECT_THAT(
      unrouted(model({{"scoring_func", "softmax"}, {"n_group", 4}, {"topk_group", 2}})),
      HasSubstr(
          "n_group is 4 beside scoring_func is \"softmax\", kerf implements groups with sigmoid alone"));
  EXPECT_THAT(unrouted(model({{"scoring_func", "softmax"}, {"use_routing_bias", true}})),
              HasSubstr("use_routing_bias is true"));
  EXPECT_THAT(unrouted(model(
                  {{"scoring_func", "sigmoid"}, {"norm_topk_prob", false}, {"routed_scaling_factor", 2.5}})),
              HasSubstr("norm_topk_prob is false beside routed_scaling_factor is 2.5"));
  // topk, then softmax over the chosen, is softmax over all, normalised.
  EXPECT_EQ(decode::router_of(read(model({{"model_type", "granitemoe"}}))).method,
            routing::Method::renormalize);
  EXPECT_EQ(decode::router_of(read(model({{"model_type", "jamba"}}))).method, routing::Method::softmax);
}

TEST(RoutingKeys, BiasesOfLinearPartsAreRefused) {
  for (const char* key : {"add_bias_linear", "use_bias", "mlp_bias", "use_mlp_bias"}) {
    EXPECT_THAT(refusal(
                    [&] {
                      (void)read(model({{key, true}}));
                    },
                    ErrorKind::unsupported),
                HasSubstr(std::string(key) + " is true"));
    EXPECT_NO_THROW(read(model({{key, false}}))) << key;
  }
  EXPECT_THAT(refusal(
                  [&] {
                    (void)read(model({{"moe_every_n_layer", 2}}));
                  },
                  ErrorKind::unsupported),
              HasSubstr("moe_every_n_layer is 2"));
}

// The file says that there is no selection bias, and there is one; or the other way round.
TEST(RoutingKeys, ASelectionBiasThatTheFileDenies) {
  for (const auto& [key, value] : {std::pair{"topk_method", R"("greedy")"}, {"use_routing_bias", "false"}}) {
    Onehot onehot;
    onehot.config["scoring_func"] = R"("sigmoid")";
    onehot.config[key] = value;
    const TempDir dir;
    onehot.write(dir.path());
    EXPECT_FALSE(Checkpoint::open(dir.path()).config().router.selection_bias);
    onehot.add(0, onehot.layer_name("mlp.gate.e_score_correction_bias"),
               test::OwnedTensor::f32({4}, {1, 2, 3, 4}));
    EXPECT_THAT(refused_open(onehot),
                AllOf(HasSubstr("layer 0: model.layers.0.mlp.gate.e_score_correction_bias is there"),
                      HasSubstr(std::string(key) + " is " + value)));
  }
  Onehot onehot;
  onehot.config["scoring_func"] = R"("sigmoid")";
  onehot.config["topk_method"] = R"("noaux_tc")";
  const TempDir dir;
  onehot.write(dir.path());
  EXPECT_THAT(
      tools::verify(Checkpoint::open(dir.path()), Workers(1)).faults.text(),
      AllOf(HasSubstr("missing selection bias, count 1: layer 0"), HasSubstr("e_score_correction_bias")));
  onehot.add(0, onehot.layer_name("mlp.gate.e_score_correction_bias"),
             test::OwnedTensor::f32({4}, {1, 2, 3, 4}));
  onehot.write(dir.path());
  EXPECT_THAT(tools::verify(Checkpoint::open(dir.path()), Workers(1)).faults.text(), IsEmpty());
}

}  // namespace
}  // namespace kerf::checkpoint
