// kerf inspect, verify and synth on sound and damaged checkpoints.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/support/onehot.h"

namespace kerf::test {
namespace {

std::string written(const Onehot& checkpoint, const TempDir& dir) {
  checkpoint.write(dir.path());
  return dir.path().string();
}

std::vector<std::string> keys(const nlohmann::json& object) {
  std::vector<std::string> out;
  for (const auto& [key, value] : object.items()) out.push_back(key);
  return out;
}

TEST(Inspect, SaysWhatIsThere) {
  const TempDir dir;
  const std::string path = written(Onehot{}, dir);
  const Ran ran = run_program({"inspect", path, "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  const auto json = json_of(ran);
  EXPECT_EQ(json["experts"], 4);
  EXPECT_EQ(json["hidden"], 256);
  EXPECT_EQ(json["intermediate"], 128);
  EXPECT_EQ(json["top_k"], 2);
  EXPECT_EQ(json["nvfp4_layers"], 1);
  EXPECT_EQ(json["legal_tp"], (std::vector<int>{1, 2}));
  EXPECT_EQ(json["shards"].size(), 2U);
  EXPECT_EQ(json["faults_total"], 0);
  ASSERT_EQ(json["layers"].size(), 1U);
  const auto layer = json["layers"][0];
  EXPECT_EQ(layer["kind"], "nvfp4");
  EXPECT_EQ(layer["dialect"], "per-expert");
  EXPECT_EQ(layer["tensors"]["gate"]["dtype"], "U8");
  EXPECT_EQ(layer["tensors"]["gate"]["shape"], (std::vector<int>{128, 128}));
  EXPECT_EQ(layer["tensors"]["down_scale"]["shape"], (std::vector<int>{256, 8}));
  EXPECT_EQ(keys(layer["block"]), (std::vector<std::string>{"router"}));
  EXPECT_EQ(layer["block"]["router"]["dtype"], "BF16");
  EXPECT_EQ(layer["block"]["router"]["shape"], (std::vector<int>{4, 256}));
  EXPECT_EQ(layer["gate_up_differ"], 0);
  EXPECT_EQ(layer["input_scale"]["highest"], 1.0);
  EXPECT_EQ(layer["intermediate_scale"]["lowest"], 216.0);
  const Ran text = run_program({"inspect", path});
  EXPECT_EQ(text.code, 0);
  for (const char* words :
       {"4 of 256 x 128", "per-expert", "F8_E4M3 [256,8]", "no faults found", "legal tp      1, 2"})
    EXPECT_TRUE(contains(text.out, words));
}

TEST(Inspect, ListsTheTensorsAroundTheExperts) {
  const TempDir dir;
  const std::string c = (dir.path() / "c").string();
  ASSERT_EQ(run_program({"synth", c, "--experts", "4", "--hidden", "128", "--model-width", "320",
                         "--intermediate", "64", "--layers", "1", "--bf16-layers", "none"})
                .code,
            0);
  const auto json = json_of(run_program({"inspect", c, "--json"}));
  EXPECT_EQ(json["model_hidden"], 320);
  const auto block = json["layers"][0]["block"];
  EXPECT_EQ(keys(block), (std::vector<std::string>{"post_norm", "post_projection", "pre_norm",
                                                   "pre_projection", "router", "router_bias"}));
  EXPECT_EQ(block["router"]["dtype"], "F32");
  EXPECT_EQ(block["router"]["shape"], (std::vector<int>{4, 320}));
  EXPECT_EQ(block["pre_projection"]["shape"], (std::vector<int>{128, 320}));
  EXPECT_EQ(block["post_projection"]["shape"], (std::vector<int>{320, 128}));
  EXPECT_TRUE(contains(run_program({"inspect", c}).out, "pre_projection      BF16 [128,320]"));
}

TEST(Inspect, FindsARouterThatIsNoRouter) {
  const TempDir dir;
  Onehot checkpoint;
  checkpoint.at(checkpoint.layer_name("mlp.gate.weight")).shape = {256, 4};
  const std::string path = written(checkpoint, dir);
  const auto json = json_of(run_program({"inspect", path, "--json"}));
  EXPECT_EQ(json["faults_total"], 1);
  const Ran ran = run_program({"verify", path});
  EXPECT_EQ(ran.code, 3);
  EXPECT_TRUE(contains(ran.out, "model.layers.0.mlp.gate.weight"));
  EXPECT_TRUE(contains(ran.out, "got BF16 [256, 4], wanted F32 or BF16 [4, 256]"));
}

TEST(Inspect, SaysThatGateAndUpScalesDiffer) {
  const TempDir dir;
  Onehot checkpoint;
  checkpoint.differ_gate_up();
  const std::string path = written(checkpoint, dir);
  const Ran ran = run_program({"inspect", path});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_TRUE(contains(
      ran.out, "3 of 4 experts have different gate/up global scales, largest ratio 4, kept separate"));
  const auto layer = json_of(run_program({"inspect", path, "--json"}))["layers"][0];
  EXPECT_EQ(layer["gate_up_differ"], 3);
  EXPECT_EQ(layer["largest_gate_up_ratio"], 4.0);
  ASSERT_EQ(layer["notes"].size(), 1U);
  EXPECT_TRUE(contains(ran.out, layer["notes"][0].get<std::string>()));
}

TEST(Inspect, ListsFaultsAndEndsWell) {
  const TempDir dir;
  Onehot checkpoint;
  checkpoint.set_f32(checkpoint.name(2, "down_proj.input_scale"), 0.0F);
  const std::string path = written(checkpoint, dir);
  const Ran ran = run_program({"inspect", path});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_TRUE(contains(ran.out, "1 fault found:"));
  EXPECT_TRUE(contains(ran.out, "experts.2.down_proj.input_scale"));
  EXPECT_EQ(json_of(run_program({"inspect", path, "--json"}))["faults_total"], 1);
}

TEST(Verify, SoundCheckpointsHaveNoFaults) {
  const TempDir dir;
  const std::string path = written(Onehot{}, dir);
  const Ran ran = run_program({"verify", path});
  EXPECT_EQ(ran.code, 0) << ran.err;
  // Block scales 2 * 128 * 16 + 256 * 8, six scalars, and a BF16 row of the router's weight, of four experts.
  const std::int64_t bytes = 4 * (2 * 128 * 16 + 256 * 8 + 6 * 4 + 256 * 2);
  EXPECT_EQ(ran.out, "no faults: 1 layer, 4 experts, " + std::to_string(bytes) + " bytes checked\n");
  const auto json = json_of(run_program({"verify", path, "--json"}));
  EXPECT_EQ(json["bytes_checked"], bytes);
  EXPECT_EQ(json["faults_total"], 0);
}

TEST(Verify, FindsABlockScaleThatIsNoNumber) {
  const TempDir dir;
  Onehot checkpoint;
  checkpoint.at(checkpoint.name(2, "up_proj.weight_scale")).bytes[5 * 16 + 11] = 0x7F;
  const Ran ran = run_program({"verify", written(checkpoint, dir)});
  EXPECT_EQ(ran.code, 3);
  for (const char* words : {"1 fault: 1 layer, ", "expert 2", "row 5", "block 11", "0x7F"})
    EXPECT_TRUE(contains(ran.out, words));
  EXPECT_TRUE(contains(ran.err, "1 fault of 1 kind"));
}

TEST(Verify, GroupsManyFaultsAndGivesTheFirst) {
  const TempDir dir;
  Onehot checkpoint;
  for (int n = 0; n < 1000; ++n)
    checkpoint.at(checkpoint.name(n % 4, "gate_proj.weight_scale"))
        .bytes[static_cast<std::size_t>(n / 4) * 8] = 0x7F;
  checkpoint.at(checkpoint.name(1, "up_proj.weight_scale")).bytes[0] = 0xB8;
  checkpoint.at(checkpoint.name(1, "up_proj.weight_scale")).bytes[1] = 0x80;  // -0 is sound
  checkpoint.set_f32(checkpoint.name(3, "up_proj.weight_scale_2"), std::numeric_limits<float>::infinity());
  const std::string path = written(checkpoint, dir);
  const Ran one = run_program({"verify", path, "--json"}, {"KERF_THREADS=1"});
  EXPECT_EQ(one.code, 3);
  const auto json = json_of(one);
  EXPECT_EQ(json["faults_total"], 1002);
  std::int64_t total = 0;
  bool found = false;
  for (const auto& group : json["faults"]) {
    total += group["total"].get<std::int64_t>();
    if (group["total"] != 1000) continue;
    found = true;
    ASSERT_EQ(group["first"].size(), 5U);
    for (const auto& place : group["first"]) EXPECT_TRUE(contains(place.get<std::string>(), "expert 0"));
  }
  EXPECT_TRUE(found) << json.dump(1);
  EXPECT_EQ(total, 1002);
  EXPECT_EQ(run_program({"verify", path, "--json"}, {"KERF_THREADS=4"}).out, one.out);
}

TEST(Verify, LooksAtBf16Weights) {
  const TempDir dir;
  Onehot checkpoint({.layers = {checkpoint::ExpertKind::nvfp4, checkpoint::ExpertKind::bf16}});
  auto& bytes = checkpoint.at(checkpoint.name(3, "up_proj.weight", 1)).bytes;
  bytes[2 * (7 * 256 + 9)] = 0xC0;
  bytes[2 * (7 * 256 + 9) + 1] = 0x7F;
  const Ran ran = run_program({"verify", written(checkpoint, dir)});
  EXPECT_EQ(ran.code, 3);
  EXPECT_TRUE(contains(
      ran.out,
      "layer 1, model.layers.1.mlp.experts.3.up_proj.weight, expert 3, row 7, column 9, bits 0x7FC0"));
}

TEST(Verify, FusedNamesToo) {
  const TempDir dir;
  const Ran ran =
      run_program({"verify", written(Onehot({.prefix = "model.language_model.", .fused = true}), dir)});
  EXPECT_EQ(ran.code, 0) << ran.err << ran.out;
}

TEST(Verify, DamagedFilesAreRefusedBeforeAnything) {
  const TempDir dir;
  const std::string path = written(Onehot{}, dir);
  const auto shard = dir.path() / "model-00002-of-00002.safetensors";
  const auto size = std::filesystem::file_size(shard);
  std::filesystem::resize_file(shard, size - 4096);
  expect_refusal(run_program({"verify", path}), 3, {std::to_string(size), std::to_string(size - 4096)});
  std::filesystem::remove(shard);
  expect_refusal(run_program({"verify", path}), 3,
                 {"model-00002-of-00002.safetensors", "incomplete download"});
}

TEST(SynthCommand, WritesWhatVerifyAccepts) {
  const TempDir dir;
  for (const char* model : {"muse-spark", "qwen3-moe", "tiny"}) {
    const std::string c = (dir.path() / model).string();
    const Ran ran =
        run_program({"synth", c, "--model", model, "--experts", "4", "--hidden", "256", "--intermediate",
                     "64", "--layers", "2", "--top-k", "2", "--bf16-layers", "1", "--seed", "9", "--json"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(json_of(ran)["bf16_layers"], (std::vector<int>{1}));
    EXPECT_EQ(run_program({"verify", c}).code, 0);
    const auto json = json_of(run_program({"inspect", c, "--json"}));
    EXPECT_EQ(json["nvfp4_layers"], 1);
    EXPECT_EQ(json["bf16_layers"], 1);
    EXPECT_EQ(json["faults_total"], 0);
  }
}

TEST(SynthCommand, DefaultsFitTheModel) {
  const TempDir dir;
  const std::string c = (dir.path() / "c").string();
  const Ran ran = run_program({"synth", c, "--model", "tiny", "--quiet"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  EXPECT_TRUE(contains(ran.out, "8 experts of 256 x 128"));
}

TEST(SynthCommand, RefusesWhatCannotBe) {
  const TempDir dir;
  const std::string c = (dir.path() / "c").string();
  const auto refused = [&](std::vector<std::string> more, int code,
                           std::initializer_list<std::string_view> words) {
    std::vector<std::string> a = {"synth", c, "--model", "tiny"};
    a.insert(a.end(), more.begin(), more.end());
    expect_refusal(run_program(a), code, words);
    EXPECT_FALSE(std::filesystem::exists(c));
  };
  refused({"--hidden", "200"}, 4, {"hidden 200", "128"});
  refused({"--intermediate", "100"}, 4, {"intermediate 100", "16"});
  refused({"--experts", "0"}, 2, {"--experts", "'0'", "from 1"});
  refused({"--experts", "-1"}, 2, {"--experts", "'-1'", "from 1"});
  refused({"--top-k", "9"}, 2, {"top-k is 9"});
  refused({"--layers", "2", "--bf16-layers", "5"}, 2, {"BF16 layer 5"});
  refused({"--bf16-layers", "3-1"}, 2, {"3-1"});
  refused({"--model-width", "512"}, 2, {"model width is 512", "hidden 256", "no projection"});
  refused({"--model-width", "0"}, 2, {"--model-width"});
  refused({"--seed", "18446744073709551616"}, 2, {"--seed", "18446744073709551616"});
  expect_refusal(run_program({"synth", c, "--model", "gpt"}), 2, {"gpt", "muse-spark"});
}

TEST(SynthCommand, KeepsOtherPeoplesFiles) {
  const TempDir dir;
  std::ofstream(dir.path() / "thesis.txt") << "years of work";
  expect_refusal(run_program({"synth", dir.path().string(), "--model", "tiny"}), 2, {"thesis.txt"});
  EXPECT_EQ(read_text(dir.path() / "thesis.txt"), "years of work");
}

}  // namespace
}  // namespace kerf::test
