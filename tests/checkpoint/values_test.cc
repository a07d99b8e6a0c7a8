// Values that are not finite: BF16 weights, and what stands beside the experts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/checkpoint/internal/scan.h"
#include "tests/checkpoint/refusal.h"

namespace kerf::checkpoint {
namespace {

using test::Onehot;
using test::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

void put(std::vector<std::uint8_t>& bytes, std::size_t at, std::uint16_t bits) {
  std::memcpy(bytes.data() + 2 * at, &bits, 2);
}

Faults values_of(const Onehot& onehot, std::int64_t e) {
  const TempDir dir;
  onehot.write(dir.path());
  Faults faults;
  Checkpoint::open(dir.path()).layer(0).scan_values(e, faults);
  return faults;
}

TEST(Values, FiniteOnesAreNoFaults) {
  for (const bool fused : {false, true}) {
    Onehot onehot({.layers = {ExpertKind::bf16}, .fused = fused});
    auto& bytes =
        onehot.at(fused ? onehot.layer_name("mlp.experts.down_proj") : onehot.name(1, "down_proj.weight"))
            .bytes;
    put(bytes, 0, 0x7F7F);  // the largest, the smallest, -0
    put(bytes, 1, 0xFF7F);
    put(bytes, 2, 0x0001);
    put(bytes, 3, 0x8000);
    for (std::int64_t e = 0; e < Onehot::experts; ++e) {
      const Faults faults = values_of(onehot, e);
      EXPECT_TRUE(faults.empty()) << faults.text();
    }
  }
}

TEST(Values, OfAnExpertNameTheirPlace) {
  Onehot onehot({.layers = {ExpertKind::bf16}});
  put(onehot.at(onehot.name(2, "up_proj.weight")).bytes, 5 * 256 + 11, 0x7FC0);
  put(onehot.at(onehot.name(2, "down_proj.weight")).bytes, 255 * 128 + 127, 0xFF80);
  const Faults faults = values_of(onehot, 2);
  ASSERT_EQ(faults.groups().size(), 1U);
  EXPECT_EQ(faults.groups()[0].kind, "BF16 weight that is not finite");
  EXPECT_EQ(faults.total(), 2);
  EXPECT_THAT(faults.groups()[0].first,
              ElementsAre("layer 0, model.layers.0.mlp.experts.2.up_proj.weight, expert 2, row 5, column 11, "
                          "bits 0x7FC0, in model-00002-of-00002.safetensors",
                          "layer 0, model.layers.0.mlp.experts.2.down_proj.weight, expert 2, row 255, column "
                          "127, bits 0xFF80, in model-00002-of-00002.safetensors"));
  EXPECT_TRUE(values_of(onehot, 1).empty());
}

// Up rows of a stack come after the gate rows of the same expert.
TEST(Values, OfAStackNameTheRowOfTheStack) {
  Onehot onehot({.layers = {ExpertKind::bf16}, .fused = true, .shards = 1});
  put(onehot.at(onehot.layer_name("mlp.experts.gate_up_proj")).bytes, (2 * 256 + 128 + 5) * 256 + 11, 0x7F80);
  EXPECT_THAT(values_of(onehot, 2).groups().at(0).first,
              ElementsAre("layer 0, model.layers.0.mlp.experts.gate_up_proj, expert 2, row 133, column 11, "
                          "bits 0x7F80, in model.safetensors"));
}

TEST(Values, AllOfThemAreOneMessage) {
  Onehot onehot({.layers = {ExpertKind::bf16}});
  auto& bytes = onehot.at(onehot.name(0, "gate_proj.weight")).bytes;
  std::fill(bytes.begin(), bytes.end(), 0xFF);
  const Faults faults = values_of(onehot, 0);
  EXPECT_EQ(faults.total(), 128 * 256);
  EXPECT_EQ(faults.groups().at(0).first.size(), 5U);
}

TEST(Values, AreOfBf16LayersAlone) {
  const TempDir dir;
  Onehot({.layers = {ExpertKind::bf16, ExpertKind::nvfp4}}).write(dir.path());
  const Checkpoint opened = Checkpoint::open(dir.path());
  Faults faults;
  test::refusal([&] { opened.layer(1).scan_values(0, faults); }, ErrorKind::bug);
  EXPECT_THAT(test::refusal([&] { opened.layer(0).scan_values(4, faults); }, ErrorKind::usage),
              HasSubstr("wanted 0 to 3"));
}

// Every bf16 code at the edges of the runs that are looked at together, from an odd address.
TEST(Values, FastPassFindsEveryCode) {
  const std::size_t words = 4096 + 3;
  std::vector<std::byte> bytes(1 + 2 * words);
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{4095}, std::size_t{4096}, words - 1}) {
      const bool everywhere = code % 64 == 0;  // exponents at all edges, mantissas in a short run
      if (at != 0 && !everywhere) continue;
      std::memcpy(bytes.data() + 1 + 2 * at, &code, 2);
      std::vector<std::pair<std::size_t, std::uint16_t>> found;
      internal::for_each_not_finite_bf16(
          std::span(bytes).subspan(1, everywhere ? 2 * words : 32),
          [&](std::size_t p, std::uint16_t bits) { found.emplace_back(p, bits); });
      if ((code & 0x7F80U) == 0x7F80U)
        ASSERT_THAT(found, ElementsAre(Pair(at, code)));
      else
        ASSERT_TRUE(found.empty()) << code << " at " << at;
      std::memset(bytes.data() + 1 + 2 * at, 0, 2);
    }
  }
}

