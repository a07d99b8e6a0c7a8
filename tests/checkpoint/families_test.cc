// config.json of the model families, as their publishers write the keys that concern routed experts: sizes,
// routing and activation, each from the family's own code; and one key at a time that kerf must not pass
// over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "kerf/checkpoint/config.h"
#include "tests/checkpoint/refusal.h"

namespace kerf::checkpoint {
namespace {

using nlohmann::json;
using test::refusal;
using test::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

ModelConfig read(const json& config) {
  const TempDir dir;
  std::ofstream(dir.path() / "config.json") << config.dump();
  return read_model_config(dir.path());
}

std::string refused(const json& config) {
  return refusal([&] { (void)read(config); }, ErrorKind::unsupported);
}

json with(json config, const std::string& key, const json& value) {
  config[key] = value;
  return config;
}

json qwen3_moe() {
  return {{"architectures", {"Qwen3MoeForCausalLM"}},
          {"model_type", "qwen3_moe"},
          {"hidden_size", 2048},
          {"intermediate_size", 6144},
          {"moe_intermediate_size", 768},
          {"num_experts", 128},
          {"num_experts_per_tok", 8},
          {"num_hidden_layers", 48},
          {"norm_topk_prob", true},
          {"decoder_sparse_step", 1},
          {"mlp_only_layers", json::array()},
          {"output_router_logits", false},
          {"router_aux_loss_coef", 0.001},
          {"hidden_act", "silu"}};
}

json deepseek_v3() {
  return {{"architectures", {"DeepseekV3ForCausalLM"}},
          {"model_type", "deepseek_v3"},
          {"hidden_size", 7168},
          {"intermediate_size", 18432},
          {"moe_intermediate_size", 2048},
          {"n_routed_experts", 256},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", 8},
          {"num_hidden_layers", 61},
          {"n_group", 8},
          {"topk_group", 4},
          {"topk_method", "noaux_tc"},
          {"scoring_func", "sigmoid"},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", 2.5},
          {"first_k_dense_replace", 3},
          {"moe_layer_freq", 1},
          {"ep_size", 1},
          {"aux_loss_alpha", 0.001},
          {"seq_aux", true},
          {"num_nextn_predict_layers", 1},
          {"hidden_act", "silu"}};
}

// Its file has no scoring_func: sigmoid is in the code alone.
json glm_4_5() {
  return {{"architectures", {"Glm4MoeForCausalLM"}},
          {"model_type", "glm4_moe"},
          {"hidden_size", 5120},
          {"intermediate_size", 12288},
          {"moe_intermediate_size", 1536},
          {"n_routed_experts", 160},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", 8},
          {"num_hidden_layers", 92},
          {"n_group", 1},
          {"topk_group", 1},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", 2.5},
          {"first_k_dense_replace", 3},
          {"num_nextn_predict_layers", 1},
          {"hidden_act", "silu"}};
}

json kimi_k2() {
  json out = deepseek_v3();
  out.update({{"architectures", {"DeepseekV3ForCausalLM"}},
              {"model_type", "kimi_k2"},
              {"n_routed_experts", 384},
              {"n_group", 1},
              {"topk_group", 1},
              {"routed_scaling_factor", 2.827},
              {"first_k_dense_replace", 1},
              {"num_nextn_predict_layers", 0}});
  return out;
}

// No moe_intermediate_size, no norm_topk_prob.
json minimax_m2() {
  return {{"architectures", {"MiniMaxM2ForCausalLM"}},
          {"model_type", "minimax_m2"},
          {"hidden_size", 3072},
          {"intermediate_size", 1536},
          {"num_local_experts", 256},
          {"num_experts_per_tok", 8},
          {"num_hidden_layers", 62},
          {"scoring_func", "sigmoid"},
          {"use_routing_bias", true},
          {"shared_intermediate_size", 0},
          {"shared_moe_mode", "sigmoid"},
          {"output_router_logits", false},
          {"router_aux_loss_coef", 0.001},
          {"router_jitter_noise", 0.0},
          {"num_mtp_modules", 3},
          {"hidden_act", "silu"}};
}

json gpt_oss() {
  return {{"architectures", {"GptOssForCausalLM"}},
          {"model_type", "gpt_oss"},
          {"hidden_size", 2880},
          {"intermediate_size", 2880},
          {"num_local_experts", 128},
          {"num_experts_per_tok", 4},
          {"experts_per_token", 4},
          {"num_hidden_layers", 36},
          {"swiglu_limit", 7.0},
          {"output_router_logits", false},
          {"router_aux_loss_coef", 0.9},
          {"hidden_act", "silu"}};
}

json llama_4() {
  json layers = json::array();
  for (int l = 0; l < 48; ++l) layers.push_back(l);
  return {{"architectures", {"Llama4ForConditionalGeneration"}},
          {"model_type", "llama4"},
          {"text_config",
           {{"model_type", "llama4_text"},
            {"hidden_size", 5120},
            {"intermediate_size", 8192},
            {"intermediate_size_mlp", 16384},
            {"num_local_experts", 16},
            {"num_experts_per_tok", 1},
            {"num_hidden_layers", 48},
            {"interleave_moe_layer_step", 1},
            {"moe_layers", layers},
            {"output_router_logits", false},
            {"router_aux_loss_coef", 0.001},
            {"router_jitter_noise", 0.0},
            {"top_k", 50},
            {"hidden_act", "silu"}}},
          {"vision_config", {{"hidden_act", "gelu"}, {"num_experts", 99}}}};
}

json mixtral() {
  return {{"architectures", {"MixtralForCausalLM"}},
          {"model_type", "mixtral"},
          {"hidden_size", 4096},
          {"intermediate_size", 14336},
          {"num_local_experts", 8},
          {"num_experts_per_tok", 2},
          {"num_hidden_layers", 32},
          {"output_router_logits", false},
          {"router_aux_loss_coef", 0.02},
          {"hidden_act", "silu"}};
}

json nemotron_h() {
  return {{"architectures", {"NemotronHForCausalLM"}},
          {"model_type", "nemotron_h"},
          {"hidden_size", 2688},
          {"intermediate_size", 1856},
          {"moe_intermediate_size", 1856},
          {"moe_shared_expert_intermediate_size", 3712},
          {"n_routed_experts", 128},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", 6},
          {"num_hidden_layers", 52},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", 2.5},
          {"n_group", 1},
          {"topk_group", 1},
          {"mlp_bias", false},
          {"mlp_hidden_act", "relu2"},
          {"mamba_hidden_act", "silu"},
          {"n_groups", 8}};
}

TEST(Families, Qwen3Moe) {
  const ModelConfig c = read(qwen3_moe());
  EXPECT_EQ(c.family, "qwen3-moe");
  EXPECT_EQ(c.experts, 128);
  EXPECT_EQ(c.intermediate, 768);
  EXPECT_EQ(c.router.scoring, "softmax");
  EXPECT_TRUE(c.router.norm_topk_prob);
  EXPECT_TRUE(c.swiglu.plain());
  EXPECT_THAT(c.router.assumptions, IsEmpty());
  // The code's own default where the file is silent.
  json silent = qwen3_moe();
  silent.erase("norm_topk_prob");
  EXPECT_FALSE(read(silent).router.norm_topk_prob);
  EXPECT_EQ(read(with(qwen3_moe(), "model_type", "qwen3_next")).family, "qwen3-next");
  silent["model_type"] = "qwen3_next";
  EXPECT_TRUE(read(silent).router.norm_topk_prob);
}

TEST(Families, DeepSeekV3) {
  const ModelConfig c = read(deepseek_v3());
  EXPECT_EQ(c.family, "deepseek-v3");
  EXPECT_EQ(c.intermediate, 2048);
  EXPECT_EQ(c.shared_experts, 1);
  EXPECT_EQ(c.router.scoring, "sigmoid");
  EXPECT_TRUE(c.router.selection_bias);
  EXPECT_EQ(c.router.n_group, 8);
  EXPECT_EQ(c.router.topk_group, 4);
  EXPECT_EQ(c.router.routed_scaling, 2.5);
}

TEST(Families, GlmScoresBySigmoidThoughItsFileDoesNotSaySo) {
  const ModelConfig c = read(glm_4_5());
  EXPECT_EQ(c.router.scoring, "sigmoid");
  EXPECT_TRUE(c.router.selection_bias);
  EXPECT_EQ(c.router.routed_scaling, 2.5);
  EXPECT_EQ(c.experts, 160);
  EXPECT_THAT(c.router.assumptions, IsEmpty());
}

TEST(Families, KimiK2) {
  const ModelConfig c = read(kimi_k2());
  EXPECT_EQ(c.family, "kimi-k2");
  EXPECT_EQ(c.experts, 384);
  EXPECT_EQ(c.router.n_group, 1);
  EXPECT_EQ(c.router.routed_scaling, 2.827);
  EXPECT_EQ(c.router.scoring, "sigmoid");
  // A model of several parts: those of its text part stand below.
  EXPECT_EQ(read({{"model_type", "kimi_k25"}, {"text_config", kimi_k2()}}).family, "kimi-k2");
}

TEST(Families, MiniMaxM2) {
  const ModelConfig c = read(minimax_m2());
  EXPECT_EQ(c.family, "minimax-m2");
  EXPECT_EQ(c.intermediate, 1536);
  EXPECT_EQ(c.router.scoring, "sigmoid");
  EXPECT_TRUE(c.router.norm_topk_prob);
  EXPECT_TRUE(c.router.selection_bias);
  EXPECT_EQ(c.shared_experts, 0);
  EXPECT_FALSE(read(with(minimax_m2(), "use_routing_bias", false)).router.selection_bias);
}

TEST(Families, GptOssHasAlphaBetaAndALimit) {
  const ModelConfig c = read(gpt_oss());
  EXPECT_EQ(c.top_k, 4);
  EXPECT_EQ(c.router.scoring, "softmax");
  EXPECT_TRUE(c.router.norm_topk_prob);
  EXPECT_EQ(c.swiglu.alpha, 1.702);
  EXPECT_EQ(c.swiglu.beta, 1.0);
  EXPECT_EQ(c.swiglu.limit, 7.0);
  const ModelConfig other = read(with(with(gpt_oss(), "swiglu_alpha", 1.5), "swiglu_limit", 5));
  EXPECT_EQ(other.swiglu.alpha, 1.5);
  EXPECT_EQ(other.swiglu.limit, 5.0);
  // GLM-5's limit has no alpha and no beta beside it.
  json glm = glm_4_5();
  glm["model_type"] = "glm5_next_text";
  glm["swiglu_limit"] = 10.0;
  EXPECT_EQ(read(glm).swiglu.limit, 10.0);
  EXPECT_EQ(read(glm).swiglu.alpha, 1.0);
  EXPECT_EQ(read(glm).swiglu.beta, 0.0);
}

TEST(Families, Llama4PutsWeightsOnTheInput) {
  const ModelConfig c = read(llama_4());
  EXPECT_EQ(c.family, "llama-4");
  EXPECT_EQ(c.intermediate, 8192);
  EXPECT_EQ(c.top_k, 1);
  EXPECT_EQ(c.experts, 16);
  EXPECT_EQ(c.router.scoring, "sigmoid");
  EXPECT_FALSE(c.router.norm_topk_prob);
  EXPECT_TRUE(c.router.weights_on_input);
}

TEST(Families, MixtralAlwaysNormalises) {
  const ModelConfig c = read(mixtral());
  EXPECT_EQ(c.intermediate, 14336);
  EXPECT_EQ(c.router.scoring, "softmax");
  EXPECT_TRUE(c.router.norm_topk_prob);
  EXPECT_FALSE(c.router.selection_bias);
  EXPECT_THAT(refused(with(mixtral(), "norm_topk_prob", false)),
              AllOf(HasSubstr("norm_topk_prob is false"), HasSubstr("mixtral always normalises")));
}

TEST(Families, WhatIsTakenForGrantedIsSaid) {
  json unknown = qwen3_moe();
  unknown["model_type"] = "nobody_knows";
  unknown["architectures"] = {"NobodyKnowsForCausalLM"};
  EXPECT_THAT(read(unknown).router.assumptions, SizeIs(1));
  EXPECT_THAT(read(unknown).router.assumptions[0], HasSubstr("scoring_func"));
  unknown.erase("norm_topk_prob");
  EXPECT_THAT(read(unknown).router.assumptions, SizeIs(2));
}

TEST(Families, ActivationsThatAreOthersAreRefusedByName) {
  EXPECT_THAT(refused(nemotron_h()), AllOf(HasSubstr("mlp_hidden_act is 'relu2'"), HasSubstr("not gated")));
  for (const char* gelu : {"gelu", "gelu_pytorch_tanh", "gelu_new"})
    EXPECT_THAT(refused(with(qwen3_moe(), "hidden_act", gelu)), AllOf(HasSubstr(gelu), HasSubstr("GeGLU")));
  EXPECT_THAT(refused(with(qwen3_moe(), "hidden_act", "relu2")), HasSubstr("ReLU2"));
  for (const char* key : {"swiglu_limit", "swiglu_alpha", "swiglu_beta"})
    EXPECT_THAT(refused(with(qwen3_moe(), key, 7.0)), AllOf(HasSubstr(key), HasSubstr("7.0"))) << key;
  EXPECT_THAT(refused(with(gpt_oss(), "swiglu_beta", 2.0)), HasSubstr("swiglu_beta is 2.0"));
}

// What scores, in a key of one family's own: the others' code does not read it, and scores as it does.
TEST(Families, AKeyThatSaysHowItScoresMustSayWhatTheCodeDoes) {
  const char* key = "moe_router_use_sigmoid";
  EXPECT_NO_THROW(read(with(qwen3_moe(), key, false)));
  EXPECT_THAT(refused(with(qwen3_moe(), key, true)), AllOf(HasSubstr("moe_router_use_sigmoid is true"),
                                                           HasSubstr("qwen3-moe's code scores by softmax")));
  EXPECT_NO_THROW(read(with(glm_4_5(), key, true)));
  EXPECT_THAT(refused(with(glm_4_5(), key, false)), HasSubstr("scores by sigmoid"));
  json unknown = qwen3_moe();
  unknown["model_type"] = "nobody_knows";
  unknown["architectures"] = {"NobodyKnowsForCausalLM"};
  EXPECT_THAT(refused(with(unknown, key, true)), HasSubstr("the code of most models scores by softmax"));
  EXPECT_NO_THROW(read(with(with(unknown, "scoring_func", "sigmoid"), key, true)));
}

// A key that sounds like routed experts is known or a refusal.
TEST(Families, KeysThatNobodyKnowsAreRefusedWithTheirValue) {
  for (const char* key : {"moe_frobnicate", "router_temperature", "num_experts_extra", "expert_dropout_rate",
                          "swiglu_limits", "routed_output_scale", "moe_config_x", "clamp_limit", "mlp_type",
                          "gate_type", "use_sigmoid", "ffn_activation"})
    EXPECT_THAT(refused(with(qwen3_moe(), key, 3)), AllOf(HasSubstr(std::string(key) + " is 3"))) << key;
  EXPECT_NO_THROW(read(with(qwen3_moe(), "moe_frobnicate", nullptr)));
  EXPECT_NO_THROW(read(with(qwen3_moe(), "rope_theta", 1e6)));
  for (const auto& [key, neutral, other] : {std::tuple<const char*, json, json>{"mlp_bias", false, true},
                                            {"moe_router_logit_softcapping", 0.0, 30.0},
                                            {"moe_routed_scaling_factor", 1.0, 2.5},
                                            {"zero_expert_num", 0, 64},
                                            {"moe_latent_size", nullptr, 1024}}) {
    EXPECT_NO_THROW(read(with(qwen3_moe(), key, neutral))) << key;
    EXPECT_THAT(refused(with(qwen3_moe(), key, other)),
                AllOf(HasSubstr(std::string(key) + " is " + other.dump())));
  }
  // Also where the text part's keys stand, and beside them; not in another part.
  json llama = llama_4();
  llama["text_config"]["moe_frobnicate"] = 3;
  EXPECT_THAT(refused(llama), HasSubstr("moe_frobnicate is 3"));
  EXPECT_THAT(refused(with(llama_4(), "expert_x", 3)), HasSubstr("expert_x is 3"));
}

// Muse Spark's code has values of its own for what its file leaves out.
TEST(Families, MuseSparksOwnValuesAreSaid) {
  json told = {{"model_type", "muse_spark_text"}, {"hidden_size", 256},  {"moe_hidden_size", 256},
               {"moe_intermediate_size", 128},    {"num_experts", 4},    {"num_experts_per_tok", 2},
               {"num_hidden_layers", 1},          {"hidden_act", "silu"}};
  EXPECT_THAT(read(told).router.assumptions,
              ElementsAre(HasSubstr("no output_multiplier: 0.1767"), HasSubstr("no rms_norm_eps: 1e-05"),
                          HasSubstr("no post_norm_eps: 1e-08")));
  told["output_multiplier"] = 0.5;
  told["rms_norm_eps"] = 1e-6;
  told["post_norm_eps"] = 0.0;
  EXPECT_THAT(read(told).router.assumptions, IsEmpty());
}

// What no name tells about is said, and not dropped in silence.
TEST(Families, KeysThatMayBeAnythingAreNoted) {
  EXPECT_THAT(read(qwen3_moe()).unknown_keys, IsEmpty());
  EXPECT_THAT(notes_of(read(qwen3_moe())), IsEmpty());
  json odd = llama_4();
  odd["frobnicate"] = 3;
  odd["text_config"]["alpha_of_all"] = "x";
  odd["text_config"]["nothing"] = nullptr;
  const ModelConfig config = read(odd);
  EXPECT_THAT(config.unknown_keys,
              ElementsAre(HasSubstr("text_config.alpha_of_all is"), HasSubstr("frobnicate is 3")));
  EXPECT_THAT(notes_of(config), ElementsAre(AllOf(HasSubstr("2 keys that kerf does not know"),
                                                  HasSubstr("alpha_of_all"), HasSubstr("frobnicate is 3"))));
  json many = qwen3_moe();
  for (int i = 0; i < 9; ++i) many["odd_" + std::to_string(i)] = i;
  EXPECT_THAT(notes_of(read(many)),
              ElementsAre(AllOf(HasSubstr("9 keys"), HasSubstr("odd_8 is 8 (number)"))));
  for (int i = 9; i < 120; ++i) many["odd_" + std::to_string(i)] = std::string(500, 'x');
  EXPECT_THAT(notes_of(read(many)), ElementsAre(AllOf(HasSubstr("120 keys"), HasSubstr(" and 20 more"))));
}

TEST(Families, WaysToChooseThatAreOthersAreRefused) {
  json grouped = deepseek_v3();
  grouped.update(
      {{"model_type", "deepseek_v2"}, {"scoring_func", "softmax"}, {"topk_method", "group_limited_greedy"}});
  EXPECT_THAT(refused(grouped), AllOf(HasSubstr("group_limited_greedy"), HasSubstr("n_group 8")));
  EXPECT_THAT(refused(with(deepseek_v3(), "scoring_func", "sqrtsoftplus")), HasSubstr("sqrtsoftplus"));
  EXPECT_THAT(refused(with(deepseek_v3(), "topk_method", "dice")), HasSubstr("topk_method is 'dice'"));
}

json compressed(const json& group) {
  return with(qwen3_moe(), "quantization_config",
              {{"quant_method", "compressed-tensors"},
               {"format", "nvfp4-pack-quantized"},
               {"config_groups", {{"group_0", group}}},
               {"ignore", {"lm_head", "re:.*mlp.gate$"}}});
}
const json kFour = {{"num_bits", 4},     {"type", "float"}, {"group_size", 16}, {"strategy", "tensor_group"},
                    {"symmetric", true}, {"dynamic", false}};

TEST(Families, CompressedTensorsGroups) {
  const json linear = {"Linear"};
  const ModelConfig w4a4 = read(compressed(
      {{"targets", linear}, {"weights", kFour}, {"input_activations", with(kFour, "dynamic", "local")}}));
  EXPECT_EQ(w4a4.quant_algo, "NVFP4");
  EXPECT_THAT(w4a4.quantised_modules, IsEmpty());
  EXPECT_THAT(w4a4.excluded_modules, testing::ElementsAre("lm_head", "re:.*mlp.gate$"));
  EXPECT_EQ(excluded_layers(w4a4), 0);
  EXPECT_EQ(
      read(compressed({{"targets", linear}, {"weights", kFour}, {"input_activations", nullptr}})).quant_algo,
      "W4A16_NVFP4");
  const ModelConfig some = read(compressed(
      {{"targets", {"re:.*\\.layers\\.(?:[3-9]|[1-3][0-9])\\.mlp\\.experts\\..*(gate|up|down)_proj$"}},
       {"weights", kFour}}));
  EXPECT_THAT(some.quantised_modules, SizeIs(1));
  EXPECT_EQ(excluded_layers(some), 48 - 37);  // layers 3 to 39 are quantised
  for (const auto& [key, value] : {std::pair<const char*, json>{"num_bits", 8},
                                   {"type", "int"},
                                   {"group_size", 32},
                                   {"symmetric", false},
                                   {"strategy", "channel"}})
    EXPECT_THAT(refused(compressed({{"targets", linear}, {"weights", with(kFour, key, value)}})),
                HasSubstr("nvfp4-pack-quantized' has "))
        << key;
  EXPECT_THAT(
      refused(compressed(
          {{"targets", linear}, {"weights", kFour}, {"input_activations", with(kFour, "dynamic", true)}})),
      HasSubstr("dynamic is true"));
  json turned = compressed({{"targets", linear}, {"weights", kFour}});
  turned["quantization_config"]["transform_config"] = {{"config_groups", {{"u", 1}}}};
  EXPECT_THAT(refused(turned), HasSubstr("transform_config"));
}

}  // namespace
}  // namespace kerf::checkpoint
