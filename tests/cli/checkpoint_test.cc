// kerf inspect, verify and synth on sound and damaged checkpoints.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/support/onehot.h"
#include "tests/support/xml.h"

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

// Onehot's gate and up have one live block a row (of 16), its down one a row (of 8): the others are zeros
// under scales of 448.
TEST(Inspect, CountsBlocksOfZerosWhateverTheirScale) {
  const TempDir dir;
  Onehot checkpoint;
  checkpoint.differ_gate_up();
  const std::string path = written(checkpoint, dir);
  const auto json = json_of(run_program({"inspect", path, "--json"}));
  const auto layer = json["layers"][0];
  const std::int64_t blocks = 4 * (2 * 128 * 16 + 256 * 8);
  const std::int64_t live = 4 * (2 * 128 + 256);
  for (const auto& where : {layer, json}) {
    EXPECT_EQ(where["blocks"], blocks);
    EXPECT_EQ(where["zero_blocks"], blocks - live);
    EXPECT_EQ(where["zero_block_share"], static_cast<double>(blocks - live) / static_cast<double>(blocks));
  }
  // Block scales 1 (gate, up) and 0.5 (down) times the global scales of differ_gate_up().
  EXPECT_EQ(layer["scales"]["gate"], (nlohmann::json{{"lowest", 0.25}, {"highest", 2.0}}));
  EXPECT_EQ(layer["scales"]["up"], (nlohmann::json{{"lowest", 0.25}, {"highest", 1.0}}));
  EXPECT_EQ(layer["scales"]["down"], (nlohmann::json{{"lowest", 0.25}, {"highest", 0.5}}));
  EXPECT_EQ(json["gate_up_differ"], 3);
  EXPECT_EQ(json["largest_gate_up_ratio"], 4.0);
  EXPECT_EQ(json["largest_gate_up_ratio_layer"], 0);
  const std::string text = run_program({"inspect", path}).out;
  for (const char* words :
       {"zero blocks   22528 of 24576 (91.7 %)", "gate decoded by     0.25 to 2 (8.00x)",
        "gate/up       3 experts with different global scales, largest ratio 4 (layer 0)"})
    EXPECT_TRUE(contains(text, words));
  // Not read, not told.
  const auto headers = json_of(run_program({"inspect", path, "--headers", "--json"}));
  EXPECT_FALSE(headers.contains("zero_blocks"));
  EXPECT_FALSE(headers["layers"][0].contains("scales"));
  EXPECT_EQ(headers["largest_gate_up_ratio"], 4.0);
}

TEST(Inspect, TellsTheSpreadOfInputScales) {
  const TempDir dir;
  Onehot checkpoint;
  checkpoint.set_f32(checkpoint.name(2, "up_proj.input_scale"), 0.25F);
  checkpoint.set_f32(checkpoint.name(3, "down_proj.input_scale"), 54.0F);
  const std::string path = written(checkpoint, dir);
  const auto layer = json_of(run_program({"inspect", path, "--json"}))["layers"][0];
  EXPECT_EQ(layer["input_scale"], (nlohmann::json{{"lowest", 0.25}, {"highest", 1.0}}));
  EXPECT_EQ(layer["intermediate_scale"], (nlohmann::json{{"lowest", 54.0}, {"highest", 216.0}}));
  EXPECT_TRUE(contains(run_program({"inspect", path}).out, "input scales        0.25 to 1 (4.00x)"));
}

