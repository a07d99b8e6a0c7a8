#include "kerf/checkpoint/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "tests/checkpoint/refusal.h"

namespace kerf::checkpoint {
namespace {

using test::refusal;
using test::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Members = std::map<std::string, std::string>;

const Members kPlain = {{"hidden_size", "256"},     {"moe_intermediate_size", "128"},
                        {"num_experts", "4"},       {"num_experts_per_tok", "2"},
                        {"num_hidden_layers", "3"}, {"hidden_act", R"("silu")"}};

std::string object(const Members& members) {
  std::string text;
  for (const auto& [key, value] : members) {
    text += text.empty() ? "{\"" : ",\"";
    text += key;
    text += "\":";
    text += value;
  }
  return text + "}";
}

Members with(Members members, const std::string& key, const std::string& value) {
  members[key] = value;
  return members;
}

Members without(Members members, const std::string& key) {
  members.erase(key);
  return members;
}

ModelConfig read(const std::string& config, const std::string& quant = "") {
  const TempDir dir;
  std::ofstream(dir.path() / "config.json") << config;
  if (!quant.empty()) std::ofstream(dir.path() / "hf_quant_config.json") << quant;
  return read_config(dir.path());
}

ModelConfig read(const Members& members) { return read(object(members)); }

std::string refused(const std::string& config, ErrorKind kind = ErrorKind::checkpoint,
                    const std::string& quant = "") {
  return refusal([&] { read(config, quant); }, kind);
}
std::string refused(const Members& members, ErrorKind kind = ErrorKind::checkpoint) {
  return refused(object(members), kind);
}

TEST(Config, PlainModel) {
  const ModelConfig config =
      read(with(with(kPlain, "architectures", R"(["Qwen3MoeForCausalLM"])"), "norm_topk_prob", "true"));
  EXPECT_EQ(config.architecture, "Qwen3MoeForCausalLM");
  EXPECT_EQ(config.family, "qwen3-moe");
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.experts, 4);
  EXPECT_EQ(config.hidden, 256);
  EXPECT_EQ(config.model_hidden, 256);
  EXPECT_EQ(config.intermediate, 128);
  EXPECT_EQ(config.top_k, 2);
  EXPECT_EQ(config.activation, "silu");
  EXPECT_EQ(config.router.scoring, "softmax");
  EXPECT_TRUE(config.router.norm_topk_prob);
  EXPECT_EQ(config.router.routed_scaling, 1.0);
  EXPECT_EQ(config.router.logit_multiplier, 1.0);
  EXPECT_EQ(config.router.sum_epsilon, 1e-20);
  EXPECT_FALSE(config.router.selection_bias);
  EXPECT_FALSE(config.post_norm);
  EXPECT_EQ(config.quant_algo, "");
}

TEST(Config, RouterOfADeepSeekModel) {
  Members members = without(kPlain, "num_experts");
  members.insert({{"n_routed_experts", "256"},
                  {"n_group", "8"},
                  {"topk_group", "4"},
                  {"scoring_func", R"("sigmoid")"},
                  {"topk_method", R"("noaux_tc")"},
                  {"norm_topk_prob", "false"},
                  {"routed_scaling_factor", "2.5"}});
  const ModelConfig config = read(members);
  EXPECT_EQ(config.experts, 256);
  EXPECT_EQ(config.router.scoring, "sigmoid");
  EXPECT_EQ(config.router.n_group, 8);
  EXPECT_EQ(config.router.topk_group, 4);
  EXPECT_TRUE(config.router.selection_bias);
  EXPECT_FALSE(config.router.norm_topk_prob);
  EXPECT_EQ(config.router.routed_scaling, 2.5);
}

TEST(Config, MuseSparkUnderTextConfig) {
  const Members text = {{"model_type", R"("muse_spark_text")"},
                        {"hidden_size", "8192"},
                        {"moe_hidden_size", "4096"},
                        {"moe_intermediate_size", "2048"},
                        {"num_local_experts", "256"},
                        {"num_experts_per_tok", "8"},
                        {"num_hidden_layers", "62"},
                        {"hidden_act", R"("silu")"}};
  const auto config_of = [](const Members& inner) {
    return read(
        object({{"text_config", object(inner)}, {"hidden_size", "77"}, {"architectures", R"(["X"])"}}));
  };
  const ModelConfig config = config_of(text);
  EXPECT_EQ(config.model_hidden, 8192);
  EXPECT_EQ(config.hidden, 4096);
  EXPECT_EQ(config.intermediate, 2048);
  EXPECT_EQ(config.experts, 256);
  EXPECT_EQ(config.router.scoring, "sigmoid");
  EXPECT_TRUE(config.router.selection_bias);
  EXPECT_EQ(config.router.logit_multiplier, std::exp2(-2.5));
  EXPECT_EQ(config.router.sum_epsilon, 1e-15);
  ASSERT_TRUE(config.post_norm);
  EXPECT_EQ(config.post_norm->eps, 1e-8);
  EXPECT_EQ(config.post_norm->gain_center, 1.0);
  EXPECT_TRUE(config.post_norm->gain_before_norm);
  ASSERT_TRUE(config.pool);
  EXPECT_EQ(config.pool->norm_eps, 1e-5);
  EXPECT_EQ(config.pool->gain_center, 1.0);
  EXPECT_EQ(config_of(with(text, "rms_norm_eps", "1e-7")).pool->norm_eps, 1e-7);
  const ModelConfig other = config_of(with(with(text, "output_multiplier", "0.5"), "post_norm_eps", "1e-6"));
  EXPECT_EQ(other.router.logit_multiplier, 0.5);
  EXPECT_EQ(other.post_norm->eps, 1e-6);
  // The architecture alone tells as well.
  const ModelConfig named = read(with(kPlain, "architectures", R"(["MuseSpark1xForCausalLM"])"));
  EXPECT_EQ(named.router.scoring, "sigmoid");
  EXPECT_EQ(named.hidden, 256);
  EXPECT_THAT(refused(with(kPlain, "text_config", "3")),
              AllOf(HasSubstr("text_config is 3"), HasSubstr("an object")));
  EXPECT_EQ(read(with(kPlain, "text_config", "null")).hidden, 256);
}

// What one family's code alone does is refused elsewhere by name and value, unless it does nothing there.
TEST(Config, WhatMuseSparkHasIsRefusedElsewhere) {
  constexpr auto unsupported = ErrorKind::unsupported;
  for (const char* type : {"qwen3_moe", "deepseek_v3", "minimax_m2", "nobody_knows"}) {
    const Members other =
        with(with(with(kPlain, "model_type", '"' + std::string(type) + '"'), "num_experts", "16"),
             "norm_topk_prob", "true");
    EXPECT_EQ(read(other).router.logit_multiplier, 1.0) << type;
    EXPECT_EQ(read(with(other, "output_multiplier", "1.0")).router.logit_multiplier, 1.0) << type;
    EXPECT_THAT(refused(with(other, "output_multiplier", "2.0"), unsupported),
                AllOf(HasSubstr("config.json: output_multiplier is 2.0"), HasSubstr("wanted 1")))
        << type;
    for (const char* value : {"0", "-1", "1e+39", "Infinity", "NaN", "true"})
      EXPECT_THAT(refused(with(other, "output_multiplier", value)),
                  AllOf(HasSubstr(std::string("output_multiplier is ") + value), HasSubstr("wanted a")))
          << type;
    EXPECT_THAT(refused(with(other, "moe_hidden_size", "128"), unsupported),
                HasSubstr("config.json: moe_hidden_size is 128, kerf knows it in Muse Spark alone"))
        << type;
    EXPECT_THAT(
        refused(with(other, "post_norm_eps", "1e-8"), unsupported),
        HasSubstr(
            "config.json: post_norm_eps is 1e-08, kerf knows a norm after the experts in Muse Spark alone"))
        << type;
  }
}

// Python's json module writes them where a number is not finite.
TEST(Config, NumbersThatAreNotFinite) {
  for (const char* value : {"Infinity", "-Infinity", "NaN", "[0.0, Infinity]", R"({"a": NaN})"}) {
    EXPECT_EQ(read(with(kPlain, "time_step_limit", value)).experts, 4) << value;
    EXPECT_EQ(
        read(object(kPlain), R"({"quantization": {"quant_algo": "NVFP4"}, "x": )" + std::string(value) + "}")
            .quant_algo,
        "NVFP4");
  }
  for (const char* key : {"routed_scaling_factor", "num_experts", "moe_intermediate_size", "n_group",
                          "norm_topk_prob", "hidden_act", "num_hidden_layers"})
    for (const char* value : {"Infinity", "-Infinity", "NaN"})
      EXPECT_THAT(refused(with(kPlain, key, value)),
                  AllOf(HasSubstr(std::string("config.json: ") + key + " is " + value + " (number)"),
                        HasSubstr("wanted")))
          << key;
  EXPECT_THAT(refused(with(kPlain, "swiglu_limit", "Infinity"), ErrorKind::unsupported),
              HasSubstr("swiglu_limit is Infinity"));
  EXPECT_THAT(refused(with(kPlain, "mlp_bias", "NaN"), ErrorKind::unsupported), HasSubstr("mlp_bias is NaN"));
  EXPECT_THAT(refused(std::string("{\"a\": infinity}")), HasSubstr("not valid JSON at byte"));
}

TEST(Config, SharedExpertsAndPool) {
  const ModelConfig plain = read(with(kPlain, "rms_norm_eps", "1e-6"));
  EXPECT_FALSE(plain.pool);
  EXPECT_EQ(plain.shared_experts, 0);
  EXPECT_EQ(read(with(kPlain, "num_shared_experts", "0")).shared_experts, 0);
  EXPECT_EQ(read(with(kPlain, "num_shared_experts", "2")).shared_experts, 2);
  EXPECT_EQ(read(with(kPlain, "n_shared_experts", "1")).shared_experts, 1);
  EXPECT_EQ(read(with(kPlain, "shared_expert_intermediate_size", "512")).shared_experts, 1);
  EXPECT_EQ(read(with(kPlain, "shared_expert_intermediate_size", "0")).shared_experts, 0);
  EXPECT_EQ(read(with(with(kPlain, "num_shared_experts", "0"), "n_shared_experts", "2")).shared_experts, 2);
  for (const char* key : {"num_shared_experts", "n_shared_experts", "shared_expert_intermediate_size"})
    for (const char* value : {R"("2")", "18446744073709551615", "-1", "1.5"})
      EXPECT_THAT(refused(with(kPlain, key, value)), HasSubstr(std::string(key) + " is "));
}

// Literal names cost a look-up each, globs a match with every layer: of those no more than can be made.
TEST(Config, ExcludedLayersAreCountedOrRefusedInTime) {
  ModelConfig config;
  config.layers = 4;
  config.experts = 4;
  config.excluded_modules = {"model.layers.1.mlp.experts", "model.language_model.layers.3.*", "lm_head"};
  EXPECT_EQ(excluded_layers(config), 2);
  config.layers = 1 << 20;
  for (int i = 0; i < 20'000; ++i)
    config.excluded_modules.push_back("model.layers.7.self_attn." + std::to_string(i));
  EXPECT_EQ(excluded_layers(config), 2);
  for (int i = 0; i < 2; ++i) config.excluded_modules.push_back("*.self_attn.*");
  EXPECT_THAT(refusal([&] { (void)excluded_layers(config); }, ErrorKind::unsupported),
              HasSubstr("3 patterns of modules"));
}

// As numbers they are used in f32: what f32 does not hold, or turns results into NaN, is refused.
TEST(Config, NumbersThatF32CannotUse) {
  const Members muse = with(kPlain, "architectures", R"(["MuseSparkForCausalLM"])");
  for (const char* key : {"post_norm_eps", "output_multiplier", "routed_scaling_factor"}) {
    for (const char* value : {"-1.0", "-1e-08", "-1e-50", "1e+39", "3.5e+38", "true"})
      EXPECT_THAT(refused(with(muse, key, value)), AllOf(HasSubstr(std::string(key) + " is " + value),
                                                         HasSubstr("config.json"), HasSubstr("wanted a")));
    EXPECT_NO_THROW(read(with(muse, key, "1e-45")));
    EXPECT_NO_THROW(read(with(muse, key, "3e38")));
  }
  for (const char* zero : {"0", "0.0", "1e-50"}) {
    EXPECT_NO_THROW(read(with(muse, "post_norm_eps", zero)));
    for (const char* key : {"output_multiplier", "routed_scaling_factor"})
      EXPECT_THAT(refused(with(muse, key, zero)), HasSubstr("wanted a finite f32 above 0"));
  }
}

TEST(Config, NamesOfSizes) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"})
    EXPECT_EQ(read(with(without(kPlain, "num_experts"), key, "6")).experts, 6) << key;
  EXPECT_EQ(read(with(without(kPlain, "num_experts_per_tok"), "moe_topk", "3")).top_k, 3);
  EXPECT_EQ(read(with(without(kPlain, "moe_intermediate_size"), "intermediate_size", "192")).intermediate,
            192);
  EXPECT_EQ(read(with(kPlain, "intermediate_size", "999")).intermediate, 128);
  EXPECT_EQ(read(with(kPlain, "num_local_experts", "4")).experts, 4);
  EXPECT_EQ(read(with(kPlain, "num_local_experts", "null")).experts, 4);
  EXPECT_THAT(refused(with(kPlain, "num_local_experts", "5")),
              AllOf(HasSubstr("num_experts is 4"), HasSubstr("num_local_experts is 5")));
}

TEST(Config, MissingSizesAreNamed) {
  for (const auto& [key, value] : kPlain)
    EXPECT_THAT(refused(without(kPlain, key)),
                AllOf(HasSubstr("config.json"), HasSubstr("no "), HasSubstr(key)))
        << key;
}

TEST(Config, WrongTypesAreNamed) {
  for (const char* key : {"hidden_size", "moe_intermediate_size", "num_experts", "num_experts_per_tok",
                          "num_hidden_layers", "moe_hidden_size"})
    for (const char* bad : {"\"256\"", "256.0", "-1", "0", "[256]", "true", "1048577", "18446744073709551615",
                            "-9223372036854775808"})
      EXPECT_THAT(refused(with(kPlain, key, bad)),
                  AllOf(HasSubstr("config.json"), HasSubstr(key), HasSubstr(std::string(" is ") + bad),
                        HasSubstr("wanted an integer")))
          << key;
  EXPECT_THAT(refused(with(kPlain, "hidden_act", "1")),
              AllOf(HasSubstr("hidden_act is 1"), HasSubstr("a string")));
  EXPECT_THAT(refused(with(kPlain, "norm_topk_prob", "1")), HasSubstr("norm_topk_prob is 1"));
  EXPECT_THAT(refused(with(kPlain, "routed_scaling_factor", "\"x\"")),
              HasSubstr("routed_scaling_factor is \"x\""));
  EXPECT_THAT(refused(with(kPlain, "n_group", "1.5")), HasSubstr("n_group is 1.5"));
  EXPECT_THAT(refused(with(kPlain, "architectures", "\"x\"")), HasSubstr("architectures is \"x\""));
  EXPECT_THAT(refused(with(kPlain, "architectures", "[1]")), HasSubstr("architectures is 1"));
  EXPECT_THAT(refused(with(kPlain, "num_experts_per_tok", "5")),
              AllOf(HasSubstr("5 experts per token"), HasSubstr("at most the 4")));
}

TEST(Config, UnsupportedParametersAreNamed) {
  constexpr auto unsupported = ErrorKind::unsupported;
  EXPECT_THAT(refused(with(kPlain, "hidden_act", "\"gelu\""), unsupported),
              AllOf(HasSubstr("hidden_act"), HasSubstr("gelu")));
  EXPECT_THAT(refused(with(kPlain, "swiglu_limit", "7.0"), unsupported),
              AllOf(HasSubstr("swiglu_limit"), HasSubstr("7.0")));
  EXPECT_THAT(refused(with(kPlain, "scoring_func", "\"tanh\""), unsupported),
              AllOf(HasSubstr("scoring_func"), HasSubstr("tanh")));
  EXPECT_EQ(read(with(kPlain, "hidden_act", "\"swiglu\"")).activation, "silu");
}

TEST(Config, DamagedFiles) {
  EXPECT_THAT(refused(std::string("")), AllOf(HasSubstr("config.json"), HasSubstr("not valid JSON")));
  EXPECT_THAT(refused(std::string("[1]")), HasSubstr("wanted an object"));
  EXPECT_THAT(refused(std::string("{\"a\":1,\"a\":2}")), HasSubstr("'a' comes twice"));
  EXPECT_THAT(refused(object(kPlain), ErrorKind::checkpoint, "{"),
              AllOf(HasSubstr("hf_quant_config.json"), HasSubstr("not valid JSON")));
  EXPECT_THAT(refused(object(kPlain), ErrorKind::checkpoint, "{}"), HasSubstr("no quantization"));
  EXPECT_THAT(refused(object(kPlain), ErrorKind::checkpoint, R"({"quantization": 1})"), HasSubstr("got 1"));
}

std::string quant(const std::string& inner) { return R"({"quantization": {)" + inner + "}}"; }

TEST(Config, QuantisationInItsOwnFile) {
  const ModelConfig config =
      read(object(kPlain),
           quant(R"("quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head", "a*"])"));
  EXPECT_EQ(config.quant_algo, "NVFP4");
  EXPECT_EQ(config.group_size, 16);
  EXPECT_THAT(config.excluded_modules, ElementsAre("lm_head", "a*"));
  EXPECT_EQ(read(object(kPlain), quant(R"("quant_algo": "W4A16_NVFP4")")).quant_algo, "W4A16_NVFP4");
  EXPECT_EQ(read(object(kPlain), quant(R"("quant_algo": null)")).quant_algo, "");
  constexpr auto unsupported = ErrorKind::unsupported;
  EXPECT_THAT(refused(object(kPlain), unsupported, quant(R"("quant_algo": "FP8")")),
              AllOf(HasSubstr("quant_algo"), HasSubstr("FP8"), HasSubstr("hf_quant_config.json")));
  EXPECT_THAT(refused(object(kPlain), unsupported, quant(R"("quant_algo": "NVFP4", "group_size": 32)")),
              AllOf(HasSubstr("group_size is 32"), HasSubstr("16")));
  EXPECT_THAT(refused(object(kPlain), ErrorKind::checkpoint, quant(R"("quant_algo": 4)")),
              HasSubstr("quant_algo is 4"));
  EXPECT_THAT(refused(object(kPlain), ErrorKind::checkpoint,
                      quant(R"("quant_algo": "NVFP4", "exclude_modules": [1])")),
              HasSubstr("exclude_modules is 1"));
  EXPECT_THAT(
      refused(object(kPlain), ErrorKind::checkpoint, quant(R"("quant_algo": "NVFP4", "group_size": "16")")),
      HasSubstr("group_size is \"16\""));
}

TEST(Config, QuantisationInConfig) {
  const auto inside = [](const std::string& inner) {
    return object(with(kPlain, "quantization_config", inner));
  };
  const std::string modern = R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
      "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 16}, "input_activations": {"num_bits": 4}}}})";
  const ModelConfig config = read(inside(modern));
  EXPECT_EQ(config.quant_algo, "NVFP4");
  EXPECT_THAT(config.excluded_modules, ElementsAre("lm_head"));
  EXPECT_EQ(read(inside(quant(R"("quant_algo": "NVFP4")"))).quant_algo, "NVFP4");
  EXPECT_EQ(read(inside("null")).quant_algo, "");
  constexpr auto unsupported = ErrorKind::unsupported;
  EXPECT_THAT(refused(inside(R"({"quant_method": "fp8"})"), unsupported),
              AllOf(HasSubstr("quant_method"), HasSubstr("fp8")));
  EXPECT_THAT(refused(inside("{}")), HasSubstr("no quant_algo"));
  EXPECT_THAT(refused(inside("3")), HasSubstr("got 3"));
  EXPECT_THAT(
      refused(
          inside(
              R"({"quant_algo": "NVFP4", "config_groups": {"g": {"weights": {"group_size": 8}, "input_activations": {}}}})"),
          unsupported),
      HasSubstr("group_size is 8"));
  // The two files must say the same.
  EXPECT_THAT(refused(inside(modern), ErrorKind::checkpoint, quant(R"("quant_algo": "W4A16_NVFP4")")),
              AllOf(HasSubstr("W4A16_NVFP4"), HasSubstr("says NVFP4")));
}

TEST(Config, ModelConfigAlone) {
  const TempDir dir;
  std::ofstream(dir.path() / "config.json") << object(kPlain);
  std::ofstream(dir.path() / "hf_quant_config.json") << "not read";
  EXPECT_EQ(read_model_config(dir.path()).experts, 4);
  EXPECT_EQ(read_model_config(dir.path() / "config.json").experts, 4);
  EXPECT_THAT(refusal([&] { read_model_config(dir.path() / "absent.json"); }), HasSubstr("absent.json"));
}

}  // namespace
}  // namespace kerf::checkpoint
