#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kerf/checkpoint/checkpoint.h"
#include "tests/checkpoint/refusal.h"

namespace kerf::checkpoint {
namespace {

using test::faults_of;
using test::Onehot;
using test::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

LayerScales scales_of(const Onehot& onehot, Faults& faults) {
  const TempDir dir;
  onehot.write(dir.path());
  return Checkpoint::open(dir.path()).layer(0).scales(faults);
}

TEST(Scales, OfAnUnchangedCheckpoint) {
  Faults faults;
  const LayerScales scales = scales_of(Onehot(), faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  EXPECT_THAT(scales.ws2_gate, ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(scales.ws2_up, ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(scales.ws2_down, ElementsAre(1, 1, 1, 1));
  EXPECT_EQ(scales.in13, 1.0F);
  EXPECT_EQ(scales.in2, 216.0F);
  EXPECT_FALSE(scales.weight_only);
  EXPECT_EQ(scales.gate_up_differ, 0);
  EXPECT_THAT(notes_of(scales), IsEmpty());
}

TEST(Scales, GateAndUpAreKeptApart) {
  Onehot onehot;
  onehot.differ_gate_up();
  Faults faults;
  const LayerScales scales = scales_of(onehot, faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  EXPECT_THAT(scales.ws2_gate, ElementsAre(1, 1, 2, 0.25F));
  EXPECT_THAT(scales.ws2_up, ElementsAre(1, 0.25F, 0.5F, 1));
  EXPECT_THAT(scales.ws2_down, ElementsAre(1, 1, 0.5F, 1));
  EXPECT_EQ(scales.gate_up_differ, 3);
  EXPECT_EQ(scales.largest_gate_up_ratio, 4.0);
  EXPECT_THAT(
      notes_of(scales),
      ElementsAre("3 of 4 experts have different gate/up global scales, largest ratio 4, kept separate"));
}

// The largest over all experts, of gate and of up: whichever holds it.
TEST(Scales, InputScalesAreTheLargestOfAllExperts) {
  for (const auto& [e, projection] : {std::pair(3, "gate_proj"), std::pair(0, "up_proj")}) {
    Onehot onehot;
    onehot.set_f32(onehot.name(e, std::string(projection) + ".input_scale"), 1.5F);
    onehot.set_f32(onehot.name(1, "down_proj.input_scale"), 217.0F);
    Faults faults;
    const LayerScales scales = scales_of(onehot, faults);
    EXPECT_EQ(scales.in13, 1.5F);
    EXPECT_EQ(scales.in2, 217.0F);
    EXPECT_EQ(scales.least13, 1.0F);
    EXPECT_EQ(scales.least2, 216.0F);
  }
}

TEST(Scales, ScalarsOfShapeOneAreScalars) {
  Onehot onehot;
  onehot.at(onehot.name(1, "up_proj.weight_scale_2")) = test::OwnedTensor::f32({1}, {2.0F});
  Faults faults;
  EXPECT_THAT(scales_of(onehot, faults).ws2_up, ElementsAre(1, 2, 1, 1));
  onehot.at(onehot.name(1, "up_proj.weight_scale_2")) = test::OwnedTensor::f32({2}, {2.0F, 2.0F});
  EXPECT_THAT(test::refused_open(onehot),
              AllOf(HasSubstr("experts.1.up_proj.weight_scale_2"), HasSubstr("got F32 [2]"),
                    HasSubstr("wanted []"), HasSubstr("model-00001-of-00002")));
  onehot.at(onehot.name(1, "up_proj.weight_scale_2")) = {tensor::Dtype::bf16, {}, {0, 0}};
  EXPECT_THAT(test::refused_open(onehot), AllOf(HasSubstr("got BF16 []"), HasSubstr("wanted F32")));
}

struct BadScale {
  const char* suffix;
  std::int64_t expert;
  float value;
  const char* kind;
  const char* shown;
};

TEST(Scales, UnusableValuesAreFaults) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<BadScale> cases = {
      {"down_proj.input_scale", 2, 0.0F, "zero input_scale", "value 0"},
      {"down_proj.input_scale", 2, -0.0F, "zero input_scale", "value -0"},
      {"down_proj.input_scale", 2, -1.0F, "negative input_scale", "value -1"},
      {"down_proj.input_scale", 2, nan, "NaN input_scale", "value nan"},
      {"down_proj.input_scale", 2, inf, "infinite input_scale", "value inf"},
      {"gate_proj.input_scale", 2, -inf, "infinite input_scale", "value -inf"},
      {"down_proj.input_scale", 2, 1e-45F, "too small (infinite reciprocal) input_scale", "value 1e-45"},
      {"up_proj.input_scale", 2, 0x1p-128F, "too small (infinite reciprocal) input_scale",
       "value 2.938736e-39"},
      {"up_proj.weight_scale_2", 1, 0.0F, "zero weight_scale_2", "value 0"},
      {"down_proj.weight_scale_2", 3, nan, "NaN weight_scale_2", "value nan"},
      {"down_proj.weight_scale_2", 3, 1.3e35F, "too large (infinite times 448 x 6) weight_scale_2",
       "value 1.3e+35"},
      {"gate_proj.input_scale", 0, 1e38F, "too large (infinite times 448 x 6) input_scale", "value 1e+38"},
  };
  for (const BadScale& c : cases) {
    Onehot onehot;
    const std::string name = onehot.name(c.expert, c.suffix);
    onehot.set_f32(name, c.value);
    const Faults faults = faults_of(onehot);
    ASSERT_EQ(faults.total(), 1) << faults.text();
    EXPECT_EQ(faults.groups()[0].kind, c.kind);
    EXPECT_THAT(faults.text(),
                AllOf(HasSubstr("layer 0"), HasSubstr(name), HasSubstr("expert " + std::to_string(c.expert)),
                      HasSubstr("1 of 4"), HasSubstr(c.shown), HasSubstr("in model-0000")));
    ASSERT_TRUE(faults.verdict());
    EXPECT_EQ(faults.verdict()->kind, ErrorKind::checkpoint);
  }
}

TEST(Scales, TheSmallestWithAReciprocalIsUsable) {
  Onehot onehot;
  onehot.set_f32(onehot.name(2, "down_proj.input_scale"), std::nextafter(0x1p-128F, 1.0F));
  EXPECT_TRUE(faults_of(onehot).empty());
}

// f32's largest number over 448 x 6 is 1.2659e35.
TEST(Scales, TheLargestThatStandsForNumbersIsUsable) {
  Onehot onehot;
  onehot.set_f32(onehot.name(2, "down_proj.weight_scale_2"), 1.26e35F);
  EXPECT_TRUE(faults_of(onehot).empty());
}

// 2731 x 6 / 1024 is 16.002: a block up to that gets the scale zero. 3.7e-7 x 2688 is 9.9e-4.
TEST(Scales, ImplausibleInputScalesAreWarnedOf) {
  LayerScales scales;
  scales.in13 = 2730.0F;
  scales.in2 = 3.8e-7F;
  EXPECT_THAT(warnings_of(scales), IsEmpty());
  scales.in13 = 2731.0F;
  scales.in2 = 3.7e-7F;
  EXPECT_THAT(warnings_of(scales),
              ElementsAre(AllOf(HasSubstr("2731 of gate and up"), HasSubstr("become zeros")),
                          AllOf(HasSubstr("3.7e-07 of down"), HasSubstr("clipped at 0.00099"))));
  scales.in13 = scales.in2 = std::numeric_limits<float>::quiet_NaN();  // weight-only
  EXPECT_THAT(warnings_of(scales), IsEmpty());
}

TEST(Scales, NoNumberComesOutOfAFault) {
  Onehot onehot;
  onehot.set_f32(onehot.name(1, "up_proj.weight_scale_2"), 0.0F);
  onehot.set_f32(onehot.name(2, "down_proj.input_scale"), -1.0F);
  onehot.set_f32(onehot.name(3, "up_proj.input_scale"), std::numeric_limits<float>::infinity());
  Faults faults;
  const LayerScales scales = scales_of(onehot, faults);
  EXPECT_EQ(faults.total(), 3);
  EXPECT_TRUE(std::isnan(scales.ws2_up[1]));
  EXPECT_TRUE(std::isnan(scales.in13));
  EXPECT_TRUE(std::isnan(scales.in2));
  EXPECT_EQ(scales.gate_up_differ, 0);
}

TEST(Scales, MissingFromFileAndIndex) {
  for (const char* suffix : {"down_proj.input_scale", "up_proj.weight_scale_2"}) {
    Onehot onehot;
    const std::string name = onehot.name(2, suffix);
    onehot.remove(name);
    const Faults faults = faults_of(onehot);
    EXPECT_EQ(faults.total(), 1);
    EXPECT_THAT(faults.text(), AllOf(HasSubstr("missing"), HasSubstr("layer 0"), HasSubstr(name),
                                     HasSubstr("expert 2"), HasSubstr("1 of 4"), HasSubstr("value missing"),
                                     HasSubstr("weight in model-00002-of-00002.safetensors")));
  }
}

TEST(Scales, MissingFromTheFileAlone) {
  Onehot onehot;
  const std::string name = onehot.name(2, "down_proj.input_scale");
  onehot.remove_from_file(name);
  EXPECT_THAT(test::refused_open(onehot),
              AllOf(HasSubstr("layer 0"), HasSubstr(name), HasSubstr("expert 2"), HasSubstr("1 of 4"),
                    HasSubstr("value missing"), HasSubstr("model-00002-of-00002.safetensors"),
                    HasSubstr("model.safetensors.index.json")));
}

TEST(Scales, SeveralOfOneKindAreCountedTogether) {
  Onehot onehot;
  for (const std::int64_t e : {0, 2, 3}) onehot.set_f32(onehot.name(e, "down_proj.input_scale"), 0.0F);
  const Faults faults = faults_of(onehot);
  ASSERT_EQ(faults.groups().size(), 1U);
  EXPECT_EQ(faults.total(), 3);
  EXPECT_THAT(faults.text(), AllOf(HasSubstr("count 3"), HasSubstr("3 of 4"), HasSubstr("expert 3")));
}

Onehot without_input_scales() {
  Onehot onehot;
  for (std::int64_t e = 0; e < Onehot::experts; ++e)
    for (const char* p : {"gate_proj", "up_proj", "down_proj"})
      onehot.remove(onehot.name(e, std::string(p) + ".input_scale"));
  return onehot;
}

TEST(Scales, WeightOnlyWhereTheCheckpointSaysSo) {
  Onehot onehot = without_input_scales();
  onehot.quantization["quant_algo"] = R"("W4A16_NVFP4")";
  const TempDir dir;
  onehot.write(dir.path());
  const Checkpoint opened = Checkpoint::open(dir.path());
  EXPECT_THAT(opened.notes(), ElementsAre(AllOf(HasSubstr("weight-only (W4A16)"), HasSubstr("layer 0"))));
  Faults faults;
  const LayerScales scales = opened.layer(0).scales(faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  EXPECT_TRUE(scales.weight_only);
  EXPECT_TRUE(std::isnan(scales.in13));
  EXPECT_THAT(notes_of(scales), ElementsAre(HasSubstr("weight-only (W4A16)")));
}

TEST(Scales, NoInputScalesWhereTheCheckpointPromisesThem) {
  const Faults faults = faults_of(without_input_scales());
  EXPECT_EQ(faults.total(), 1);
  EXPECT_THAT(faults.text(),
              AllOf(HasSubstr("layer 0"), HasSubstr("4 of 4"), HasSubstr("weight-only (W4A16)"),
                    HasSubstr("its configuration says NVFP4")));
}

TEST(Scales, AWeightOnlyCheckpointWithSomeInputScalesIsFaulty) {
  Onehot onehot = without_input_scales();
  onehot.quantization["quant_algo"] = R"("W4A16_NVFP4")";
  onehot.add(0, onehot.name(0, "gate_proj.input_scale"), test::OwnedTensor::f32({}, {1.0F}));
  EXPECT_EQ(faults_of(onehot).total(), 11);
}

// Row 5 of expert 2's up scales, 16 blocks a row.
std::uint8_t& block_scale(Onehot& onehot, std::int64_t block) {
  return onehot.at(onehot.name(2, "up_proj.weight_scale")).bytes[static_cast<std::size_t>(5 * 16 + block)];
}

TEST(BlockScales, UnusableBytes) {
  struct Case {
    std::uint8_t byte;
    const char* kind;
    const char* shown;
  };
  for (const Case& c :
       {Case{0x7F, "NaN block scale", "byte 0x7F"}, Case{0xFF, "NaN block scale", "byte 0xFF"},
        Case{0xB8, "negative block scale", "byte 0xB8"}, Case{0x81, "negative block scale", "byte 0x81"}}) {
    Onehot onehot;
    ASSERT_EQ(block_scale(onehot, 11), 0x38);  // the row's live block
    block_scale(onehot, 11) = c.byte;
    const Faults faults = faults_of(onehot);
    ASSERT_EQ(faults.groups().size(), 1U);
    EXPECT_EQ(faults.groups()[0].kind, c.kind);
    EXPECT_THAT(faults.text(),
                AllOf(HasSubstr("count 1"), HasSubstr("layer 0"), HasSubstr("experts.2.up_proj.weight_scale"),
                      HasSubstr("expert 2"), HasSubstr("row 5"), HasSubstr("block 11"), HasSubstr(c.shown)));
  }
}

TEST(BlockScales, UsableBytes) {
  for (const auto& [block, byte] :
       {std::pair(12, 0x80), std::pair(11, 0x80), std::pair(11, 0x00), std::pair(11, 0x01)}) {
    Onehot onehot;
    block_scale(onehot, block) = static_cast<std::uint8_t>(byte);
    EXPECT_TRUE(faults_of(onehot).empty()) << block << " " << byte;
  }
}

TEST(BlockScales, AThousandFaultsAreOneMessage) {
  Onehot onehot;
  for (std::int64_t e = 0; e < 4; ++e) {
    auto& bytes = onehot.at(onehot.name(e, "down_proj.weight_scale")).bytes;
    for (std::size_t i = 0; i < 250; ++i) bytes[8 * i + 3] = 0x7F;
  }
  const Faults faults = faults_of(onehot);
  ASSERT_EQ(faults.groups().size(), 1U);
  EXPECT_EQ(faults.total(), 1000);
  ASSERT_EQ(faults.groups()[0].first.size(), 5U);
  // 8 blocks a row: the faults stand in rows 0, 1, 2, ...
  for (std::size_t i = 0; i < 5; ++i)
    EXPECT_EQ(faults.groups()[0].first[i],
              "layer 0, model.layers.0.mlp.experts.0.down_proj.weight_scale, expert 0, row " +
                  std::to_string(i) + ", block 3, byte 0x7F, in model-00001-of-00002.safetensors");
  EXPECT_THAT(faults.text(), AllOf(HasSubstr("count 1000"), HasSubstr("the first 5")));
}

TEST(BlockScales, ExpertOutOfRange) {
  const TempDir dir;
  Onehot().write(dir.path());
  const Checkpoint opened = Checkpoint::open(dir.path());
  Faults faults;
  for (const std::int64_t e : {-1, 4})
    EXPECT_THAT(test::refusal([&] { opened.layer(0).scan_block_scales(e, faults); }, ErrorKind::usage),
                HasSubstr("wanted 0 to 3"));
}

}  // namespace
}  // namespace kerf::checkpoint
