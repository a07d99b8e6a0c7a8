// Keys of the two quantisation tools that change the numbers: each has the value that NVFP4 has, or is
// refused with key and value; and which of the experts' modules they speak of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "kerf/tools/verify.h"
#include "tests/checkpoint/refusal.h"
#include "tests/support/dialects.h"

namespace kerf::checkpoint {
namespace {

using nlohmann::json;
using test::Onehot;
using test::refusal;
using test::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As llm-compressor 0.14 writes it, defaults and all.
const json kValues = {{"actorder", nullptr},
                      {"block_structure", nullptr},
                      {"dynamic", false},
                      {"group_size", 16},
                      {"num_bits", 4},
                      {"observer", "memoryless_minmax"},
                      {"observer_kwargs", json::object()},
                      {"scale_dtype", "torch.float8_e4m3fn"},
                      {"strategy", "tensor_group"},
                      {"symmetric", true},
                      {"type", "float"},
                      {"zp_dtype", nullptr}};

json compressed() {
  json inputs = kValues;
  inputs["dynamic"] = "local";
  return {{"quant_method", "compressed-tensors"},
          {"format", "nvfp4-pack-quantized"},
          {"quantization_status", "compressed"},
          {"global_compression_ratio", nullptr},
          {"kv_cache_scheme", nullptr},
          {"sparsity_config", json::object()},
          {"transform_config", json::object()},
          {"version", "0.19.0"},
          {"ignore", {"lm_head"}},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"weights", kValues},
              {"input_activations", inputs},
              {"output_activations", nullptr},
              {"format", "nvfp4-pack-quantized"}}}}}};
}

ModelConfig read(const json& quantisation) {
  const TempDir dir;
  std::ofstream(dir.path() / "config.json") << json{
      {"hidden_size", 256},
      {"moe_intermediate_size", 128},
      {"num_experts", 4},
      {"num_experts_per_tok", 2},
      {"num_hidden_layers", 1},
      {"hidden_act", "silu"},
      {"quantization_config", quantisation}}.dump();
  return read_model_config(dir.path());
}

// At a JSON pointer.
json with(json base, const std::string& at, const json& value) {
  base[json::json_pointer(at)] = value;
  return base;
}

std::string refused(const json& quantisation, ErrorKind kind = ErrorKind::unsupported) {
  return refusal([&] { (void)read(quantisation); }, kind);
}