TEST(Inspect, DrawsTheScalesOfEveryLayerAndExpert) {
  const TempDir dir;
  const TempDir out;
  const std::string path =
      written(Onehot({.layers = {checkpoint::ExpertKind::nvfp4, checkpoint::ExpertKind::bf16,
                                 checkpoint::ExpertKind::nvfp4}}),
              dir);
  const std::string plot = (out.path() / "out.svg").string();
  const Ran ran = run_program({"inspect", path, "--plot", plot, "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(json_of(ran)["plot"], plot);
  const std::string svg = read_text(plot);
  EXPECT_EQ(xml_fault(svg), "");
  for (const char* curve : {"data-name=\"gate\"", "data-name=\"up\"", "data-name=\"down\""})
    EXPECT_TRUE(contains(svg, curve));
  for (const int layer : {0, 2})
    for (int e = 0; e < 4; ++e)
      EXPECT_TRUE(contains(svg, "layer " + std::to_string(layer) + ", expert " + std::to_string(e) +
                                    ": 0.5 to 1, 5632 of 6144 blocks zero"));
  EXPECT_FALSE(contains(svg, "layer 1, expert"));  // BF16: no scales
}

TEST(Inspect, ThePlotTakesNobodysPlace) {
  const TempDir dir;
  const TempDir out;
  const std::string path = written(Onehot{}, dir);
  for (const std::string& inside : {path + "/out.svg", path + "/config.json"})
    expect_refusal(run_program({"inspect", path, "--plot", inside}), 2, {"inside the checkpoint"});
  EXPECT_FALSE(std::filesystem::exists(path + "/out.svg"));
  expect_refusal(run_program({"inspect", path, "--plot", (out.path() / "none" / "o.svg").string()}), 2,
                 {"none"});
  expect_refusal(run_program({"inspect", path, "--plot", ""}), 2, {"--plot"});
  expect_refusal(run_program({"inspect", path, "--headers", "--plot", (out.path() / "o.svg").string()}), 2,
                 {"--headers", "--plot"});
  // Where standard output goes to the very file.
  const std::string report = (out.path() / "report").string();
  const int to = ::open(report.c_str(), O_CREAT | O_WRONLY, 0600);
  ASSERT_GE(to, 0);
  const Ran ran = run_program({"inspect", path, "--plot", report}, {}, to);
  ::close(to);
  EXPECT_EQ(ran.code, 2);
  EXPECT_TRUE(contains(ran.err, "standard output"));
  EXPECT_EQ(read_text(report), "");
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

// Faults of six kinds in three layers, each planted here: their totals, their first five places in the order
// of the layers, and the exit code.
TEST(Verify, ReportsAllFaultsOfAllKindsInAllLayers) {
  const TempDir dir;
  using checkpoint::ExpertKind;
  Onehot c({.layers = {ExpertKind::nvfp4, ExpertKind::nvfp4, ExpertKind::bf16}});
  const auto scale = [&](std::int64_t layer, std::int64_t e, const char* suffix, std::size_t at,
                         std::uint8_t byte) { c.at(c.name(e, suffix, layer)).bytes[at] = byte; };
  // NaN block scales: 7 in layer 0, 2 in layer 1. gate has 16 blocks a row, down 8.
  for (std::size_t n = 0; n < 7; ++n) scale(0, 1, "gate_proj.weight_scale", 16 * n + n, 0x7F);
  scale(1, 0, "down_proj.weight_scale", 8 * 255 + 7, 0xFF);
  scale(1, 3, "up_proj.weight_scale", 16 * 127, 0x7F);
  // Negative ones: 1 and 3.
  scale(0, 2, "up_proj.weight_scale", 5, 0x81);
  for (std::size_t n = 0; n < 3; ++n) scale(1, 2, "down_proj.weight_scale", n, 0xFE);
  // Global and input scales: a NaN, two zeros, one negative.
  c.set_f32(c.name(0, "gate_proj.weight_scale_2", 1), std::numeric_limits<float>::quiet_NaN());
  c.set_f32(c.name(1, "up_proj.weight_scale_2", 0), 0.0F);
  c.set_f32(c.name(2, "up_proj.weight_scale_2", 1), 0.0F);
  c.set_f32(c.name(3, "down_proj.input_scale", 1), -1.0F);
  // BF16 weights of layer 2: an infinity and a NaN.
  for (const std::size_t column : {3U, 200U}) {
    auto& bytes = c.at(c.name(1, "gate_proj.weight", 2)).bytes;
    bytes[2 * (9 * 256 + column)] = column == 3 ? 0x80 : 0xC0;
    bytes[2 * (9 * 256 + column) + 1] = 0x7F;
  }
  const std::string path = written(c, dir);
  const Ran ran = run_program({"verify", path, "--json"}, {"KERF_THREADS=3"});
  EXPECT_EQ(ran.code, 3);
  const auto json = json_of(ran);
  EXPECT_EQ(keys(json), (std::vector<std::string>{"bytes_checked", "checkpoint", "experts", "faults",
                                                  "faults_total", "layers", "notes", "warnings"}));
  EXPECT_EQ(json["layers"], 3);
  EXPECT_EQ(json["experts"], 12);
  EXPECT_EQ(json["faults_total"], 9 + 4 + 1 + 2 + 1 + 2);
  std::map<std::string, nlohmann::json> groups;
  for (const auto& group : json["faults"]) {
    EXPECT_EQ(keys(group), (std::vector<std::string>{"first", "kind", "total"}));
    groups[group["kind"].get<std::string>()] = group;
  }
  const auto expect_group = [&](const char* kind, std::int64_t total, const std::vector<std::string>& first) {
    ASSERT_TRUE(groups.contains(kind)) << kind << json["faults"].dump(1);
    EXPECT_EQ(groups[kind]["total"], total) << kind;
    const auto places = groups[kind]["first"].get<std::vector<std::string>>();
    ASSERT_EQ(places.size(), first.size()) << kind;
    for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(contains(places[i], first[i])) << kind;
  };
  EXPECT_EQ(groups.size(), 6U);
  const std::string layer0 = "layer 0, model.layers.0.mlp.experts.";
  const std::string layer1 = "layer 1, model.layers.1.mlp.experts.";
  std::vector<std::string> nans;
  for (int n = 0; n < 5; ++n)
    nans.push_back(layer0 + "1.gate_proj.weight_scale, expert 1, row " + std::to_string(n) + ", block " +
                   std::to_string(n) + ", byte 0x7F");
  expect_group("NaN block scale", 9, nans);
  expect_group("negative block scale", 4,
               {layer0 + "2.up_proj.weight_scale, expert 2, row 0, block 5, byte 0x81",
                layer1 + "2.down_proj.weight_scale, expert 2, row 0, block 0, byte 0xFE",
                layer1 + "2.down_proj.weight_scale, expert 2, row 0, block 1, byte 0xFE",
                layer1 + "2.down_proj.weight_scale, expert 2, row 0, block 2, byte 0xFE"});
  expect_group("NaN weight_scale_2", 1, {layer1 + "0.gate_proj.weight_scale_2, expert 0, 1 of 4, value nan"});
  expect_group("zero weight_scale_2", 2,
               {layer0 + "1.up_proj.weight_scale_2, expert 1, 1 of 4, value 0",
                layer1 + "2.up_proj.weight_scale_2, expert 2, 1 of 4, value 0"});
  expect_group("negative input_scale", 1, {layer1 + "3.down_proj.input_scale, expert 3, 1 of 4, value -1"});
  expect_group(
      "BF16 weight that is not finite", 2,
      {"layer 2, model.layers.2.mlp.experts.1.gate_proj.weight, expert 1, row 9, column 3, bits 0x7F80",
       "layer 2, model.layers.2.mlp.experts.1.gate_proj.weight, expert 1, row 9, column 200, bits 0x7FC0"});
  // The same as text.
  const Ran text = run_program({"verify", path});
  EXPECT_EQ(text.code, 3);
  for (const char* words : {"19 faults: 3 layers, 12 experts", "  NaN block scale: 9", "    and 4 more",
                            "  negative block scale: 4", "  zero weight_scale_2: 2"})
    EXPECT_TRUE(contains(text.out, words));
  EXPECT_TRUE(contains(text.err, "19 faults of 6 kinds"));
}

TEST(Verify, MeasuresItselfAgainstAPlainReadOfTheSameBytes) {
  const TempDir dir;
  const std::string path =
      written(Onehot({.layers = {checkpoint::ExpertKind::nvfp4, checkpoint::ExpertKind::bf16}}), dir);
  const auto speed = json_of(run_program({"verify", path, "--measure", "--json"}))["speed"];
  EXPECT_EQ(keys(speed),
            (std::vector<std::string>{"bytes", "fraction_max", "fraction_min", "fraction_of_read", "gbps",
                                      "pairs", "read_gbps", "read_seconds", "seconds"}));
  // Block scales of four experts, and BF16 weights of four.
  EXPECT_EQ(speed["bytes"], 4 * (2 * 128 * 16 + 256 * 8) + 4 * 3 * 128 * 256 * 2);
  for (const char* rate : {"gbps", "read_gbps", "fraction_min"}) EXPECT_GT(speed[rate].get<double>(), 0.0);
  EXPECT_LE(speed["fraction_min"], speed["fraction_of_read"]);
  EXPECT_LE(speed["fraction_of_read"], speed["fraction_max"]);
  EXPECT_NEAR(speed["gbps"].get<double>(),
              speed["bytes"].get<double>() / speed["seconds"].get<double>() / 1e9,
              1e-9 * speed["gbps"].get<double>());
  EXPECT_TRUE(contains(run_program({"verify", path, "--measure"}).out, "plain read of the same bytes"));
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

// What is to be written and cannot be is the caller's affair, whichever command it is.
TEST(SynthCommand, APlaceThatCannotBeWrittenIsUsage) {
  expect_refusal(run_program({"synth", "/proc/nothing-here/m", "--model", "tiny"}), 2,
                 {"/proc/nothing-here/m"});
  // A file system that is mounted read-only, where a process may have one of its own.
  const TempDir dir;
  const std::string here = dir.path().string();
  const Ran ran = run_executable(
      "/bin/sh", {"-c", "unshare -rm sh -c 'mount -t tmpfs none " + here + " && mkdir " + here +
                            "/e && mount -o remount,ro " + here + " || exit 99; " + program_path + " synth " +
                            here + "/e --model tiny; a=$?; " + program_path + " synth " + here +
                            "/n --model tiny; exit $((a * 10 + $?))' 2>&1"});
  if (ran.code != 22) {
    ASSERT_TRUE(ran.code == 99 || ran.code == 1) << ran.code << ": " << ran.out;
    GTEST_SKIP() << "no mounts of its own for this process: " << ran.out;
  }
  EXPECT_TRUE(contains(ran.out, "Read-only file system"));
}

}  // namespace
}  // namespace kerf::test
