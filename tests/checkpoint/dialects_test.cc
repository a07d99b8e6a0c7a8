// Every dialect of the same experts is read to the same bytes and scales; what is not quite a dialect is
// refused.
#include "kerf/checkpoint/dialect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kerf/base/format.h"
#include "kerf/checkpoint/checkpoint.h"
#include "tests/checkpoint/refusal.h"
#include "tests/support/dialects.h"

namespace kerf::checkpoint {
namespace {

using test::Onehot;
using test::OwnedTensor;
using test::refused_open;
using test::restated;
using test::TempDir;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

std::string text(const tensor::TensorView& view) {
  return std::string(tensor::name(view.dtype)) + view.shape.text() + ":" +
         std::string(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size());
}

// Everything that is read of a layer: six views an expert, all scales as bits.
std::vector<std::string> all_of(const Onehot& onehot) {
  const TempDir dir;
  onehot.write(dir.path());
  const Checkpoint opened = Checkpoint::open(dir.path());
  const MoeLayer& layer = opened.layer(0);
  std::vector<std::string> out;
  for (std::int64_t e = 0; e < opened.config().experts; ++e) {
    const ExpertViews v = layer.expert(e);
    for (const auto* view : {&v.gate, &v.gate_sf, &v.up, &v.up_sf, &v.down, &v.down_sf})
      out.push_back(text(*view));
  }
  if (layer.kind() == ExpertKind::bf16) return out;
  Faults faults;
  const LayerScales s = layer.scales(faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  for (std::size_t e = 0; e < s.ws2_gate.size(); ++e)
    for (const float v : {s.ws2_gate[e], s.ws2_up[e], s.ws2_down[e]})
      out.push_back(std::to_string(std::bit_cast<std::uint32_t>(v)));
  for (const float v : {s.in13, s.in2, s.least13, s.least2})
    out.push_back(std::to_string(std::bit_cast<std::uint32_t>(v)));
  return out;
}

// Bytes in which no two places are alike, so that nothing can be put in another's place unseen.
Onehot scrambled(ExpertKind kind) {
  Onehot onehot({.layers = {kind}, .shards = 1});
  std::uint32_t state = 7;
  for (auto& [name, t] : onehot.shards[0].tensors) {
    if (name.find("experts") == std::string::npos || t.dtype == tensor::Dtype::f32) continue;
    for (std::uint8_t& byte : t.bytes) {
      state = state * 1664525U + 1013904223U;
      byte = static_cast<std::uint8_t>(state >> 24U);
      // Sound block scales; BF16 values below infinity.
      if (t.dtype == tensor::Dtype::f8_e4m3) byte = static_cast<std::uint8_t>(byte % 0x7FU);
      if (t.dtype == tensor::Dtype::bf16) byte = static_cast<std::uint8_t>(byte & 0x3FU);
    }
  }
  return onehot;
}

class EveryDialect : public testing::TestWithParam<std::string> {};

TEST_P(EveryDialect, HasTheSameExperts) {
  Onehot plain = scrambled(ExpertKind::nvfp4);
  // Powers of two, whose reciprocals are exact.
  for (std::int64_t e = 0; e < 4; ++e)
    for (const char* p : {"gate_proj", "up_proj", "down_proj"}) {
      plain.set_f32(plain.name(e, std::string(p) + ".weight_scale_2"),
                    std::ldexp(1.0F, static_cast<int>(e) - 9 + (p[0] == 'u' ? 2 : 0)));
      plain.set_f32(plain.name(e, std::string(p) + ".input_scale"), std::ldexp(1.0F, -static_cast<int>(e)));
    }
  EXPECT_EQ(all_of(restated(plain, GetParam())), all_of(plain));
}

TEST_P(EveryDialect, HasTheSameBf16Experts) {
  if (GetParam() == "f4") return;  // a kind of codes
  const Onehot plain = scrambled(ExpertKind::bf16);
  EXPECT_EQ(all_of(restated(plain, GetParam())), all_of(plain));
}

TEST_P(EveryDialect, IsNamed) {
  const TempDir dir;
  restated(Onehot(), GetParam()).write(dir.path());
  const std::string wanted = GetParam() == "f4" ? "per-expert" : GetParam();
  EXPECT_EQ(Checkpoint::open(dir.path()).layer(0).dialect(), wanted);
  EXPECT_EQ(dialect_named(wanted).name, wanted);
}

// A fault is told with the name in the file.
TEST_P(EveryDialect, FaultsHaveTheFilesNames) {
  Onehot onehot = restated(Onehot(), GetParam());
  std::string scale;
  for (auto& [name, t] : onehot.shards[0].tensors) {
    const bool down = name.find("down_proj") != std::string::npos || name.find(".w2.") != std::string::npos;
    if (t.dtype != tensor::Dtype::f8_e4m3 || !down) continue;
    scale = name;
    t.bytes[3] = 0x7F;
    break;
  }
  ASSERT_FALSE(scale.empty());
  const Faults faults = test::faults_of(onehot);
  EXPECT_EQ(faults.total(), 1);
  EXPECT_THAT(faults.text(), AllOf(HasSubstr(scale), HasSubstr("byte 0x7F"), HasSubstr("expert 0")));
}

// Rows of a stack's faults are the stack's, alternating or not.
TEST(Dialects, RowsOfAStacksFaultsAreItsOwn) {
  constexpr std::size_t two_i = 2 * Onehot::intermediate;
  constexpr std::size_t blocks = Onehot::hidden / 16;
  for (const bool turned : {false, true}) {
    Onehot onehot = restated(Onehot(), turned ? "gpt-oss" : "fused");
    OwnedTensor& scales = onehot.at(onehot.layer_name("mlp.experts.gate_up_proj_weight_scale"));
    for (const std::size_t row : {std::size_t{220}, std::size_t{221}, std::size_t{5}})
      scales.bytes[2 * blocks * two_i + (turned ? 2 * two_i + row : row * blocks + 2)] = 0x7F;
    const Faults faults = test::faults_of(onehot);
    EXPECT_EQ(faults.total(), 3);
    for (const char* row : {"row 220, ", "row 221, ", "row 5, "})
      EXPECT_THAT(faults.text(), HasSubstr(std::string("expert 2, ") + row + "block 2, byte 0x7F")) << turned;
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryDialect, testing::ValuesIn(test::restated_names()), [](const auto& param) {
  std::string name = param.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Dialects, EachIsRestatedByHand) {
  for (const Dialect& d : dialects()) EXPECT_THAT(test::restated_names(), Contains(std::string(d.name)));
  EXPECT_THROW((void)dialect_named("gguf"), Error);
}

// A divisor g stands for the scale 1 / g, one f32 division: not for what g came from.
TEST(Dialects, DivisorsAreReciprocalsInF32) {
  Onehot onehot = restated(Onehot(), "compressed-tensors");
  const auto set = [&](std::int64_t e, const char* what, float value) {
    onehot.at(onehot.name(e, what)) = OwnedTensor::f32({1}, {value});
  };
  set(0, "gate_proj.weight_global_scale", 3.0F);
  set(1, "up_proj.weight_global_scale", 0x1.6f2a3cp+9F);
  set(2, "down_proj.input_global_scale", 10.0F);
  const TempDir dir;
  onehot.write(dir.path());
  Faults faults;
  const LayerScales s = Checkpoint::open(dir.path()).layer(0).scales(faults);
  EXPECT_TRUE(faults.empty());
  EXPECT_EQ(s.ws2_gate[0], 0x1.555556p-2F);  // a third, to nearest
  EXPECT_EQ(s.ws2_up[1], 1.0F / 0x1.6f2a3cp+9F);
  EXPECT_EQ(s.ws2_down[2], 1.0F);
  // The largest scale is that of the smallest divisor: 1 / 10 is not the largest, 216 (1 / (1 / 216)) is.
  EXPECT_EQ(s.in2, 1.0F / (1.0F / 216.0F));
  EXPECT_EQ(s.least2, 0x1.99999ap-4F);
}

TEST(Dialects, DivisorsThatCannotBeUsed) {
  const std::vector<std::pair<float, const char*>> cases = {
      {0.0F, "zero weight_global_scale"},
      {-2.0F, "negative weight_global_scale"},
      {std::numeric_limits<float>::quiet_NaN(), "NaN weight_global_scale"},
      {std::numeric_limits<float>::infinity(), "infinite weight_global_scale"},
      {1e-45F, "too small (infinite reciprocal) weight_global_scale"},
      {std::numeric_limits<float>::max(), "too large (as a scale, with an infinite reciprocal)"}};
  for (const auto& [value, kind] : cases) {
    Onehot onehot = restated(Onehot(), "compressed-tensors");
    onehot.set_f32(onehot.name(1, "up_proj.weight_global_scale"), value);
    const Faults faults = test::faults_of(onehot);
    EXPECT_EQ(faults.total(), 1);
    EXPECT_THAT(faults.text(), AllOf(HasSubstr(kind), HasSubstr("expert 1, 1 of 4"),
                                     HasSubstr("up_proj.weight_global_scale")));
  }
  Onehot onehot = restated(Onehot(), "compressed-tensors");
  onehot.remove(onehot.name(2, "down_proj.input_global_scale"));
  EXPECT_THAT(test::faults_of(onehot).text(),
              AllOf(HasSubstr("missing input_global_scale"), HasSubstr("expert 2, 1 of 4")));
}

TEST(Dialects, WithoutInputScalesWhereTheGroupsSaySo) {
  Onehot onehot = restated(Onehot(), "compressed-tensors");
  for (std::int64_t e = 0; e < 4; ++e)
    for (const char* p : {"gate_proj", "up_proj", "down_proj"})
      onehot.remove(onehot.name(e, std::string(p) + ".input_global_scale"));
  EXPECT_THAT(test::faults_of(onehot).text(), HasSubstr("weight-only (W4A16)"));
  std::string& config = onehot.config["quantization_config"];
  const std::size_t inputs = config.find('{', config.find("\"input_activations\""));
  config.replace(inputs, config.find('}', inputs) + 1 - inputs, "null");
  EXPECT_TRUE(test::faults_of(onehot).empty());
  const TempDir dir;
  onehot.write(dir.path());
  EXPECT_EQ(Checkpoint::open(dir.path()).config().quant_algo, "W4A16_NVFP4");
}

// One global scale for a whole stack, as ModelOpt writes it for Llama-4.
TEST(Dialects, OneGlobalScaleForAStack) {
  Onehot onehot = restated(Onehot(), "llama4");
  const std::string base = onehot.layer_name("feed_forward.experts.gate_up_proj_");
  onehot.at(base + "weight_scale_2") = OwnedTensor::f32({}, {0.25F});
  onehot.at(base + "input_scale") = OwnedTensor::f32({}, {2.0F});
  const TempDir dir;
  onehot.write(dir.path());
  Faults faults;
  const LayerScales s = Checkpoint::open(dir.path()).layer(0).scales(faults);
  EXPECT_TRUE(faults.empty());
  EXPECT_THAT(s.ws2_gate, testing::Each(0.25F));
  EXPECT_THAT(s.ws2_up, testing::Each(0.25F));
  EXPECT_EQ(s.in13, 2.0F);
}

TEST(Dialects, WhatIsNotQuiteOneIsRefused) {
  constexpr auto unsupported = ErrorKind::unsupported;
  // Parts of two tools.
  Onehot mixed = restated(Onehot(), "compressed-tensors");
  mixed.add(0, mixed.name(1, "up_proj.weight_scale_2"), OwnedTensor::f32({}, {1}));
  EXPECT_THAT(refused_open(mixed), HasSubstr("two ways"));
  // Projections of two models.
  Onehot names = restated(Onehot(), "w1-w3-w2");
  names.add(0, names.layer_name("block_sparse_moe.experts.0.up_proj.weight"), {tensor::Dtype::u8, {0}, {}});
  EXPECT_THAT(refused_open(names), HasSubstr("two ways"));
  for (const char* tensor :
       {"mlp.experts.2.up_proj.weight_zero_point", "mlp.experts.2.up_proj.pre_quant_scale",
        "mlp.experts.gate_up_proj_scales", "block_sparse_moe.experts.2.w1.weight_shape"}) {
    Onehot other;
    other.add(0, other.layer_name(tensor), OwnedTensor::f32({}, {1}));
    EXPECT_THAT(refused_open(other, unsupported), AllOf(HasSubstr(tensor), HasSubstr("does not know")));
  }
  for (const char* tensor : {"mlp.experts.gate_up_proj_bias", "mlp.experts.1.down_proj.bias"}) {
    Onehot biased;
    biased.add(0, biased.layer_name(tensor), OwnedTensor::f32({4}, {1, 2, 3, 4}));
    EXPECT_THAT(refused_open(biased, unsupported),
                AllOf(HasSubstr(tensor), HasSubstr("does not implement biases")));
  }
  // The shape of another orientation.
  Onehot turned = restated(Onehot(), "llama4");
  OwnedTensor& down = turned.at(turned.layer_name("feed_forward.experts.down_proj"));
  down.shape = {4, 256, 64};
  EXPECT_THAT(refused_open(turned),
              AllOf(HasSubstr("got U8 [4, 256, 64]"), HasSubstr("wanted [4, 64, 256]")));
  // The order of F4 codes is not known there.
  Onehot f4 = restated(Onehot(), "llama4");
  OwnedTensor& codes = f4.at(f4.layer_name("feed_forward.experts.down_proj"));
  codes = {tensor::Dtype::f4, {4, 128, 256}, codes.bytes};
  EXPECT_THAT(refused_open(f4, unsupported), AllOf(HasSubstr("F4"), HasSubstr("not as [in, out]")));
  // Tools have written both orientations under one name.
  Onehot vl = restated(Onehot(), "fused");
  vl.config["model_type"] = R"("qwen3_vl_moe")";
  EXPECT_THAT(refused_open(vl, unsupported), HasSubstr("does not guess"));
  // Shapes count codes in F4, bytes in U8.
  Onehot wide = restated(Onehot(), "f4");
  OwnedTensor& one = wide.at(wide.name(0, "up_proj.weight"));
  one = {tensor::Dtype::f4, {256, 128}, one.bytes};
  EXPECT_THAT(refused_open(wide), AllOf(HasSubstr("got F4 [256, 128]"), HasSubstr("wanted [128, 256]")));
}

TEST(Dialects, ThePrefixesOfModels) {
  for (const char* prefix : {"model.", "model.language_model.", "language_model.model.", "backbone."}) {
    Onehot onehot({.prefix = prefix});
    const TempDir dir;
    onehot.write(dir.path());
    EXPECT_EQ(Checkpoint::open(dir.path()).moe_layers().size(), 1U) << prefix;
  }
}

// The router's tensors under the names that models have for them.
TEST(Dialects, TheSelectionBiasUnderItsNames) {
  for (const char* name :
       {"mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias", "mlp.gate.expert_bias",
        "block_sparse_moe.e_score_correction_bias", "mixer.gate.e_score_correction_bias"}) {
    Onehot onehot;
    onehot.add(0, onehot.layer_name(name), OwnedTensor::f32({4}, {1, 2, 3, 4}));
    const TempDir dir;
    onehot.write(dir.path());
    const Checkpoint opened = Checkpoint::open(dir.path());
    EXPECT_TRUE(opened.config().router.selection_bias) << name;
    ASSERT_TRUE(opened.layer(0).find(selection_bias_name)) << name;
    EXPECT_EQ(opened.layer(0).find(selection_bias_name)->shape, tensor::Shape{4}) << name;
  }
  Onehot two;
  two.add(0, two.layer_name("mlp.gate.e_score_correction_bias"), OwnedTensor::f32({4}, {1, 2, 3, 4}));
  two.add(0, two.layer_name("mlp.gate.expert_bias"), OwnedTensor::f32({4}, {1, 2, 3, 4}));
  EXPECT_THAT(refused_open(two), AllOf(HasSubstr("expert_bias"), HasSubstr("wanted one of them")));
  Onehot router;
  router.add(0, router.layer_name("mlp.router.bias"), OwnedTensor::f32({4}, {1, 2, 3, 4}));
  const TempDir dir;
  router.write(dir.path());
  EXPECT_THAT(Checkpoint::open(dir.path()).layer(0).no_block(), HasSubstr("mlp.router.bias"));
}

TEST(Dialects, MixedPrecisionIsALayersOwn) {
  constexpr auto nvfp4 = ExpertKind::nvfp4;
  Onehot onehot({.layers = {nvfp4, ExpertKind::bf16, nvfp4}});
  onehot.quantization.clear();
  std::string layers;
  for (const int l : {0, 2})
    for (int e = 0; e < 4; ++e)
      for (const char* p : {"gate_proj", "up_proj", "down_proj"})
        layers +=
            fmt::format(R"({}"model.layers.{}.mlp.experts.{}.{}": {{"quant_algo": "{}", "group_size": 16}})",
                        layers.empty() ? "" : ", ", l, e, p, l == 0 ? "NVFP4" : "W4A16_NVFP4");
  layers += R"(, "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"})";
  const auto config = [](const std::string& all) {
    return R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {)" + all +
           "}}";
  };
  onehot.config["quantization_config"] = config(layers);
  for (std::int64_t e = 0; e < 4; ++e)
    for (const char* p : {"gate_proj", "up_proj", "down_proj"})
      onehot.remove(onehot.name(e, std::string(p) + ".input_scale", 2));
  const TempDir dir;
  onehot.write(dir.path());
  const Checkpoint opened = Checkpoint::open(dir.path());
  EXPECT_EQ(opened.config().quant_algo, "MIXED_PRECISION");
  Faults faults;
  EXPECT_FALSE(opened.layer(0).scales(faults).weight_only);
  EXPECT_EQ(opened.layer(1).kind(), ExpertKind::bf16);
  EXPECT_TRUE(opened.layer(2).scales(faults).weight_only);
  EXPECT_TRUE(faults.empty());
  EXPECT_THAT(opened.notes(), Not(Contains(HasSubstr("tell apart"))));
  // Another algorithm for experts is a refusal; so are two in one layer, and none.
  Onehot fp8 = onehot;
  std::string other = layers;
  for (std::size_t at = 0; (at = other.find("W4A16_NVFP4", at)) != std::string::npos;)
    other.replace(at, 11, "FP8");
  fp8.config["quantization_config"] = config(other);
  EXPECT_THAT(refused_open(fp8, ErrorKind::unsupported), AllOf(HasSubstr("layer 2"), HasSubstr("FP8")));
  Onehot two = onehot;
  two.config["quantization_config"] =
      config(layers + R"(, "model.layers.0.mlp.experts.9.up_proj": {"quant_algo": "FP8"})");
  EXPECT_THAT(refused_open(two), AllOf(HasSubstr("layer 0"), HasSubstr("2 ways (FP8, NVFP4)")));
  Onehot none = onehot;
  none.config["quantization_config"] =
      config(R"("model.layers.2.mlp.experts": {"quant_algo": "W4A16_NVFP4"})");
  EXPECT_THAT(refused_open(none), AllOf(HasSubstr("layer 0"), HasSubstr("quant_algo")));
}

TEST(Dialects, WhatListsAndTensorsTellApartIsANote) {
  Onehot onehot({.layers = {ExpertKind::nvfp4, ExpertKind::bf16}});
  onehot.quantization["exclude_modules"] = R"(["model.layers.1.mlp.experts*"])";
  const auto notes = [&] {
    const TempDir dir;
    onehot.write(dir.path());
    return Checkpoint::open(dir.path()).notes();
  };
  EXPECT_THAT(notes(), testing::IsEmpty());
  onehot.quantization["exclude_modules"] = R"(["re:.*layers\\.0\\..*"])";
  EXPECT_THAT(notes(), Contains(AllOf(HasSubstr("2 layers"), HasSubstr("NVFP4 though left out"))));
}

}  // namespace
}  // namespace kerf::checkpoint