TEST(QuantisationKeys, CompressedTensorsValuesThatAreOthers) {
  EXPECT_EQ(read(compressed()).quant_algo, "NVFP4");
  const std::string group = "/config_groups/group_0/";
  struct Case {
    const char* at;
    json value;
    const char* said;
  };
  for (const Case& c :
       {Case{"weights/num_bits", 8, "weights.num_bits is 8"},
        Case{"weights/type", "int", "weights.type is \"int\""},
        Case{"weights/group_size", 32, "weights.group_size is 32"},
        Case{"weights/strategy", "group", "weights.strategy is \"group\""},
        Case{"weights/symmetric", false, "weights.symmetric is false"},
        Case{"weights/dynamic", true, "weights.dynamic is true"},
        Case{"weights/dynamic", "local", "weights.dynamic is \"local\""},
        Case{"weights/actorder", "group", "weights.actorder is \"group\""},
        Case{"weights/block_structure", {128, 128}, "weights.block_structure is [128,128]"},
        Case{"weights/scale_dtype", "torch.float16", "weights.scale_dtype is \"torch.float16\""},
        Case{"weights/rotation", "hadamard", "weights.rotation is \"hadamard\""},
        Case{"input_activations/num_bits", 8, "input_activations.num_bits is 8"},
        Case{"input_activations/dynamic", true, "input_activations.dynamic is true"},
        Case{"input_activations/strategy", "token", "input_activations.strategy is \"token\""},
        Case{"input_activations/symmetric", false, "input_activations.symmetric is false"},
        Case{"input_activations/actorder", "weight", "input_activations.actorder is \"weight\""},
        Case{"weights/strategy", nullptr, "weights.strategy is null, NVFP4 has tensor_group"},
        Case{"weights/symmetric", nullptr, "weights.symmetric is null, NVFP4 has true"},
        Case{"output_activations", kValues, "output_activations is {"},
        Case{"format", "float-quantized", "format is \"float-quantized\", wanted nvfp4-pack-quantized"},
        Case{"smooth", 3, "smooth is 3"}})
    EXPECT_THAT(refused(with(compressed(), group + c.at, c.value)),
                AllOf(HasSubstr("config.json: quantization_config"), HasSubstr("config_groups.group_0: "),
                      HasSubstr(c.said)))
        << c.at;
  // The format before what follows from it: Kimi-K2-Thinking's int4.
  json int4 = with(with(compressed(), group + "format", "pack-quantized"), group + "weights/group_size", 32);
  EXPECT_THAT(refused(int4), HasSubstr("format is \"pack-quantized\""));
  json bare = compressed();
  bare["config_groups"]["group_0"]["weights"].erase("strategy");
  EXPECT_THAT(refused(bare), HasSubstr("weights has no strategy"));
  EXPECT_THAT(refused(with(compressed(), "/format", "int-quantized")),
              HasSubstr("format is \"int-quantized\""));
  json silent = with(compressed(), group + "format", nullptr);
  EXPECT_THAT(refused(with(silent, "/format", "float-quantized")),
              HasSubstr("format is \"float-quantized\""));
  EXPECT_THAT(refused(with(compressed(), "/moe_sparsity_config", {{"a", 1}})),
              HasSubstr("moe_sparsity_config is"));
  for (const json& targets : {json::array(), json()})
    EXPECT_THAT(refused(with(compressed(), group + "targets", targets), ErrorKind::checkpoint),
                AllOf(HasSubstr("config_groups.group_0: targets is "), HasSubstr("wanted names")));
}

TEST(QuantisationKeys, CompressedTensorsValuesThatChangeNothing) {
  const std::string group = "/config_groups/group_0/";
  for (const auto& [at, value] : {std::pair<const char*, json>{"weights/actorder", "weight"},
                                  {"weights/actorder", "static"},
                                  {"weights/observer", "mse"},
                                  {"weights/type", "FLOAT"},
                                  {"weights/scale_dtype", nullptr},
                                  {"input_activations/dynamic", false},
                                  {"format", nullptr}})
    EXPECT_EQ(read(with(compressed(), group + at, value)).quant_algo, "NVFP4") << at;
  EXPECT_EQ(read(with(compressed(), group + "input_activations", nullptr)).quant_algo, "W4A16_NVFP4");
  EXPECT_EQ(read(with(compressed(), "/kv_cache_scheme", kValues)).quant_algo, "NVFP4");
}

// Which of two groups counts is another matter in every tool.
TEST(QuantisationKeys, GroupsThatShareATarget) {
  json two = compressed();
  json& groups = two["config_groups"];
  groups["group_1"] = groups["group_0"];
  EXPECT_EQ(read(two).quant_algo, "NVFP4");
  groups["group_1"]["input_activations"] = nullptr;
  EXPECT_THAT(refused(two, ErrorKind::checkpoint),
              AllOf(HasSubstr("config_groups.group_0 and config_groups.group_1"), HasSubstr("'Linear'")));
  groups["group_1"]["targets"] = {"re:.*self_attn.*"};
  EXPECT_EQ(read(two).quant_algo, "MIXED_PRECISION");
  EXPECT_EQ(excluded_layers(read(two)), 0);
  groups["group_1"]["targets"] = {"Embedding"};
  EXPECT_EQ(excluded_layers(read(two)), 0);
  for (const char* router : {"MoEGate", "TopkRouterMLP"}) {  // no class that experts are of
    groups["group_1"]["targets"] = {router};
    EXPECT_EQ(excluded_layers(read(two)), 0) << router;
    json alone = compressed();
    alone["config_groups"]["group_0"]["targets"] = {router};
    const ModelConfig config = read(alone);
    EXPECT_EQ(excluded_layers(config), config.layers) << router;
  }
  groups["group_1"]["targets"] = {"FusedMoELinear"};
  EXPECT_THAT(
      refusal([&] { (void)excluded_layers(read(two)); }),
      AllOf(HasSubstr("the class FusedMoELinear for W4A16_NVFP4"), HasSubstr("the class Linear for NVFP4")));
}

