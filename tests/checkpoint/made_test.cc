// Checkpoints that real quantisers wrote (fixtures/make.py), against what the quantisers' own packages make
// of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/checkpoint/safetensors.h"
#include "kerf/decode/sha256.h"
#include "kerf/numeric/e4m3.h"
#include "tests/support/made.h"
#include "tests/support/paths.h"
#include "tests/support/test_env.h"

namespace kerf::checkpoint {
namespace {

using test::made;
using ::testing::HasSubstr;

struct Values {
  std::vector<float> exact;   // code times block scale: no rounding
  std::vector<float> scaled;  // code times (block scale times global scale), each product rounded once
};

// The documents' table, in full: nothing of kerf's decoder.
constexpr std::array<float, 8> magnitudes = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};

Values nvfp4_values(const tensor::TensorView& codes, const tensor::TensorView& scales, float global) {
  Values out;
  const auto bytes = codes.as<std::uint8_t>();
  const auto factors = scales.as<std::uint8_t>();
  for (std::size_t k = 0; k < 2 * bytes.size(); ++k) {
    const unsigned code = (bytes[k / 2] >> (4 * (k % 2))) & 0xFU;
    const float value = code < 8 ? magnitudes[code] : -magnitudes[code - 8];
    const float scale = numeric::e4m3_to_f32(factors[k / 16]);
    out.exact.push_back(value * scale + 0.0F);  // -0 becomes +0, as in the truth
    out.scaled.push_back(value * (scale * global) + 0.0F);
  }
  return out;
}

std::vector<float> bf16_values(const tensor::TensorView& weights) {
  std::vector<float> out(weights.bytes.size() / 2);
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, weights.bytes.data() + 2 * i, sizeof(bits));
    out[i] = std::bit_cast<float>(std::uint32_t{bits} << 16U) + 0.0F;
  }
  return out;
}

std::string sha256(const std::vector<float>& values) {
  decode::Sha256 digest;
  digest.update(std::as_bytes(std::span(values)));
  return digest.hex();
}

std::vector<float> from_hex(const std::string& hex) {
  std::vector<float> out(hex.size() / 8);
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint32_t bits = 0;
    for (std::size_t byte = 0; byte < 4; ++byte)
      bits |= static_cast<std::uint32_t>(std::stoul(hex.substr(8 * i + 2 * byte, 2), nullptr, 16))
              << (8 * byte);
    out[i] = std::bit_cast<float>(bits);
  }
  return out;
}

// What both tools have in common: one matrix's values against the truth's.
void expect_matrix(const nlohmann::json& truth, const tensor::TensorView& codes,
                   const tensor::TensorView& scales, float global, bool divisors) {
  EXPECT_EQ(codes.shape[0], truth["shape"][0].get<std::int64_t>());
  EXPECT_EQ(2 * codes.shape[1], truth["shape"][1].get<std::int64_t>());
  EXPECT_EQ(global, static_cast<float>(truth["global_scale"].get<double>()));
  const Values values = nvfp4_values(codes, scales, global);
  EXPECT_EQ(sha256(values.exact), truth["unscaled_sha256"]);
  if (!divisors) {
    EXPECT_EQ(sha256(values.scaled), truth["sha256"]);
  }
  // A package that divides by the global scale rounds s / g once and the product once; kerf rounds 1 / g,
  // the product with s and the product with the code: five roundings in all, 2^-24 each.
  const std::vector<float> row = from_hex(truth["row_hex"]);
  const auto begin = static_cast<std::size_t>(truth["row"].get<std::int64_t>()) * row.size();
  for (std::size_t k = 0; k < row.size(); ++k)
    ASSERT_LE(std::abs(values.scaled[begin + k] - row[k]), std::ldexp(std::abs(row[k]), -24) * 5) << k;
}

class Made : public ::testing::TestWithParam<const char*> {};

TEST_P(Made, HasThePackagesValues) {
  const nlohmann::json truth = test::made_truth(GetParam());
  const Checkpoint ckpt = Checkpoint::open(made(GetParam()));
  const ModelConfig& config = ckpt.config();
  EXPECT_EQ(config.experts, truth["experts"]);
  EXPECT_EQ(config.hidden, truth["hidden"]);
  EXPECT_EQ(config.intermediate, truth["intermediate"]);
  EXPECT_EQ(config.top_k, truth["top_k"]);
  const bool divisors = truth["made_by"].contains("compressed-tensors");
  std::vector<std::int64_t> layers;
  for (const auto& [index, wanted] : truth["layers"].items()) layers.push_back(std::stoll(index));
  EXPECT_EQ(ckpt.moe_layers(), layers);
  for (const auto& [index, wanted] : truth["layers"].items()) {
    const MoeLayer& layer = ckpt.layer(std::stoll(index));
    const bool nvfp4 = wanted["kind"] == "nvfp4";
    ASSERT_EQ(layer.kind() == ExpertKind::nvfp4, nvfp4);
    Faults faults;
    LayerScales scales;
    if (nvfp4) scales = layer.scales(faults);
    EXPECT_TRUE(faults.empty()) << faults.text();
    for (std::int64_t e = 0; e < config.experts; ++e) {
      SCOPED_TRACE("layer " + index + ", expert " + std::to_string(e));
      const nlohmann::json& expert = wanted["experts"][static_cast<std::size_t>(e)];
      const ExpertViews views = layer.expert(e);
      if (!nvfp4) {
        EXPECT_EQ(sha256(bf16_values(views.gate)), expert["gate"]["sha256"]);
        EXPECT_EQ(sha256(bf16_values(views.up)), expert["up"]["sha256"]);
        EXPECT_EQ(sha256(bf16_values(views.down)), expert["down"]["sha256"]);
        continue;
      }
      const auto at = static_cast<std::size_t>(e);
      expect_matrix(expert["gate"], views.gate, views.gate_sf, scales.ws2_gate[at], divisors);
      expect_matrix(expert["up"], views.up, views.up_sf, scales.ws2_up[at], divisors);
      expect_matrix(expert["down"], views.down, views.down_sf, scales.ws2_down[at], divisors);
      layer.scan_block_scales(e, faults);
    }
    EXPECT_TRUE(faults.empty()) << faults.text();
  }
}

