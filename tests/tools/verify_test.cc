#include "kerf/tools/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/onehot.h"
#include "tests/support/test_env.h"

namespace kerf::tools {
namespace {

using checkpoint::ExpertKind;
using test::Onehot;
using test::TempDir;
using ::testing::HasSubstr;
using ::testing::SizeIs;

VerifyReport verified(const Onehot& onehot, int threads = 1) {
  const TempDir dir;
  onehot.write(dir.path());
  return verify(checkpoint::Checkpoint::open(dir.path()), Workers(threads));
}

test::OwnedTensor bias(const std::vector<float>& values) {
  return test::OwnedTensor::f32({static_cast<std::int64_t>(values.size())}, values);
}

TEST(Verify, LooksBesideTheExpertsOfBothKinds) {
  for (const ExpertKind kind : {ExpertKind::nvfp4, ExpertKind::bf16}) {
    Onehot onehot({.layers = {kind}});
    const std::int64_t before = verified(onehot).bytes_checked;
    const std::string name = onehot.layer_name("mlp.gate.e_score_correction_bias");
    onehot.add(0, name, bias({0, 1, 2, 3}));
    const VerifyReport sound = verified(onehot);
    EXPECT_TRUE(sound.faults.empty()) << sound.faults.text();
    EXPECT_EQ(sound.bytes_checked, before + 16);
    onehot.set_f32(name, std::numeric_limits<float>::infinity());
    const VerifyReport report = verified(onehot);
    EXPECT_EQ(report.faults.total(), 4);
    EXPECT_THAT(report.faults.text(), HasSubstr(name));
  }
}

TEST(Verify, FindsGlobalScalesThatCombineOutOfRange) {
  Onehot onehot;
  const std::string name = onehot.name(2, "gate_proj.weight_scale_2");
  onehot.set_f32(name, 1e33F);
  const VerifyReport report = verified(onehot);
  EXPECT_EQ(report.faults.total(), 1) << report.faults.text();
  EXPECT_THAT(report.faults.text(),
              HasSubstr("layer 0, expert 2: the global scales combine to g1_alphas 1e+33"));
  EXPECT_THAT(report.warnings, SizeIs(0));
}

TEST(Verify, WarnsOfAnImplausibleInputScale) {
  Onehot onehot;
  onehot.set_f32(onehot.name(1, "down_proj.input_scale"), 1e10F);
  const VerifyReport report = verified(onehot);
  EXPECT_TRUE(report.faults.empty()) << report.faults.text();
  ASSERT_THAT(report.warnings, SizeIs(1));
  EXPECT_THAT(report.warnings[0], HasSubstr("layer 0: input scale 1e+10 of down"));
}

TEST(Verify, LooksAtTheRouterAndTheProjections) {
  const std::vector<std::pair<const char*, tensor::Shape>> around = {
      {"mlp.gate.weight", {4, 256}},
      {"mlp.pre_expert_proj.weight", {256, 256}},
      {"mlp.pre_expert_norm.weight", {256}},
      {"mlp.post_expert_proj.weight", {256, 256}}};
  for (const auto& [suffix, shape] : around) {
    Onehot onehot;
    const std::int64_t before = verified(onehot).bytes_checked;
    const std::string name = onehot.layer_name(suffix);
    const bool router = std::string(suffix) == "mlp.gate.weight";
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(2 * shape.elements()));
    if (router)
      onehot.at(name).bytes = bytes;
    else
      onehot.add(0, name, {tensor::Dtype::bf16, shape, bytes});
    EXPECT_EQ(verified(onehot).bytes_checked, before + (router ? 0 : 2 * shape.elements())) << suffix;
    onehot.at(name).bytes[2 * 255 + 1] = 0x7F;
    onehot.at(name).bytes[2 * 255] = 0xC0;
    const VerifyReport report = verified(onehot);
    EXPECT_EQ(report.faults.total(), 1) << suffix;
    EXPECT_THAT(report.faults.text(), HasSubstr(name));
    EXPECT_THAT(report.faults.text(), HasSubstr(shape.rank() == 1 ? "element 255" : "row 0, column 255"));
    EXPECT_THAT(report.faults.text(), HasSubstr("bits 0x7FC0"));
    // A tensor of another shape is a fault itself.
    onehot.at(name).shape = {2, shape.elements() / 2};
    EXPECT_THAT(verified(onehot).faults.text(), HasSubstr("tensor that cannot be used"));
  }
}

// All weights of a layer: a count and five places, the same at any thread count.
TEST(Verify, AThousandBadWeightsAreOneGroup) {
  Onehot onehot({.layers = {ExpertKind::bf16}});
  for (std::int64_t e = 0; e < Onehot::experts; ++e)
    for (const char* p : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"})
      std::fill(onehot.at(onehot.name(e, p)).bytes.begin(), onehot.at(onehot.name(e, p)).bytes.end(), 0xFF);
  const VerifyReport report = verified(onehot);
  ASSERT_THAT(report.faults.groups(), SizeIs(1));
  EXPECT_EQ(report.faults.total(), 4 * 3 * 128 * 256);
  ASSERT_THAT(report.faults.groups()[0].first, SizeIs(5));
  for (const std::string& place : report.faults.groups()[0].first)
    EXPECT_THAT(place, HasSubstr("model.layers.0.mlp.experts.0.gate_proj.weight, expert 0, row 0"));
  EXPECT_EQ(verified(onehot, 3).faults.text(), report.faults.text());
}

}  // namespace
}  // namespace kerf::tools