// All of a layer's experts are left out, or none.
TEST(QuantisationKeys, SomeOfALayersExpertsLeftOut) {
  const auto counted = [](const json& ignored) {
    return excluded_layers(read(with(compressed(), "/ignore", ignored)));
  };
  const auto some = [](const json& ignored) {
    return refusal([&] { (void)excluded_layers(read(with(compressed(), "/ignore", ignored))); });
  };
  const std::string experts = "model.layers.0.mlp.experts";
  json all;
  json gates;
  for (int e = 0; e < 4; ++e)
    for (const char* projection : {".gate_proj", ".up_proj", ".down_proj"}) {
      all.push_back(experts + "." + std::to_string(e) + projection);
      if (std::string(projection) == ".gate_proj") gates.push_back(all.back());
    }
  EXPECT_EQ(counted(all), 1);
  EXPECT_EQ(counted({experts}), 1);
  EXPECT_EQ(counted({"re:.*experts.*"}), 1);
  EXPECT_EQ(counted({"re:.*experts\\.\\d+\\..*"}), 1);
  EXPECT_EQ(counted({"model.layers.0.mlp.gate", "model.layers.1.mlp.experts.2"}), 0);
  for (const std::string& one : {experts + ".2", experts + ".0", experts + ".3.down_proj"})
    EXPECT_THAT(some({one}), AllOf(HasSubstr("quantization_config: layer 0: ignore leaves out " + one),
                                   HasSubstr(" but not "), HasSubstr("wanted all of its experts or none")));
  EXPECT_THAT(some(gates), HasSubstr("0.gate_proj but not " + experts + ".0.up_proj"));
  json most = all;
  most.erase(most.size() - 1);
  EXPECT_THAT(some(most), HasSubstr("but not " + experts + ".3.down_proj"));
  for (const char* pattern : {"re:.*experts\\.0\\..*", "re:.*experts\\.[12]\\..*", "*.experts.3.*",
                              "re:.*gate_proj", "re:.*down_proj$"})
    EXPECT_THAT(some({pattern}), HasSubstr("ignore leaves out ")) << pattern;
}

// Without tensors, names are the family's: what another model calls its modules is none of this one's.
TEST(QuantisationKeys, NamesOfOtherModelsLeaveNothingOut) {
  const auto counted = [](const char* pattern, const char* type) {
    const TempDir dir;
    json quantisation = {{"quant_algo", "NVFP4"}, {"ignore", {pattern}}};
    std::ofstream(dir.path() / "config.json")
        << json{{"hidden_size", 256},   {"moe_intermediate_size", 128}, {"intermediate_size", 128},
                {"num_experts", 4},     {"num_experts_per_tok", 2},     {"num_hidden_layers", 2},
                {"hidden_act", "silu"}, {"model_type", type},           {"quantization_config", quantisation}}
               .dump();
    return excluded_layers(read_model_config(dir.path()));
  };
  for (const char* pattern : {"re:.*block_sparse_moe.*", "re:.*mixer.*", "re:.*feed_forward.*",
                              "re:.*language_model.*", "backbone*"})
    EXPECT_EQ(counted(pattern, "qwen3_moe"), 0) << pattern;
  EXPECT_EQ(counted("re:.*block_sparse_moe.*", "mixtral"), 2);
  EXPECT_EQ(counted("re:.*mlp.experts.*", "qwen3_moe"), 2);
  EXPECT_EQ(counted("backbone*", "a_model_that_nobody_knows"), 2);
}