struct Extra {
  const char* suffix;
  tensor::Dtype dtype;
  std::int64_t elements;
  const char* kind;
};

TEST(Extras, ValuesThatAreNotFinite) {
  const std::vector<Extra> extras = {
      {"mlp.experts.post_expert_norm.weight", tensor::Dtype::bf16, 256, "norm weight that is not finite"},
      {"mlp.gate.e_score_correction_bias", tensor::Dtype::bf16, 4, "selection bias that is not finite"},
      {"mlp.gate.e_score_correction_bias", tensor::Dtype::f32, 4, "selection bias that is not finite"}};
  for (const Extra& extra : extras) {
    for (const ExpertKind kind : {ExpertKind::nvfp4, ExpertKind::bf16}) {
      for (const std::uint16_t upper : std::array<std::uint16_t, 4>{0x7F80, 0xFF80, 0x7FC0, 0x7F7F}) {
        const std::size_t word = extra.dtype == tensor::Dtype::f32 ? 4 : 2;
        std::vector<std::uint8_t> bytes(static_cast<std::size_t>(extra.elements) * word);
        std::memcpy(bytes.data() + 3 * word + word - 2, &upper, 2);  // element 3
        Onehot onehot({.layers = {kind}});
        onehot.add(1, onehot.layer_name(extra.suffix), {extra.dtype, {extra.elements}, std::move(bytes)});
        const TempDir dir;
        onehot.write(dir.path());
        Faults faults;
        Checkpoint::open(dir.path()).layer(0).scan_extras(faults);
        if (upper == 0x7F7F) {
          EXPECT_TRUE(faults.empty()) << faults.text();
          continue;
        }
        ASSERT_EQ(faults.total(), 1) << extra.suffix;
        EXPECT_EQ(faults.groups()[0].kind, extra.kind);
        EXPECT_THAT(faults.text(),
                    testing::AllOf(HasSubstr("layer 0"), HasSubstr(onehot.layer_name(extra.suffix)),
                                   HasSubstr("element 3"), HasSubstr("bits 0x"),
                                   HasSubstr("model-00002-of-00002.safetensors")));
      }
    }
  }
}

}  // namespace
}  // namespace kerf::checkpoint
