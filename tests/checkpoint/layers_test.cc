#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kerf/checkpoint/checkpoint.h"
#include "tests/checkpoint/refusal.h"

namespace kerf::checkpoint {
namespace {

using test::Onehot;
using test::OwnedTensor;
using test::refusal;
using test::refused_open;
using test::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string text(const tensor::TensorView& view) {
  return std::string(tensor::name(view.dtype)) + view.shape.text() + ":" +
         std::string(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size());
}

std::vector<std::string> texts(const ExpertViews& v) {
  return {text(v.gate), text(v.gate_sf), text(v.up), text(v.up_sf), text(v.down), text(v.down_sf)};
}

OwnedTensor filled(tensor::Dtype dtype, const tensor::Shape& shape, std::uint8_t byte = 0) {
  return {dtype, shape,
          std::vector<std::uint8_t>(static_cast<std::size_t>(tensor::bytes_of(dtype, shape)), byte)};
}

TEST(Layers, PerExpertViewsAreTheFilesBytes) {
  Onehot onehot;
  const TempDir dir;
  onehot.write(dir.path());
  const Checkpoint opened = Checkpoint::open(dir.path());
  const MoeLayer& layer = opened.layer(0);
  EXPECT_EQ(layer.index(), 0);
  EXPECT_EQ(layer.kind(), ExpertKind::nvfp4);
  EXPECT_EQ(layer.dialect(), "per-expert");
  EXPECT_EQ(layer.expert_bytes(), 3 * (16384 + 2048));
  for (std::int64_t e = 0; e < 4; ++e) {
    const ExpertViews v = layer.expert(e);
    const auto same = [&](const tensor::TensorView& view, const char* suffix) {
      const OwnedTensor& wanted = onehot.at(onehot.name(e, suffix));
      return text(view) == text({wanted.dtype, wanted.shape, std::as_bytes(std::span(wanted.bytes))});
    };
    EXPECT_TRUE(same(v.gate, "gate_proj.weight"));
    EXPECT_TRUE(same(v.gate_sf, "gate_proj.weight_scale"));
    EXPECT_TRUE(same(v.up, "up_proj.weight"));
    EXPECT_TRUE(same(v.up_sf, "up_proj.weight_scale"));
    EXPECT_TRUE(same(v.down, "down_proj.weight"));
    EXPECT_TRUE(same(v.down_sf, "down_proj.weight_scale"));
  }
  EXPECT_TRUE(layer.find("mlp.gate.weight"));
  EXPECT_FALSE(layer.find("mlp.gate.bias"));
  EXPECT_THAT(refusal([&] { (void)layer.expert(4); }, ErrorKind::usage),
              HasSubstr("got expert 4, wanted 0 to 3"));
  EXPECT_THAT(refusal([&] { (void)opened.layer(3); }, ErrorKind::usage),
              HasSubstr("config.json: layer 3, wanted 0 to 0 (num_hidden_layers is 1)"));
}

// The stacked naming holds the same experts, gate rows first.
TEST(Layers, FusedViewsEqualPerExpertViews) {
  const TempDir per_expert;
  const TempDir fused;
  constexpr auto nvfp4 = ExpertKind::nvfp4;
  constexpr auto bf16 = ExpertKind::bf16;
  Onehot({.layers = {bf16, nvfp4, nvfp4}}).write(per_expert.path());
  Onehot({.prefix = "model.language_model.", .layers = {bf16, nvfp4, nvfp4}, .fused = true})
      .write(fused.path());
  const Checkpoint a = Checkpoint::open(per_expert.path());
  const Checkpoint b = Checkpoint::open(fused.path());
  EXPECT_THAT(a.moe_layers(), ElementsAre(0, 1, 2));
  EXPECT_THAT(b.moe_layers(), ElementsAre(0, 1, 2));
  for (const std::int64_t l : {0, 1, 2}) {
    EXPECT_EQ(b.layer(l).dialect(), "fused");
    EXPECT_EQ(a.layer(l).kind(), l == 0 ? bf16 : nvfp4);
    EXPECT_EQ(b.layer(l).kind(), a.layer(l).kind());
    EXPECT_EQ(b.layer(l).expert_bytes(), a.layer(l).expert_bytes());
    for (std::int64_t e = 0; e < 4; ++e)
      EXPECT_EQ(texts(a.layer(l).expert(e)), texts(b.layer(l).expert(e))) << l << " " << e;
  }
  EXPECT_EQ(a.layer(0).expert_bytes(), 3 * 256 * 128 * 2);
  EXPECT_EQ(a.layer(0).expert(1).gate.shape, (tensor::Shape{128, 256}));
  EXPECT_EQ(a.layer(0).expert(1).down.shape, (tensor::Shape{256, 128}));
  EXPECT_TRUE(a.layer(0).expert(1).gate_sf.bytes.empty());
  Faults faults;
  const LayerScales scales = b.layer(1).scales(faults);
  EXPECT_TRUE(faults.empty());
  EXPECT_EQ(scales.in13, 1.0F);
  EXPECT_EQ(scales.in2, 216.0F);
  EXPECT_THAT(refusal([&] { a.layer(0).scales(faults); }, ErrorKind::bug), HasSubstr("BF16"));
  EXPECT_THAT(refusal([&] { b.layer(0).scan_block_scales(0, faults); }, ErrorKind::bug), HasSubstr("BF16"));
}

TEST(Layers, Prefixes) {
  for (const char* prefix : {"model.", "model.language_model.", "backbone."}) {
    const TempDir dir;
    Onehot({.prefix = prefix}).write(dir.path());
    EXPECT_THAT(Checkpoint::open(dir.path()).moe_layers(), ElementsAre(0)) << prefix;
  }
  EXPECT_THAT(refused_open(Onehot({.prefix = "other."})), HasSubstr("/kerf-test-"));
  EXPECT_THAT(refused_open(Onehot({.prefix = "other."})), HasSubstr(": no routed experts"));
}

Onehot fused_onehot() { return Onehot({.fused = true, .shards = 1}); }
std::string stacked(const Onehot& onehot, const std::string& rest) {
  return onehot.layer_name("mlp.experts." + rest);
}

TEST(Layers, FusedScalarShapes) {
  const std::vector<float> pairs = {1, 2, 3, 4, 5, 6, 7, 8};
  for (const tensor::Shape& shape : {tensor::Shape{4, 2}, tensor::Shape{8}, tensor::Shape{4, 2, 1}}) {
    Onehot onehot = fused_onehot();
    onehot.at(stacked(onehot, "gate_up_proj_weight_scale_2")) = OwnedTensor::f32(shape, pairs);
    onehot.at(stacked(onehot, "gate_up_proj_input_scale")) = OwnedTensor::f32(shape, pairs);
    onehot.at(stacked(onehot, "down_proj_weight_scale_2")) = OwnedTensor::f32({4}, {9, 10, 11, 12});
    const TempDir dir;
    onehot.write(dir.path());
    Faults faults;
    const LayerScales scales = Checkpoint::open(dir.path()).layer(0).scales(faults);
    EXPECT_THAT(scales.ws2_gate, ElementsAre(1, 3, 5, 7));
    EXPECT_THAT(scales.ws2_up, ElementsAre(2, 4, 6, 8));
    EXPECT_THAT(scales.ws2_down, ElementsAre(9, 10, 11, 12));
    EXPECT_EQ(scales.in13, 8.0F);
    EXPECT_EQ(scales.gate_up_differ, 4);
    EXPECT_EQ(scales.largest_gate_up_ratio, 2.0);
  }
  for (const tensor::Shape& shape :
       {tensor::Shape{4}, tensor::Shape{4, 1}, tensor::Shape{1}, tensor::Shape{}}) {
    Onehot onehot = fused_onehot();
    std::vector<float> values(static_cast<std::size_t>(shape.elements()), 1.0F);
    values.back() = 3.0F;
    onehot.at(stacked(onehot, "gate_up_proj_input_scale")) = OwnedTensor::f32(shape, values);
    values.back() = 300.0F;
    onehot.at(stacked(onehot, "down_proj_input_scale")) = OwnedTensor::f32(shape, values);
    const TempDir dir;
    onehot.write(dir.path());
    Faults faults;
    const LayerScales scales = Checkpoint::open(dir.path()).layer(0).scales(faults);
    EXPECT_TRUE(faults.empty());
    EXPECT_EQ(scales.in13, 3.0F);
    EXPECT_EQ(scales.in2, 300.0F);
  }
  for (const tensor::Shape& shape : {tensor::Shape{2, 4}, tensor::Shape{4}, tensor::Shape{}}) {
    Onehot onehot = fused_onehot();
    onehot.at(stacked(onehot, "gate_up_proj_weight_scale_2")) = filled(tensor::Dtype::f32, shape);
    EXPECT_THAT(refused_open(onehot),
                AllOf(HasSubstr("gate_up_proj_weight_scale_2"), HasSubstr("got F32 " + shape.text()),
                      HasSubstr("wanted [4, 2] or [8]")));
  }
}

TEST(Layers, FusedFaultsNameExpertAndHalf) {
  Onehot onehot = fused_onehot();
  onehot.at(stacked(onehot, "gate_up_proj_weight_scale_2")) =
      OwnedTensor::f32({4, 2}, {1, 1, 1, 1, 1, 0, 1, 1});
  // Expert 1's up rows begin at row 128 of its 256; 16 blocks a row.
  onehot.at(stacked(onehot, "gate_up_proj_weight_scale")).bytes[(256 + 128 + 5) * 16 + 11] = 0x7F;
  const Faults faults = test::faults_of(onehot);
  EXPECT_EQ(faults.total(), 2);
  EXPECT_THAT(faults.text(),
              AllOf(HasSubstr("zero weight_scale_2"),
                    HasSubstr("gate_up_proj_weight_scale_2 (up), expert 2, 1 of 4, value 0"),
                    HasSubstr("gate_up_proj_weight_scale, expert 1, row 133, block 11, byte 0x7F")));
}

TEST(Layers, FusedInputScalesMissing) {
  Onehot onehot = fused_onehot();
  onehot.remove(stacked(onehot, "down_proj_input_scale"));
  EXPECT_THAT(test::faults_of(onehot).text(),
              AllOf(HasSubstr("down_proj_input_scale"), HasSubstr("4 of 4"), HasSubstr("count 4")));
  onehot.remove(stacked(onehot, "gate_up_proj_input_scale"));
  EXPECT_THAT(test::faults_of(onehot).text(), HasSubstr("weight-only (W4A16)"));
  onehot.quantization["quant_algo"] = R"("W4A16_NVFP4")";
  EXPECT_TRUE(test::faults_of(onehot).empty());
}

// A tensor in place of the right one, and what the refusal says beside the tensor's name and the layer.
struct WrongTensor {
  const char* tensor;
  OwnedTensor with;
  const char* got;
  const char* wanted;
};

void expect_refused(Onehot onehot, const std::string& full_name, const WrongTensor& wrong, const char* file) {
  onehot.at(full_name) = wrong.with;
  EXPECT_THAT(refused_open(onehot), AllOf(HasSubstr(full_name), HasSubstr("layer 0"), HasSubstr(file),
                                          HasSubstr(wrong.got), HasSubstr(wrong.wanted)));
}

TEST(Layers, FusedShapesAndDtypes) {
  using tensor::Dtype;
  const std::vector<WrongTensor> cases = {
      {"gate_up_proj", filled(Dtype::u8, {5, 256, 128}), "got U8 [5, 256, 128]", "wanted [4, 256, 128]"},
      {"gate_up_proj", filled(Dtype::u8, {4, 128, 256}), "got U8 [4, 128, 256]", "wanted [4, 256, 128]"},
      {"gate_up_proj", filled(Dtype::f4, {4, 256, 128}), "got F4 [4, 256, 128]", "wanted [4, 256, 256]"},
      {"down_proj", filled(Dtype::u8, {4, 256, 32}), "got U8 [4, 256, 32]", "wanted [4, 256, 64]"},
      {"down_proj", filled(Dtype::bf16, {4, 256, 128}), "got BF16", "wanted U8 (NVFP4)"},
      {"gate_up_proj_weight_scale", filled(Dtype::u8, {4, 256, 16}), "got U8", "wanted F8_E4M3"},
      {"down_proj_weight_scale", filled(Dtype::f8_e4m3, {4, 256, 16}), "got F8_E4M3 [4, 256, 16]",
       "wanted [4, 256, 8]"},
  };
  const Onehot sound = fused_onehot();
  for (const WrongTensor& c : cases) expect_refused(sound, stacked(sound, c.tensor), c, "model.safetensors");
  for (const char* name : {"gate_up_proj", "down_proj", "down_proj_weight_scale"}) {
    Onehot onehot = fused_onehot();
    onehot.remove(stacked(onehot, name));
    EXPECT_THAT(refused_open(onehot), AllOf(HasSubstr(name), HasSubstr("is missing"), HasSubstr("layer 0")));
  }
}

TEST(Layers, PerExpertShapesAndDtypes) {
  using tensor::Dtype;
  const std::vector<WrongTensor> cases = {
      {"gate_proj.weight", filled(Dtype::u8, {128, 64}), "got U8 [128, 64]", "wanted [128, 128]"},
      {"up_proj.weight", filled(Dtype::u8, {64, 128}), "got U8 [64, 128]", "wanted [128, 128]"},
      {"down_proj.weight", filled(Dtype::u8, {128, 128}), "got U8 [128, 128]", "wanted [256, 64]"},
      {"down_proj.weight", filled(Dtype::f4, {256, 64}), "got F4 [256, 64]", "wanted [256, 128]"},
      {"down_proj.weight", filled(Dtype::f16, {256, 128}), "got F16", "wanted U8"},
      {"down_proj.weight_scale", filled(Dtype::u8, {256, 8}), "got U8", "wanted F8_E4M3"},
      {"up_proj.weight_scale", filled(Dtype::f8_e4m3, {128, 8}), "got F8_E4M3 [128, 8]", "wanted [128, 16]"},
      {"up_proj.weight", filled(Dtype::bf16, {128, 256}), "got BF16", "wanted U8 (NVFP4)"},
  };
  const Onehot sound;
  for (const WrongTensor& c : cases)
    expect_refused(sound, sound.name(2, c.tensor), c, "model-00002-of-00002.safetensors");
  Onehot bf16({.layers = {ExpertKind::bf16}});
  bf16.at(bf16.name(1, "down_proj.weight")) = filled(Dtype::bf16, {128, 256});
  EXPECT_THAT(refused_open(bf16), AllOf(HasSubstr("got BF16 [128, 256]"), HasSubstr("wanted [256, 128]")));
  Onehot scaled({.layers = {ExpertKind::bf16}});
  scaled.add(0, scaled.name(1, "down_proj.weight_scale"), filled(Dtype::f8_e4m3, {256, 8}));
  EXPECT_THAT(refused_open(scaled),
              AllOf(HasSubstr("experts.1.down_proj.weight_scale"), HasSubstr("beside BF16")));
}

TEST(Layers, MissingTensors) {
  for (const char* suffix : {"up_proj.weight", "up_proj.weight_scale"}) {
    Onehot onehot;
    onehot.remove(onehot.name(1, suffix));
    EXPECT_THAT(refused_open(onehot), AllOf(HasSubstr(onehot.name(1, suffix) + " is missing"),
                                            HasSubstr("layer 0"), HasSubstr("expert 1")));
  }
  Onehot onehot;
  for (const char* p : {"gate_proj", "up_proj", "down_proj"})
    for (const char* part : {".weight", ".weight_scale", ".weight_scale_2", ".input_scale"})
      onehot.remove(onehot.name(2, std::string(p) + part));
  EXPECT_THAT(refused_open(onehot), AllOf(HasSubstr("layer 0"), HasSubstr("expert 2 is missing")));
}

TEST(Layers, ConfigurationAgainstTensors) {
  const auto with = [](const char* key, const char* value) {
    Onehot onehot;
    onehot.config[key] = value;
    return refused_open(onehot);
  };
  EXPECT_THAT(with("num_experts", "8"), AllOf(HasSubstr("expert 4 is missing"), HasSubstr("0 to 7")));
  EXPECT_THAT(with("num_experts", "3"),
              AllOf(HasSubstr("got expert 3"), HasSubstr("wanted 3 experts"),
                    HasSubstr("model-00002-of-00002.safetensors"), HasSubstr("experts.3.")));
  EXPECT_THAT(with("hidden_size", "512"),
              AllOf(HasSubstr("got U8 [128, 128]"), HasSubstr("wanted [128, 256]"),
                    HasSubstr("experts.0.gate_proj.weight"), HasSubstr("hidden 512")));
  EXPECT_THAT(with("moe_intermediate_size", "64"),
              AllOf(HasSubstr("got U8 [128, 128]"), HasSubstr("wanted [64, 128]")));
  Onehot odd;
  odd.config["hidden_size"] = "250";
  EXPECT_THAT(refused_open(odd, ErrorKind::unsupported),
              AllOf(HasSubstr("width 250"), HasSubstr("multiple of 16")));
  Onehot plain;
  plain.quantization.clear();
  EXPECT_THAT(refused_open(plain),
              HasSubstr("neither hf_quant_config.json nor config.json gives them a quant_algo"));
  Onehot mixed;
  mixed.quantization["quant_algo"] = R"("MIXED_PRECISION")";
  mixed.quantization["quantized_layers"] = R"({"model.layers.7.mlp.experts": {"quant_algo": "NVFP4"}})";
  mixed.quantization["exclude_modules"] = R"(["model.layers.0.mlp.experts"])";
  EXPECT_THAT(refused_open(mixed),
              AllOf(HasSubstr("hf_quant_config.json"), HasSubstr("exclude_modules leaves them out"),
                    HasSubstr("MIXED_PRECISION")));
  const TempDir dir;
  Onehot bf16({.layers = {ExpertKind::bf16}});
  bf16.quantization.clear();
  bf16.write(dir.path());
  EXPECT_EQ(Checkpoint::open(dir.path()).layer(0).kind(), ExpertKind::bf16);
}

TEST(Layers, NamesThatWouldChangeTheResult) {
  Onehot bias;
  bias.add(0, bias.name(0, "up_proj.bias"), filled(tensor::Dtype::bf16, {128}));
  EXPECT_THAT(refused_open(bias, ErrorKind::unsupported), HasSubstr("experts.0.up_proj.bias"));
  Onehot both;
  both.add(0, both.layer_name("mlp.experts.down_proj"), filled(tensor::Dtype::u8, {4, 256, 64}));
  EXPECT_THAT(refused_open(both), AllOf(HasSubstr("layer 0"), HasSubstr("two ways")));
  Onehot two;
  two.add(0, "backbone.layers.0.mlp.experts.0.up_proj.weight", filled(tensor::Dtype::u8, {128, 128}));
  EXPECT_THAT(refused_open(two), HasSubstr("two ways"));
}

TEST(Layers, ForPredictingFurtherTokensAreANote) {
  Onehot onehot({.layers = {ExpertKind::nvfp4, ExpertKind::nvfp4}});
  onehot.config["num_hidden_layers"] = "1";
  onehot.config["num_nextn_predict_layers"] = "1";
  const TempDir dir;
  onehot.write(dir.path());
  const Checkpoint opened = Checkpoint::open(dir.path());
  EXPECT_THAT(opened.moe_layers(), ElementsAre(0));
  EXPECT_THAT(opened.notes(), ElementsAre(HasSubstr("layer 1: beyond the 1 layers")));
}

TEST(Layers, WithoutExpertsAreANote) {
  Onehot onehot({.layers = {ExpertKind::nvfp4, ExpertKind::nvfp4}});
  onehot.config["num_hidden_layers"] = "3";
  for (auto& shard : onehot.shards)
    std::erase_if(shard.tensors,
                  [](const auto& t) { return t.first.find("layers.0.mlp.experts") != std::string::npos; });
  std::erase_if(onehot.index,
                [](const auto& t) { return t.first.find("layers.0.mlp.experts") != std::string::npos; });
  const TempDir dir;
  onehot.write(dir.path());
  const Checkpoint opened = Checkpoint::open(dir.path());
  EXPECT_THAT(opened.moe_layers(), ElementsAre(1));
  EXPECT_THAT(opened.notes(), ElementsAre(HasSubstr("2 of 3 layers have no routed experts: 0, 2")));
}

TEST(Layers, PostNormFollowsTheTensors) {
  Onehot onehot({.layers = {ExpertKind::nvfp4, ExpertKind::nvfp4}});
  onehot.config["architectures"] = R"(["MuseSparkForCausalLM"])";
  {
    // The configuration's model has the norm: without it the results would be another model's.
    EXPECT_THAT(refused_open(onehot),
                AllOf(HasSubstr("layer 0"), HasSubstr("model.layers.0.mlp.experts.post_expert_norm.weight"),
                      HasSubstr("missing"), HasSubstr("MuseSparkForCausalLM")));
    Onehot plain = onehot;
    plain.config.erase("architectures");
    const TempDir dir;
    plain.write(dir.path());
    EXPECT_FALSE(Checkpoint::open(dir.path()).config().post_norm);
    plain.add(0, plain.layer_name("mlp.experts.post_expert_norm.weight", 1),
              filled(tensor::Dtype::bf16, {256}));
    EXPECT_THAT(refused_open(plain),
                AllOf(HasSubstr("layer 0: model.layers.0.mlp.experts.post_expert_norm.weight is missing"),
                      HasSubstr("layer 1 has it")));
  }
  const std::string suffix = "mlp.experts.post_expert_norm.weight";
  onehot.add(0, onehot.layer_name(suffix, 0), filled(tensor::Dtype::bf16, {256}));
  EXPECT_THAT(refused_open(onehot),
              AllOf(HasSubstr("layer 1: model.layers.1.mlp.experts.post_expert_norm.weight is missing"),
                    HasSubstr("layer 0 has it")));
  onehot.add(0, onehot.layer_name(suffix, 1), filled(tensor::Dtype::bf16, {256}));
  const TempDir dir;
  onehot.write(dir.path());
  const Checkpoint opened = Checkpoint::open(dir.path());
  ASSERT_TRUE(opened.config().post_norm);
  EXPECT_EQ(opened.config().post_norm->eps, 1e-8);
  EXPECT_THAT(opened.notes(), IsEmpty());
  EXPECT_TRUE(opened.layer(1).find(suffix));
  onehot.at(onehot.layer_name(suffix, 1)) = filled(tensor::Dtype::bf16, {128});
  EXPECT_THAT(refused_open(onehot),
              AllOf(HasSubstr("layer 1"), HasSubstr(onehot.layer_name(suffix, 1)), HasSubstr("model-0"),
                    HasSubstr("got BF16 [128]"), HasSubstr("wanted [256]")));
  onehot.at(onehot.layer_name(suffix, 1)) = filled(tensor::Dtype::f32, {256});
  EXPECT_THAT(refused_open(onehot), AllOf(HasSubstr("layer 1"), HasSubstr(onehot.layer_name(suffix, 1)),
                                          HasSubstr("got F32 [256]"), HasSubstr("wanted BF16 [256]")));
}

TEST(Layers, SelectionBiasFollowsTheTensors) {
  Onehot onehot;
  const TempDir dir;
  onehot.write(dir.path());
  EXPECT_FALSE(Checkpoint::open(dir.path()).config().router.selection_bias);
  onehot.add(0, onehot.layer_name("mlp.gate.e_score_correction_bias"), filled(tensor::Dtype::f32, {4}));
  onehot.write(dir.path());
  EXPECT_TRUE(Checkpoint::open(dir.path()).config().router.selection_bias);
  onehot.at(onehot.layer_name("mlp.gate.e_score_correction_bias")) = filled(tensor::Dtype::f32, {5});
  EXPECT_THAT(refused_open(onehot),
              AllOf(HasSubstr("layer 0: model.layers.0.mlp.gate.e_score_correction_bias in model-0"),
                    HasSubstr("got F32 [5]"), HasSubstr("wanted [4]")));
  onehot.at(onehot.layer_name("mlp.gate.e_score_correction_bias")) = filled(tensor::Dtype::f16, {4});
  EXPECT_THAT(refused_open(onehot), HasSubstr("got F16 [4], wanted F32 or BF16 [4]"));
}

TEST(Layers, ASelectionBiasBesideSoftmaxIsTold) {
  Onehot onehot;
  onehot.add(0, onehot.layer_name("mlp.gate.e_score_correction_bias"), filled(tensor::Dtype::f32, {4}));
  const TempDir dir;
  onehot.write(dir.path());
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  EXPECT_THAT(checkpoint.config().router.not_computed,
              AllOf(HasSubstr("layer 0: model.layers.0.mlp.gate.e_score_correction_bias is there"),
                    HasSubstr("scores by softmax")));
  EXPECT_THAT(checkpoint.notes(), testing::Contains(HasSubstr("it routes nothing here")));
}

// A tensor that is missing has the name that it would have where these experts are.
TEST(Layers, WhatIsMissingIsNamedAsTheModelNamesIt) {
  Onehot onehot({.shards = 1});
  onehot.config["model_type"] = R"("lfm2_moe")";
  onehot.config["use_expert_bias"] = "true";
  for (auto& [name, tensor] : onehot.shards.front().tensors)
    for (const auto& [from, to] : {std::pair<std::string_view, std::string_view>{"mlp.", "feed_forward."},
                                   {"gate_proj", "w1"},
                                   {"up_proj", "w3"},
                                   {"down_proj", "w2"}})
      if (const std::size_t at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  const TempDir dir;
  onehot.write(dir.path());
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  Faults faults;
  check_selection_bias(checkpoint.config(), checkpoint.layer(0), faults);
  EXPECT_THAT(faults.text(),
              HasSubstr("layer 0, model.layers.0.feed_forward.expert_bias, wanted F32 or BF16"));
}

TEST(Layers, NoBlockWhereTensorsSayThatThereIsMore) {
  for (const auto& [name, what] :
       {std::pair{"mlp.shared_expert.up_proj.weight", "shared experts"},
        std::pair{"mlp.shared_experts.up_proj.weight", "shared experts"},
        std::pair{"mlp.shared_expert_gate.weight", "shared experts"},
        std::pair{"share_expert.up_proj.weight", "shared experts"},
        std::pair{"mlp.shared.up_proj.weight", "this tensor"},
        std::pair{"residual_mlp.w1.weight", "an MLP beside the experts"},
        std::pair{"mlp.router.per_expert_scale", "this tensor"}, std::pair{"mlp.gate.tid2eid", "this tensor"},
        std::pair{"mlp.gate_proj.weight", "this tensor"},
        std::pair{"mlp.gate.bias", "a bias of the router's logits"}}) {
    Onehot onehot;
    onehot.add(0, onehot.layer_name(name), filled(tensor::Dtype::bf16, {4}));
    const TempDir dir;
    onehot.write(dir.path());
    const Checkpoint checkpoint = Checkpoint::open(dir.path());
    EXPECT_THAT(checkpoint.layer(0).no_block(),
                AllOf(HasSubstr("model.layers.0." + std::string(name) + " in model-0"),
                      HasSubstr("does not compute " + std::string(what))));
  }
  Onehot pooled;
  pooled.add(0, pooled.layer_name("mlp.pre_expert_norm.weight"), filled(tensor::Dtype::bf16, {4}));
  const TempDir other;
  pooled.write(other.path());
  EXPECT_THAT(
      refusal([&] { (void)Checkpoint::open(other.path()).layer(0).block(false); }, ErrorKind::unsupported),
      AllOf(HasSubstr("mlp.pre_expert_norm.weight"), HasSubstr("of a Muse Spark model")));
  Onehot sound;
  sound.add(0, sound.layer_name("self_attn.shared.weight"), filled(tensor::Dtype::bf16, {4}));
  const TempDir dir;
  sound.write(dir.path());
  EXPECT_THAT(Checkpoint::open(dir.path()).layer(0).no_block(), IsEmpty());
}

TEST(Layers, TheBlockAroundTheExperts) {
  const auto opened_block = [](const Onehot& onehot, bool pool) {
    const TempDir dir;
    onehot.write(dir.path());
    return Checkpoint::open(dir.path()).layer(0).block(pool);
  };
  const auto refused = [&](const Onehot& onehot, bool pool) {
    return refusal([&] { (void)opened_block(onehot, pool); }, ErrorKind::checkpoint);
  };
  Onehot onehot;
  const std::string gate = onehot.layer_name("mlp.gate.weight");
  const BlockFiles plain = opened_block(onehot, false);
  EXPECT_EQ(plain.gate.dtype, tensor::Dtype::bf16);
  EXPECT_EQ(plain.gate.shape, (tensor::Shape{4, 256}));
  EXPECT_FALSE(plain.bias);
  EXPECT_THAT(refused(onehot, true),
              AllOf(HasSubstr("layer 0: model.layers.0.mlp.pre_expert_proj.weight is missing"),
                    HasSubstr("wanted BF16 [256, 256]")));
  onehot.add(0, onehot.layer_name("mlp.pre_expert_proj.weight"), filled(tensor::Dtype::bf16, {256, 256}));
  onehot.add(0, onehot.layer_name("mlp.pre_expert_norm.weight"), filled(tensor::Dtype::bf16, {256}));
  onehot.add(0, onehot.layer_name("mlp.post_expert_proj.weight"), filled(tensor::Dtype::f32, {256, 256}));
  EXPECT_THAT(refused(onehot, true),
              AllOf(HasSubstr("layer 0: model.layers.0.mlp.post_expert_proj.weight in "),
                    HasSubstr("got F32 [256, 256], wanted BF16 [256, 256]")));
  onehot.at(onehot.layer_name("mlp.post_expert_proj.weight")) = filled(tensor::Dtype::bf16, {256, 256});
  onehot.add(0, onehot.layer_name("mlp.gate.e_score_correction_bias"), filled(tensor::Dtype::f32, {4}));
  onehot.at(gate) = filled(tensor::Dtype::f32, {4, 256});
  const BlockFiles pooled = opened_block(onehot, true);
  EXPECT_EQ(pooled.gate.dtype, tensor::Dtype::f32);
  EXPECT_TRUE(pooled.bias);
  EXPECT_EQ(pooled.pre_norm.shape, (tensor::Shape{256}));
  onehot.at(gate) = filled(tensor::Dtype::f16, {4, 256});
  EXPECT_THAT(refused(onehot, true), AllOf(HasSubstr(gate), HasSubstr("got F16"), HasSubstr("F32 or BF16")));
  onehot.remove(gate);
  EXPECT_THAT(refused(onehot, true), AllOf(HasSubstr(gate + " is missing")));
}

}  // namespace
}  // namespace kerf::checkpoint