// hf_quant_config.json and config.json, layer by layer.
TEST(QuantisationKeys, TwoFilesSayTheSame) {
  const auto both = [](const json& in_config, const json& own) {
    const TempDir dir;
    std::ofstream(dir.path() / "config.json") << json{
        {"hidden_size", 256},
        {"moe_intermediate_size", 128},
        {"num_experts", 4},
        {"num_experts_per_tok", 2},
        {"num_hidden_layers", 2},
        {"hidden_act", "silu"},
        {"quantization_config", in_config}}.dump();
    std::ofstream(dir.path() / "hf_quant_config.json") << json{{"quantization", own}}.dump();
    return refusal([&] { (void)read_config(dir.path()); });
  };
  const json none = {{"quant_algo", "NVFP4"}, {"exclude_modules", {"lm_head"}}};
  const json first = {{"quant_algo", "NVFP4"}, {"ignore", {"model.layers.0.mlp*"}}};
  const json second = {{"quant_algo", "NVFP4"}, {"ignore", {"model.layers.1.mlp*"}}};
  EXPECT_EQ(both(none, {{"quant_algo", "NVFP4"}, {"exclude_modules", {"lm_head", "*self_attn*"}}}),
            "accepted");
  EXPECT_EQ(both(first, {{"quant_algo", "NVFP4"}, {"exclude_modules", {"model.layers.0.mlp.experts"}}}),
            "accepted");
  for (const auto& [a, b] : {std::pair{none, second}, {second, none}})
    EXPECT_THAT(both(a, b), AllOf(HasSubstr("hf_quant_config.json: quantization: layer 1: its experts are "),
                                  HasSubstr("not quantised"), HasSubstr("config.json: quantization_config")));
  EXPECT_THAT(both(first, second), HasSubstr("layer 0: "));
  const auto mixed = [](const char* algo) {
    return json{{"quant_algo", "MIXED_PRECISION"},
                {"quantized_layers",
                 {{"model.layers.0.mlp.experts", {{"quant_algo", algo}}},
                  {"model.layers.1.mlp.experts", {{"quant_algo", algo}}}}}};
  };
  EXPECT_EQ(both(mixed("NVFP4"), mixed("NVFP4")), "accepted");
  EXPECT_THAT(both(mixed("NVFP4"), mixed("W4A16_NVFP4")),
              HasSubstr("its experts are W4A16_NVFP4, but NVFP4 by"));
}

TEST(QuantisationKeys, KeysOfCompressedTensorsAsAWhole) {
  for (const auto& [key, value] : {std::pair<const char*, json>{"/pre_quant_scale", true},
                                   {"/has_zero_point", true},
                                   {"/lora_rank", 32},
                                   {"/group_size", 32},
                                   {"/rotation", "hadamard"},
                                   {"/exclude_modules", {"model.layers.0*"}},
                                   {"/quantized_layers", {{"a", 1}}}})
    EXPECT_THAT(refused(with(compressed(), key, value)), HasSubstr(std::string(key + 1) + " is ")) << key;
  EXPECT_EQ(read(with(compressed(), "/run_compressed", true)).quant_algo, "NVFP4");
  EXPECT_EQ(read(with(compressed(), "/anything", nullptr)).quant_algo, "NVFP4");
}

TEST(QuantisationKeys, ToolsThatContradictEachOther) {
  json awq = {{"quant_method", "awq"}, {"quant_algo", "NVFP4"}};
  EXPECT_THAT(refused(awq, ErrorKind::checkpoint), HasSubstr("quant_method is 'awq' beside a quant_algo"));
  for (const char* method : {"modelopt", "modelopt_fp4", "modelopt_mixed"}) {
    awq["quant_method"] = method;
    EXPECT_EQ(read(awq).quant_algo, "NVFP4");
  }
  // Tensors with the other tool's names: their global scales are reciprocals of these.
  for (const bool packed : {false, true}) {
    Onehot onehot = packed ? test::restated(Onehot(), "compressed-tensors") : Onehot();
    onehot.quantization.clear();
    onehot.config["quantization_config"] =
        packed ? R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})" : compressed().dump();
    EXPECT_THAT(test::refused_open(onehot),
                AllOf(HasSubstr("layer 0: this is "), HasSubstr("wanted one tool's")));
  }
}