// The largest and the smallest input scale of a layer, over all its experts, from the files by another
// reader.
TEST_P(Made, HasTheFilesInputScales) {
  const nlohmann::json truth = test::made_truth(GetParam());
  const Checkpoint ckpt = Checkpoint::open(made(GetParam()));
  for (const auto& [index, wanted] : truth["layers"].items()) {
    if (wanted["kind"] != "nvfp4") continue;
    std::vector<float> first;
    std::vector<float> second;
    for (const auto& expert : wanted["experts"])
      for (const char* part : {"gate", "up", "down"})
        if (const auto& given = expert[part]["input_scale"]; !given.is_null())
          (part == std::string("down") ? second : first).push_back(static_cast<float>(given.get<double>()));
    Faults faults;
    const LayerScales scales = ckpt.layer(std::stoll(index)).scales(faults);
    EXPECT_EQ(scales.weight_only, first.empty());
    if (first.empty()) continue;
    EXPECT_EQ(scales.in13, *std::max_element(first.begin(), first.end()));
    EXPECT_EQ(scales.least13, *std::min_element(first.begin(), first.end()));
    EXPECT_EQ(scales.in2, *std::max_element(second.begin(), second.end()));
    EXPECT_EQ(scales.least2, *std::min_element(second.begin(), second.end()));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Made, testing::ValuesIn(test::made_cases), test::made_case_name);

// Llama-4's stacks lie the other way round, [E, H / 16, 2I]: what is wrong is told by row and block all the
// same.
TEST(MadeCases, FaultsOfTurnedStacksAreToldByRowAndBlock) {
  const test::TempDir dir;
  std::filesystem::copy(made("modelopt-llama4"), dir.path(), std::filesystem::copy_options::recursive);
  const std::string name = "model.layers.0.feed_forward.experts.gate_up_proj_weight_scale";
  const auto file = dir.path() / "model.safetensors";
  const std::int64_t begin = SafetensorsFile::open(file).header().tensors.at(name).begin;
  std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
  for (const auto [e, block, column] : {std::array{2, 3, 70}, {0, 7, 5}}) {  // up's row 6, and gate's row 5
    out.seekp(begin + (e * 8 + block) * 128 + column);
    out.put('\x7F');
  }
  out.close();
  Faults faults;
  const Checkpoint ckpt = Checkpoint::open(dir.path());
  for (std::int64_t e = 0; e < 4; ++e) {
    EXPECT_EQ(ckpt.layer(0).scan_block_scales(e, faults), 3 * 128 * 64 / 16);
    std::int64_t stored = 0;
    for (const auto& run : ckpt.layer(0).stored_block_scales(e)) stored += run.bytes();
    EXPECT_EQ(stored, 3 * 128 * 64 / 16);
  }
  ASSERT_THAT(faults.groups(), testing::SizeIs(1));
  EXPECT_EQ(faults.groups()[0].kind, "NaN block scale");
  EXPECT_THAT(faults.groups()[0].first,
              testing::ElementsAre(HasSubstr(name + ", expert 0, row 5, block 7, byte 0x7F"),
                                   HasSubstr(name + ", expert 2, row 70, block 3, byte 0x7F")));
}

// Every case is tested here, or refused below.
TEST(MadeCases, AreAllThereAre) {
  std::vector<std::string> there;
  for (const auto& entry : std::filesystem::directory_iterator(kerf::test::made_folder))
    if (entry.is_directory()) there.push_back(entry.path().filename());
  std::vector<std::string> known(test::made_cases.begin(), test::made_cases.end());
  known.insert(known.end(), test::made_refused.begin(), test::made_refused.end());
  EXPECT_THAT(there, testing::UnorderedElementsAreArray(known));
}

// gpt-oss: experts with biases, gate and up rows in turns.
TEST(MadeCases, BiasesAreRefusedByName) {
  for (const char* name : test::made_refused) {
    const Verdict why = attempt([&] { (void)Checkpoint::open(made(name)); });
    ASSERT_TRUE(why) << name;
    EXPECT_EQ(why->kind, ErrorKind::unsupported) << why->text;
    EXPECT_THAT(why->text, HasSubstr("bias")) << name;
  }
}

}  // namespace
}  // namespace kerf::checkpoint
