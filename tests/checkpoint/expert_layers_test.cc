// Which layers have routed experts: what the keys of each family say, by the rules of its own code, and what
// becomes of tensors that say otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "kerf/checkpoint/config.h"
#include "kerf/decode/build.h"
#include "kerf/tools/verify.h"
#include "tests/checkpoint/refusal.h"

namespace kerf::checkpoint {
namespace {

using nlohmann::json;
using test::Onehot;
using test::refusal;
using test::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

json model(int layers, json more) {
  json out = {{"hidden_size", 256},        {"moe_intermediate_size", 128}, {"num_experts", 8},
              {"num_experts_per_tok", 2},  {"num_hidden_layers", layers},  {"norm_topk_prob", true},
              {"scoring_func", "softmax"}, {"model_type", "nobody_knows"}, {"hidden_act", "silu"}};
  out.update(more);
  return out;
}

ModelConfig read(const json& config) {
  const TempDir dir;
  std::ofstream(dir.path() / "config.json") << config.dump();
  return read_model_config(dir.path());
}

// Layers as letters: E with experts, - without; "" where the file does not say.
std::string layers(const json& config) {
  std::string out;
  for (const bool routed : read(config).expert_layers.routed) out += routed ? 'E' : '-';
  return out;
}

TEST(ExpertLayers, EveryFamilysKeys) {
  EXPECT_EQ(layers(model(5, {{"first_k_dense_replace", 2}})), "--EEE");
  EXPECT_EQ(layers(model(6, {{"first_k_dense_replace", 1}, {"moe_layer_freq", 2}})), "--E-E-");
  EXPECT_EQ(layers(model(4, {{"moe_layer_freq", {0, 1, 1, 0}}})), "-EE-");
  EXPECT_EQ(layers(model(4, {{"decoder_sparse_step", 1}, {"mlp_only_layers", json::array()}})), "EEEE");
  EXPECT_EQ(layers(model(5, {{"decoder_sparse_step", 2}, {"mlp_only_layers", {3}}})), "-E---");
  EXPECT_EQ(layers(model(4, {{"mlp_only_layers", {0, 2}}})), "-E-E");
  EXPECT_EQ(layers(model(4, {{"interleave_moe_layer_step", 2}})), "-E-E");
  EXPECT_EQ(layers(model(4, {{"interleave_moe_layer_step", 2}, {"moe_layers", {1, 3}}})), "-E-E");
  EXPECT_EQ(layers(model(3, {{"mlp_layer_types", {"dense", "sparse", "moe"}}})), "-EE");
  EXPECT_EQ(layers(model(6, {{"moe_layers_enum", "3, 4,5"}})), "---EEE");
  EXPECT_EQ(layers(model(6, {{"moe_layers_enum", {1, 5}}})), "-E---E");
  EXPECT_EQ(layers(model(6, {{"hybrid_override_pattern", "ME*E-M"}})), "-E-E--");
  EXPECT_EQ(layers(model(3, {{"layers_block_type", {"mamba", "moe", "attention"}}})), "-E-");
  EXPECT_EQ(layers(model(3, {{"layer_types", {"linear_attention", "moe", "mlp"}}})), "-E-");
  EXPECT_EQ(layers(model(6, {{"moe_layer_start_index", 2}, {"moe_layer_end_index", 4}})), "--EEE-");
  EXPECT_EQ(layers(model(6, {{"moe_layer_interval", 2}, {"moe_layer_end_index", -1}})), "-E-E-E");
  EXPECT_EQ(layers(model(5, {{"expert_layer_period", 2}, {"expert_layer_offset", 1}})), "-E-E-");
  EXPECT_EQ(layers(model(3, {{"num_dense_layers", 1}})), "-EE");
  EXPECT_EQ(layers(model(4, {{"is_moe_layer", {false, true, true, false}}})), "-EE-");
  json unnumbered = model(3, {{"layers_block_type", {"mamba", "moe", "attention"}}});
  unnumbered.erase("num_hidden_layers");
  EXPECT_EQ(layers(unnumbered), "-E-");
}

TEST(ExpertLayers, WhatNoKeySays) {
  for (const char* type :
       {"mixtral", "qwen3_moe", "gpt_oss", "minimax_m2", "muse_spark_text", "llama4_text", "olmoe"}) {
    json config = model(3, {{"model_type", type}});
    config.erase("scoring_func");
    EXPECT_EQ(layers(config), "EEE") << type;
  }
  for (const json& more : {json::object(), json{{"layer_types", {"full_attention", "full_attention"}}},
                           json{{"model_type", "deepseek_v2"}}, json{{"moe_layer_freq", 1}}}) {
    const ModelConfig config = read(model(2, more));
    EXPECT_FALSE(config.expert_layers.told());
    EXPECT_TRUE(config.expert_layers.may_be_in(0));
    EXPECT_FALSE(config.expert_layers.must_be_in(0));
    EXPECT_EQ(routed_layers(config), 2);
  }
  EXPECT_EQ(routed_layers(read(model(61, {{"first_k_dense_replace", 3}}))), 58);
}

TEST(ExpertLayers, KeysThatMakeNoSenseAreNamed) {
  const auto refused = [](const json& more, ErrorKind kind = ErrorKind::checkpoint) {
    return refusal([&] { (void)read(model(4, more)); }, kind);
  };
  EXPECT_THAT(
      refused({{"first_k_dense_replace", 1}, {"mlp_layer_types", {"sparse", "sparse", "sparse", "sparse"}}}),
      AllOf(HasSubstr("config.json: first_k_dense_replace is 1, but mlp_layer_types is [\"sparse\""),
            HasSubstr("layer 0 has routed experts by the second alone")));
  EXPECT_THAT(refused({{"interleave_moe_layer_step", 1}, {"moe_layers", {1, 3}}}),
              AllOf(HasSubstr("interleave_moe_layer_step is 1"), HasSubstr("moe_layers is [1,3]"),
                    HasSubstr("layer 0")));
  EXPECT_THAT(
      refused({{"mlp_only_layers", {0, 1, 2, 3}}}),
      AllOf(HasSubstr("mlp_only_layers is [0,1,2,3]"), HasSubstr("none of 4 layers has routed experts")));
  EXPECT_THAT(refused({{"mlp_only_layers", {4}}}),
              HasSubstr("mlp_only_layers is 4 (number), wanted numbers of layers in it, 0 to 3"));
  EXPECT_THAT(refused({{"moe_layers", {"1"}}}), HasSubstr("moe_layers is \"1\""));
  EXPECT_THAT(refused({{"moe_layers_enum", "1;2"}}), HasSubstr("moe_layers_enum is \"1;2\""));
  EXPECT_THAT(refused({{"mlp_layer_types", {"sparse"}}}),
              HasSubstr("mlp_layer_types has 1 entries, wanted one for each of 4"));
  EXPECT_THAT(refused({{"moe_layer_freq", {0, 1, 2, 1}}}), HasSubstr("moe_layer_freq is 2"));
  EXPECT_THAT(refused({{"decoder_sparse_step", 0}}), HasSubstr("decoder_sparse_step is 0"));
  EXPECT_THAT(refused({{"is_moe_layer", true}}), HasSubstr("is_moe_layer is true (boolean), wanted a list"));
  EXPECT_THAT(refused({{"is_moe_layer", {0, 1, 2, 1}}}), HasSubstr("is_moe_layer is 2"));
  EXPECT_THAT(refused({{"hybrid_override_pattern", "MEMEM"}}),
              HasSubstr("hybrid_override_pattern is \"MEMEM\""));
  EXPECT_THAT(refused({{"mlp_layer_types", {"hash_moe", "moe", "moe", "moe"}}}, ErrorKind::unsupported),
              AllOf(HasSubstr("mlp_layer_types has \"hash_moe\""), HasSubstr("'sparse'")));
}

// Lists may go on over the layers for predicting further tokens.
TEST(ExpertLayers, FurtherLayersForPrediction) {
  const ModelConfig config =
      read(model(2, {{"mlp_layer_types", {"dense", "sparse", "sparse"}}, {"num_nextn_predict_layers", 1}}));
  EXPECT_EQ(config.mtp_layers, 1);
  EXPECT_THAT(config.expert_layers.routed, ElementsAre(false, true));
}

constexpr auto nvfp4 = ExpertKind::nvfp4;

// Without the experts of these layers.
Onehot without(Onehot onehot, const std::string& layer) {
  const std::string prefix = "model.layers." + layer + ".mlp.experts";
  for (auto& shard : onehot.shards)
    std::erase_if(shard.tensors, [&](const auto& t) { return t.first.starts_with(prefix); });
  std::erase_if(onehot.index, [&](const auto& t) { return t.first.starts_with(prefix); });
  return onehot;
}

struct Seen {
  std::string faults;
  std::string all;    // what taking all layers says
  std::string first;  // what taking layer 0 says
  std::string second;
};

Seen look(const Onehot& onehot) {
  const TempDir dir;
  onehot.write(dir.path());
  const Checkpoint opened = Checkpoint::open(dir.path());
  const auto taken = [&](const std::vector<std::int64_t>& layers) {
    const Verdict why = attempt([&] { (void)decode::select_layers(opened, layers); });
    if (!why) return std::string("accepted");
    return (why->kind == ErrorKind::checkpoint ? "" : "another kind: ") + why->text;
  };
  return {tools::verify(opened, Workers(1)).faults.text(), taken({}), taken({0}), taken({1})};
}

TEST(ExpertLayers, ALayerThatIsNotThereIsAFault) {
  Onehot onehot({.layers = {nvfp4, nvfp4}});
  onehot.config["decoder_sparse_step"] = "1";
  EXPECT_THAT(look(onehot).faults, IsEmpty());
  EXPECT_EQ(look(onehot).all, "accepted");
  const Seen seen = look(without(onehot, "1"));
  EXPECT_THAT(seen.faults, AllOf(HasSubstr("layer without its routed experts, count 1: layer 1"),
                                 HasSubstr("wanted 4 experts (config.json: decoder_sparse_step is 1)")));
  EXPECT_THAT(seen.all, AllOf(HasSubstr("layer 1"), HasSubstr("run where they are named: 0")));
  EXPECT_EQ(seen.first, "accepted");
  EXPECT_THAT(
      seen.second,
      HasSubstr(
          "config.json: layer 1: no tensor of routed experts, wanted 4 experts (decoder_sparse_step is 1)"));
  // A layer that was never there.
  onehot.config["num_hidden_layers"] = "3";
  EXPECT_THAT(look(onehot).faults, HasSubstr("layer without its routed experts, count 1: layer 2"));
  // No key, but a family whose code knows no other.
  onehot.config.erase("decoder_sparse_step");
  EXPECT_THAT(look(onehot).faults, IsEmpty());
  onehot.config["model_type"] = R"("mixtral")";
  EXPECT_THAT(look(onehot).faults, HasSubstr("mixtral has experts in every layer"));
}

TEST(ExpertLayers, ALayerThatShouldHaveNoneIsAFault) {
  Onehot onehot({.layers = {nvfp4, nvfp4}});
  onehot.config["first_k_dense_replace"] = "1";
  const Seen seen = look(onehot);
  EXPECT_THAT(seen.faults,
              AllOf(HasSubstr("routed experts in a layer that has none by config.json, count 1: layer 0"),
                    HasSubstr("first_k_dense_replace is 1"), Not(HasSubstr("layer 1"))));
  EXPECT_THAT(seen.all, AllOf(HasSubstr("layer 0"), EndsWith("run where they are named: 1")));
  EXPECT_THAT(seen.first, AllOf(HasSubstr("layer 0"), HasSubstr("first_k_dense_replace is 1")));
  EXPECT_EQ(seen.second, "accepted");
  EXPECT_THAT(look(without(onehot, "0")).faults, IsEmpty());
}

TEST(ExpertLayers, LayersThatTheModelDoesNotHave) {
  Onehot onehot({.layers = {nvfp4, nvfp4}});
  onehot.config["num_hidden_layers"] = "1";
  const Seen seen = look(onehot);
  EXPECT_THAT(seen.faults, AllOf(HasSubstr("layer that the model does not have, count 1: layer 1"),
                                 HasSubstr("num_hidden_layers is 1")));
  EXPECT_THAT(seen.all, HasSubstr("layer 1"));
  EXPECT_EQ(seen.first, "accepted");
  EXPECT_THAT(seen.second, AllOf(HasSubstr("another kind: "),
                                 HasSubstr("config.json: layer 1, wanted 0 to 0 (num_hidden_layers is 1)")));
  // For predicting further tokens: not of the model's layers, and no fault.
  onehot.config["num_nextn_predict_layers"] = "1";
  EXPECT_EQ(look(onehot).all, "accepted");
  // Numbers that are none, of a layer that is there once more.
  for (const char* number : {"4294967296", "18446744073709551616", "01", "+1"}) {
    Onehot odd({.layers = {nvfp4, nvfp4}});
    for (auto& shard : odd.shards)
      for (auto& [name, tensor] : shard.tensors) {
        const std::string prefix = "model.layers.1.";
        if (!name.starts_with(prefix)) continue;
        const std::string was = name;
        name = std::string("model.layers.") + number + "." + name.substr(prefix.size());
        odd.index[name] = odd.index[was];
        odd.index.erase(was);
      }
    EXPECT_THAT(look(odd).faults,
                AllOf(HasSubstr("layer that the model does not have, count 1: model.layers."),
                      HasSubstr(std::string("layer '") + number + "', wanted 0 to 1")));
  }
}

}  // namespace
}  // namespace kerf::checkpoint