TEST(QuantisationKeys, ModelOptsKeys) {
  const json base = {
      {"quant_method", "modelopt"},
      {"quant_algo", "NVFP4"},
      {"group_size", 16},
      {"kv_cache_quant_algo", "FP8"},
      {"ignore", {"lm_head"}},
      {"producer", {{"name", "modelopt"}}},
      {"config_groups",
       {{"group_0",
         {{"weights", {{"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", 16}}},
          {"input_activations", {{"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", 16}}},
          {"targets", {"Linear"}}}}}}};
  EXPECT_EQ(read(base).quant_algo, "NVFP4");
  EXPECT_NO_THROW(read(with(base, "/has_zero_point", false)));
  EXPECT_THAT(refused(with(base, "/has_zero_point", true)),
              HasSubstr("quantization_config: has_zero_point is true"));
  EXPECT_THAT(refused(with(base, "/pre_quant_scale", true)), HasSubstr("pre_quant_scale is true"));
  EXPECT_THAT(refused(with(base, "/lora_rank", 32)), HasSubstr("lora_rank is 32"));
  EXPECT_THAT(
      refused(with(base, "/config_groups/group_0/weights/num_bits", 8), ErrorKind::checkpoint),
      AllOf(HasSubstr("config_groups.group_0.weights: num_bits is 8"), HasSubstr("quant_algo is NVFP4")));
  EXPECT_THAT(refused(with(base, "/config_groups/group_0/weights/type", "int"), ErrorKind::checkpoint),
              HasSubstr("type is 'int'"));
  EXPECT_THAT(refused(with(base, "/quant_algo", "W4A16_NVFP4"), ErrorKind::checkpoint),
              AllOf(HasSubstr("input_activations is {"), HasSubstr("quant_algo is W4A16_NVFP4")));
  json weights = base;
  weights["config_groups"]["group_0"].erase("input_activations");
  EXPECT_THAT(refused(weights, ErrorKind::checkpoint),
              HasSubstr("input_activations is absent, but quant_algo is NVFP4"));
  EXPECT_EQ(read(with(weights, "/quant_algo", "W4A16_NVFP4")).quant_algo, "W4A16_NVFP4");
  EXPECT_THAT(
      refused(with(base, "/config_groups/group_0/targets", {"re:.*self_attn.*"}), ErrorKind::checkpoint),
      AllOf(HasSubstr("config_groups.group_0: targets is ["), HasSubstr("wanted Linear")));
  EXPECT_THAT(refused(with(base, "/config_groups/group_0/output_activations", {{"num_bits", 4}})),
              HasSubstr("output_activations is {"));
  EXPECT_THAT(refused(with(base, "/config_groups/group_0/weights/scale_dtype", "ue8m0")),
              HasSubstr("scale_dtype is \"ue8m0\""));
  EXPECT_THAT(refused(with(base, "/config_groups/group_0/weights/symmetric", false)),
              HasSubstr("weights: symmetric is false"));
  EXPECT_THAT(refused(with(base, "/quantized_layers", {{"a", {{"quant_algo", "W4A16_NVFP4"}}}}),
                      ErrorKind::checkpoint),
              AllOf(HasSubstr("quantized_layers is {"), HasSubstr("wanted MIXED_PRECISION")));
}

TEST(QuantisationKeys, PatternsAreNamedWithFileAndKey) {
  const auto unreadable_of = [](const ModelConfig& config) {
    return refusal([&] { (void)excluded_layers(config); }, ErrorKind::unsupported);
  };
  const auto unreadable = [&](const json& quantisation) { return unreadable_of(read(quantisation)); };
  for (const char* bad : {"re:(?=x)", "re:(", "re:(a)\\1"}) {
    EXPECT_THAT(unreadable(with(compressed(), "/ignore", {bad})),
                AllOf(HasSubstr("config.json: quantization_config: ignore has the pattern '"), HasSubstr(bad),
                      HasSubstr("wanted")));
    EXPECT_THAT(unreadable(with(compressed(), "/config_groups/group_0/targets", {bad})),
                AllOf(HasSubstr("config_groups.group_0.targets has the pattern"), HasSubstr(bad)));
    EXPECT_THAT(unreadable({{"quant_algo", "NVFP4"}, {"exclude_modules", {bad}}}),
                AllOf(HasSubstr("exclude_modules has the pattern"), HasSubstr(bad)));
  }
  ModelConfig many = read(with(compressed(), "/ignore", {"re:a", "re:b"}));
  many.layers = 1 << 20;
  EXPECT_THAT(unreadable_of(many), AllOf(HasSubstr("config.json: quantization_config: 2 patterns of modules"),
                                         HasSubstr("wanted fewer")));
  many.layers = 1;
  many.excluded_modules.assign(501, "re:a");
  EXPECT_THAT(unreadable_of(many), HasSubstr("quantization_config: ignore has more than 500 expressions"));
}

// quantized_layers with a line for each module, all of one expert's but those that end in `but`.
std::string lines(const std::string& but, const std::string& algo) {
  std::string out;
  for (int e = 0; e < 4; ++e)
    for (const char* p : {"gate_proj", "up_proj", "down_proj"}) {
      const std::string name = "model.layers.0.mlp.experts." + std::to_string(e) + "." + p;
      if (name.ends_with(but)) continue;
      out += (out.empty() ? "{\"" : ",\"") + name + R"(": {"quant_algo": ")" + algo + "\"}";
    }
  return out + "}";
}

std::string opened(const std::string& modules) {
  Onehot onehot;
  onehot.quantization = {{"quant_algo", R"("MIXED_PRECISION")"}, {"quantized_layers", modules}};
  const TempDir dir;
  onehot.write(dir.path());
  return refusal([&] { (void)Checkpoint::open(dir.path()); });
}

TEST(QuantisationKeys, RulesForModulesNameAllOfThem) {
  EXPECT_EQ(opened(lines("none", "NVFP4")), "accepted");
  EXPECT_EQ(opened(R"({"model.layers.0.mlp.experts": {"quant_algo": "NVFP4"}})"), "accepted");
  for (const char* absent : {"3.down_proj", "0.gate_proj", "up_proj"})
    EXPECT_THAT(
        opened(lines(absent, "NVFP4")),
        AllOf(HasSubstr("hf_quant_config.json: quantization: layer 0: model.layers.0.mlp.experts."),
              HasSubstr(absent), HasSubstr("is not quantised, but other modules of its experts are NVFP4")));
  std::string other = lines("none", "NVFP4");
  other.replace(other.rfind("NVFP4"), 5, "FP8");
  EXPECT_THAT(opened(other), HasSubstr("quantises its experts in 2 ways"));
}

// What the configuration says counts: activations stay bf16.
TEST(QuantisationKeys, InputScalesBesideWeightOnlyExpertsAreNotUsed) {
  Onehot onehot;
  onehot.quantization["quant_algo"] = R"("W4A16_NVFP4")";
  const TempDir dir;
  onehot.write(dir.path());
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  EXPECT_THAT(checkpoint.notes(), testing::ElementsAre(AllOf(HasSubstr("input scales that are not used"),
                                                             HasSubstr("hf_quant_config.json"))));
  Faults faults;
  const LayerScales scales = checkpoint.layer(0).scales(faults);
  EXPECT_THAT(faults.text(), IsEmpty());
  EXPECT_TRUE(scales.weight_only);
  EXPECT_THAT(notes_of(scales), testing::ElementsAre(HasSubstr("not used: weight-only (W4A16)")));
}

}  // namespace
}  // namespace kerf::checkpoint
