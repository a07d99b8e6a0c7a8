// kerf decode through the program: exit codes, the JSON's keys, what is refused and in which words.
#include <gtest/gtest.h>
#include <sched.h>

#include <nlohmann/json.hpp>

#include <set>
#include <string>
#include <vector>

#include "kerf/deploy/parts.h"
#include "kerf/tools/synth.h"
#include "tests/cli/muse_spark.h"
#include "tests/support/gpu.h"
#include "tests/support/onehot.h"
#include "tests/support/program.h"
#include "tests/support/test_env.h"

namespace kerf::test {
namespace {

using Json = nlohmann::json;

// 16 experts of 256 x 256, layer 1 of four with BF16 experts.
const std::string& model() {
  static const TempDir dir;
  static const std::string path = [] {
    write_muse_spark(dir.path(), 4);
    return dir.path().string();
  }();
  return path;
}

const std::string& onehot() {
  static const TempDir dir;
  static const std::string path = [] {
    Onehot().write(dir.path());
    return dir.path().string();
  }();
  return path;
}

Ran decode(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "decode");
  arguments.insert(arguments.end(), {"--seconds", "0"});
  return run_program(arguments);
}

std::vector<std::string> keys(const Json& object) {
  std::vector<std::string> out;
  for (const auto& [key, value] : object.items()) out.push_back(key);
  return out;
}

using Names = std::vector<std::string>;  // as nlohmann's plain json gives them: sorted

TEST(DecodeCommand, WritesTheJsonThatOthersReadBy) {
  const Ran ran = decode({model(), "--ranks", "4", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json j = Json::parse(ran.out);
  EXPECT_EQ(keys(j), (Names{"activation", "backend", "block", "checkpoint", "device", "group",
                            "memory_per_rank", "probe", "ranks", "read_bytes_per_rank", "reshard", "startup",
                            "steps", "stock_tactics", "tactic"}));
  EXPECT_EQ(keys(j["startup"]), (Names{"block_s", "bytes", "check_s", "convert_s", "open_s", "plan_s",
                                       "probe_s", "read_s", "reshard_s", "tune_s", "warm_up_s"}));
  for (const char* stage : {"check_s", "convert_s", "open_s", "plan_s", "probe_s", "reshard_s", "warm_up_s"})
    EXPECT_GT(j["startup"][stage], 0.0) << stage;
  // 16 experts of 256 x 256: three NVFP4 layers and a BF16 one, on all ranks together.
  EXPECT_EQ(j["startup"]["bytes"], 16 * 3 * 256 * 256 * 9 / 16 * 3 + 16 * 3 * 256 * 256 * 2);
  EXPECT_EQ(keys(j["checkpoint"]), (Names{"bf16_layers", "converted_intermediate", "experts", "hidden",
                                          "intermediate", "layers", "nvfp4_layers", "top_k"}));
  EXPECT_EQ(keys(j["reshard"]),
            (Names{"bytes_per_rank", "gib_per_s", "peak_extra_bytes", "seconds", "slices"}));
  EXPECT_EQ(keys(j["probe"]), (Names{"limit", "max_rel_l2", "min_rel_l2"}));
  EXPECT_EQ(keys(j["tactic"]), (Names{"config", "of", "pinned", "preference", "tile", "tuned"}));
  EXPECT_EQ(j["ranks"], 4);
  EXPECT_EQ(j["group"], "local");
  EXPECT_EQ(j["device"], "cpu");
  EXPECT_EQ(j["checkpoint"]["layers"], 4);
  EXPECT_EQ(j["checkpoint"]["bf16_layers"], 1);
  EXPECT_EQ(j["probe"]["limit"], 0.01);
  EXPECT_GT(j["probe"]["min_rel_l2"], 0.0);
  EXPECT_LT(j["probe"]["max_rel_l2"], 0.01);
  EXPECT_EQ(j["tactic"]["pinned"], false);
  EXPECT_TRUE(j["tactic"]["preference"].is_null());
  ASSERT_EQ(j["steps"].size(), 4U);
  const Names modes = {"ep", "ep", "tp", "tp"};
  const std::vector<int> batches = {1, 8, 1, 8};
  for (std::size_t i = 0; i < 4; ++i) {
    const Json& step = j["steps"][i];
    EXPECT_EQ(keys(step), (Names{"batch", "busiest_rank_bytes", "ep", "mode", "output_sha256", "tail", "tp",
                                 "us_per_layer"}));
    EXPECT_EQ(step["tail"], "fast");
    EXPECT_EQ(step["ep"], i < 2 ? 4 : 1);
    EXPECT_EQ(step["tp"], i < 2 ? 1 : 4);
    EXPECT_EQ(step["mode"], modes[i]);
    EXPECT_EQ(step["batch"], batches[i]);
    EXPECT_EQ(step["output_sha256"].get<std::string>().size(), 64U);
  }
}

TEST(DecodeCommand, RunsTheBlockAroundTheExperts) {
  const std::vector<std::string> arguments = {model(), "--ranks", "2", "--block", "muse-spark"};
  std::vector<std::string> as_json = arguments;
  as_json.emplace_back("--json");
  const Ran ran = decode(as_json);
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json j = Json::parse(ran.out);
  EXPECT_EQ(j["block"], "muse-spark");
  EXPECT_EQ(j["checkpoint"]["model_hidden"], 512);
  // Four layers of an F32 router with a bias, and two BF16 projections.
  EXPECT_EQ(j["memory_per_rank"]["block"], 4 * (16 * 512 * 4 + 16 * 4 + 2 * 256 * 512 * 2));
  ASSERT_EQ(j["steps"].size(), 4U);
  for (const Json& step : j["steps"]) {
    EXPECT_GT(step["experts_us_per_layer"], 0.0);
    EXPECT_LT(step["experts_us_per_layer"], step["us_per_layer"]);
  }
  EXPECT_EQ(Json::parse(decode(as_json).out)["steps"][3]["output_sha256"], j["steps"][3]["output_sha256"]);
  const Ran bare = decode({model(), "--ranks", "2", "--json"});
  const Json b = Json::parse(bare.out);
  EXPECT_EQ(b["block"], "none");
  EXPECT_FALSE(b["steps"][0].contains("experts_us_per_layer"));
  EXPECT_NE(b["steps"][0]["output_sha256"], j["steps"][0]["output_sha256"]);
  EXPECT_EQ(decode({model(), "--ranks", "2", "--block", "none", "--json"}).code, 0);
  const Ran text = decode(arguments);
  for (const char* words : {"block       muse-spark: router at width 512, 512 to 256 and back",
                            "tp at batch 8: of ", "the experts take"})
    EXPECT_NE(text.out.find(words), std::string::npos) << words << " in\n" << text.out;
}

TEST(DecodeCommand, RunsThePlainBlock) {
  const TempDir dir;
  tools::SynthOptions options = tools::synth_defaults(tools::SynthModel::tiny);
  tools::synth(dir.path(), options, Workers(1));
  const Ran ran = decode({dir.path().string(), "--ranks", "2", "--block", "qwen3-moe", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json j = Json::parse(ran.out);
  EXPECT_EQ(j["block"], "qwen3-moe");
  EXPECT_EQ(j["memory_per_rank"]["block"], 2 * 8 * 256 * 2);
  EXPECT_EQ(j["steps"].size(), 4U);
}

TEST(DecodeCommand, ReportsForPeople) {
  const Ran ran = decode({model(), "--ranks", "2"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  for (const char* word :
       {"checkpoint", "placement", "reshard", "probe", "tactic", "memory", "us per layer", "startup     ",
        " loaded in ", "warm-up ", "busiest rank", "EP takes", "4 layers (3 NVFP4, 1 BF16)"})
    EXPECT_NE(ran.out.find(word), std::string::npos) << word << " in\n" << ran.out;
}

// 6 experts of 128 x I, one NVFP4 and one BF16 layer.
std::string wide_model(const TempDir& dir, std::int64_t intermediate) {
  tools::SynthOptions options = tools::synth_defaults(tools::SynthModel::muse_spark);
  options.experts = 6;
  options.hidden = 128;
  options.intermediate = intermediate;
  options.layers = 2;
  options.top_k = 2;
  options.bf16_layers = {1};
  tools::synth(dir.path(), options, Workers(1));
  return dir.path().string();
}

// --tail exact: one digest a batch, for any ranks and either mode. --tail both: fast and exact in one table.
TEST(DecodeCommand, ExactTailsHaveOneDigestForAllPlacements) {
  const TempDir dir;
  const std::string wide = wide_model(dir, 1024);
  std::vector<std::set<std::string>> seen(2);
  for (const char* ranks : {"1", "2", "3", "6"}) {
    const bool tp = std::string(ranks) == "2";
    const Ran ran =
        decode({wide, "--ranks", ranks, "--mode", tp ? "both" : "ep", "--tail", "exact", "--json"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    const Json j = Json::parse(ran.out);
    ASSERT_EQ(j["steps"].size(), tp ? 4U : 2U);
    for (const Json& step : j["steps"]) {
      EXPECT_EQ(step["tail"], "exact");
      seen[step["batch"] == 1 ? 0 : 1].insert(step["output_sha256"].get<std::string>());
    }
  }
  EXPECT_EQ(seen[0].size(), 1U);
  EXPECT_EQ(seen[1].size(), 1U);

  const Ran both = decode({wide, "--ranks", "2", "--tail", "both", "--json"});
  ASSERT_EQ(both.code, 0) << both.err;
  const Json steps = Json::parse(both.out)["steps"];
  ASSERT_EQ(steps.size(), 8U);
  for (std::size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i]["tail"], i % 2 == 0 ? "fast" : "exact");
  EXPECT_EQ(*seen[0].begin(), steps[1]["output_sha256"]);
  const Ran fast = decode({wide, "--ranks", "2", "--json"});
  const Json alone = Json::parse(fast.out)["steps"];
  for (std::size_t i = 0; i < alone.size(); ++i)
    EXPECT_EQ(alone[i]["output_sha256"], steps[2 * i]["output_sha256"]);

  const Ran text = decode({wide, "--ranks", "2", "--tail", "both"});
  for (const char* word : {"tail        fast: ", "tail        exact: the same output",
                           "batch tail   us per layer", "batch 8, exact tails: EP takes",
                           "the outputs are the same, bit for bit", "batch 8, tp: exact takes "})
    EXPECT_NE(text.out.find(word), std::string::npos) << word << " in\n" << text.out;
  EXPECT_EQ(decode({wide, "--ranks", "2"}).out.find("tail"), std::string::npos);
}

TEST(DecodeCommand, ExactTailsAreRefusedWhereSlicesAreNoNodes) {
  const TempDir dir;
  const std::string wide = wide_model(dir, 1536);
  for (const char* tail : {"exact", "both"}) {
    const Ran ran = decode({wide, "--ranks", "2", "--tail", tail});
    EXPECT_EQ(ran.code, 4) << ran.err;
    EXPECT_EQ(ran.out, "");
    for (const char* word : {"2 slices of I = 1536 do not", "512 times a power of two", "exact tp: 1, 3;",
                             "EP is exact", "--mode ep"})
      EXPECT_NE(ran.err.find(word), std::string::npos) << word << " in: " << ran.err;
  }
  EXPECT_EQ(decode({wide, "--ranks", "3", "--tail", "exact"}).code, 0);
  EXPECT_EQ(decode({wide, "--ranks", "2", "--tail", "exact", "--mode", "ep"}).code, 0);
  EXPECT_EQ(decode({wide, "--ranks", "2"}).code, 0);
  EXPECT_EQ(decode({wide, "--tail", "slow"}).code, 2);
}

TEST(DecodeCommand, SameDigestsAtAnyThreadCount) {
  const auto digests = [](const std::string& threads) {
    const Ran ran = decode({model(), "--ranks", "2", "--threads", threads, "--json"});
    EXPECT_EQ(ran.code, 0) << ran.err;
    std::vector<std::string> out;
    const Json j = Json::parse(ran.out);
    for (const Json& step : j["steps"]) out.push_back(step["output_sha256"]);
    return out;
  };
  const std::vector<std::string> one = digests("1");
  EXPECT_EQ(one.size(), 4U);
  EXPECT_EQ(digests("6"), one);
}

TEST(DecodeCommand, OneRankRunsEpOnlyAndSaysSo) {
  const Ran ran = decode({model(), "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.err.find("EP only"), std::string::npos) << ran.err;
  const Json j = Json::parse(ran.out);
  EXPECT_TRUE(j["reshard"].is_null());
  EXPECT_TRUE(j["probe"].is_null());
  ASSERT_EQ(j["steps"].size(), 2U);
  EXPECT_EQ(j["steps"][1]["mode"], "ep");
}

TEST(DecodeCommand, LayersBatchesAndModeSelect) {
  const Ran ran =
      decode({model(), "--ranks", "2", "--mode", "tp", "--batch", "3", "--layers", "0,2-3", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json j = Json::parse(ran.out);
  EXPECT_EQ(j["checkpoint"]["layers"], 3);
  EXPECT_EQ(j["checkpoint"]["bf16_layers"], 0);
  ASSERT_EQ(j["steps"].size(), 1U);
  EXPECT_EQ(j["steps"][0]["batch"], 3);
}

struct Refusal {
  std::vector<std::string> arguments;
  int code;
  std::vector<std::string> words;
};

// Not built, no device, no library, or (where all is there) the device that is not given.
struct NcclRefusal {
  int code;
  std::string words;
};
NcclRefusal nccl_refusal() {
  if (const Verdict why = deploy::lacking("group", "nccl")) return {static_cast<int>(why->kind), why->text};
  return {4, "with --device cpu"};
}

TEST(DecodeCommand, RefusesInWords) {
  const std::vector<Refusal> refusals = {
      {{model(), "--mode", "both"}, 4, {"2 ranks"}},
      {{model(), "--mode", "tp"}, 4, {"2 ranks"}},
      {{model(), "--ranks", "8"}, 4, {"32", "1, 2, 4", "the default", "--mode ep"}},
      {{onehot(), "--ranks", "4"}, 4, {"32", "1, 2"}},
      {{onehot(), "--ranks", "8", "--mode", "ep"}, 4, {"4 experts", "8 ranks"}},
      {{model(), "--ranks", "2", "--mode", "tp", "--layers", "1"}, 4, {"NVFP4"}},
      {{model(), "--ranks", "2", "--tp", "2", "--layers", "1"}, 4, {"NVFP4"}},
      {{model(), "--ranks", "2", "--mode", "ep", "--tp", "2"}, 2, {"--mode ep cuts nothing, but --tp is 2"}},
      {{model(), "--layers", "9223372036854775807"}, 2, {"9223372036854775807"}},
      {{model(), "--batch", "9223372036854775800-9223372036854775807"}, 2, {"9223372036854775800 tokens"}},
      {{model(), "--group", "nccl"}, nccl_refusal().code, {"--group nccl", nccl_refusal().words}},
      {{model(), "--device", "cpu", "--backend", "cuda"}, 2, {"--device cpu with --backend cuda"}},
      {{model(), "--device", "cuda", "--backend", "cpu"}, why_no_gpu().empty() ? 2 : 8, {"--device cuda"}},
      {{model(), "--ranks", "4", "--ep", "3"}, 2, {"ep 3 does not divide 4 ranks", "1, 2, 4"}},
      {{model(), "--ranks", "4", "--tp", "3"}, 2, {"tp 3 does not divide 4 ranks"}},
      {{model(), "--ep", "2", "--tp", "2"}, 2, {"ep 2 does not divide 1 rank"}},
      {{model(), "--ranks", "8", "--ep", "2", "--tp", "2"}, 2, {"ep 2 x tp 2 is not 8 ranks", "or tp 4"}},
      {{model(), "--ranks", "4", "--ep", "0"}, 2, {"--ep"}},
      {{model(), "--ranks", "4", "--tp", "1", "--mode", "tp"}, 4, {"at least 2 ranks"}},
      {{model(), "--ranks", "6", "--ep", "3"}, 4, {"16 experts over 6 ranks"}},
      {{model(), "--ranks", "16", "--tp", "8"}, 4, {"cut 8 ways", "slice 32"}},
      {{model(), "--ranks", "0"}, 2, {"--ranks"}},
      {{model(), "--ranks", "-1"}, 2, {"--ranks"}},
      {{model(), "--ranks", ""}, 2, {"--ranks"}},
      {{model(), "--threads", "0"}, 2, {"--threads"}},
      {{model(), "--threads", "1025"}, 2, {"--threads", "1024"}},
      {{model(), "--seed", "-1"}, 2, {"--seed", "-1"}},
      {{model(), "--seed", "18446744073709551616"}, 2, {"--seed", "18446744073709551616"}},
      {{model(), "--seed", "0x10"}, 2, {"--seed", "0x10"}},
      {{model(), "--seed", "+1"}, 2, {"--seed", "+1"}},
      {{model(), "--seed", ""}, 2, {"--seed"}},
      {{model(), "--batch", ""}, 2, {"--batch"}},
      {{model(), "--batch", "1,,2"}, 2, {"--batch"}},
      {{model(), "--batch", "99999999999999999999"}, 2, {"--batch", "too large"}},
      {{model(), "--layers", ""}, 2, {"--layers"}},
      {{model(), "--layers", "0-2147483647"}, 2, {"--layers", "too large"}},
      {{model(), "--layers", "0-9223372036854775807"}, 2, {"--layers", "too large"}},
      {{model(), "--backend", ""}, 2, {"--backend"}},
      {{model(), "--batch", "0"}, 2, {"--batch"}},
      {{model(), "--batch", "one"}, 2, {"--batch", "one"}},
      {{model(), "--batch", "70000"}, 2, {"65536"}},
      {{model(), "--layers", "7"}, 2, {"7"}},
      {{model(), "--layers", "3-1"}, 2, {"--layers"}},
      {{model(), "--mode", "sideways"}, 2, {"sideways"}},
      {{model(), "--act", "int4"}, 2, {"int4"}},
      {{model(), "--block", "dense"}, 2, {"--block", "dense"}},
      {{model(), "--block", "qwen3-moe"}, 4, {"qwen3-moe", "a Muse Spark model"}},
      {{onehot(), "--block", "muse-spark"}, 4, {"muse-spark", "OneHotMoE", "no Muse Spark model"}},
      {{model(), "--backend", "abacus"}, 2, {"abacus", "reference"}},
      {{model() + "-not-there"}, 3, {"not-there"}},
      {{}, 2, {"CKPT"}},
  };
  for (const Refusal& r : refusals) {
    const Ran ran = decode(r.arguments);
    std::string line;
    for (const std::string& a : r.arguments) line += a + " ";
    EXPECT_EQ(ran.code, r.code) << line << "\n" << ran.err;
    EXPECT_EQ(ran.out, "") << line;
    for (const std::string& word : r.words)
      EXPECT_NE(ran.err.find(word), std::string::npos) << line << "wants '" << word << "' in: " << ran.err;
  }
}

// 16 experts of an intermediate width that needs an option.
std::string model_of_width(const TempDir& dir, std::int64_t intermediate) {
  tools::SynthOptions options = tools::synth_defaults(tools::SynthModel::muse_spark);
  options.experts = 16;
  options.hidden = 256;
  options.intermediate = intermediate;
  options.layers = 2;
  options.top_k = 4;
  options.bf16_layers = {1};
  tools::synth(dir.path(), options, Workers(1));
  return dir.path().string();
}

Json json_of_decode(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const Ran ran = decode(arguments);
  EXPECT_EQ(ran.code, 0) << ran.err;
  return ran.code == 0 ? Json::parse(ran.out) : Json();
}

TEST(DecodeCommand, HybridsByEpOrTpOrBoth) {
  const Json both = json_of_decode({model(), "--ranks", "4", "--ep", "2", "--tp", "2"});
  ASSERT_EQ(both["steps"].size(), 4U);
  EXPECT_EQ(both["steps"][1]["mode"], "ep");
  EXPECT_EQ(both["steps"][1]["ep"], 4);
  EXPECT_EQ(both["steps"][1]["tp"], 1);
  EXPECT_EQ(both["steps"][3]["mode"], "tp");
  EXPECT_EQ(both["steps"][3]["ep"], 2);
  EXPECT_EQ(both["steps"][3]["tp"], 2);
  EXPECT_EQ(both["reshard"]["slices"], (std::vector<int>{128, 128}));
  EXPECT_LT(both["probe"]["max_rel_l2"], 0.01);
  const auto digests = [](const Json& j) {
    Names out;
    for (const Json& step : j["steps"]) out.push_back(step["output_sha256"]);
    return out;
  };
  EXPECT_EQ(digests(json_of_decode({model(), "--ranks", "4", "--ep", "2"})), digests(both));
  EXPECT_EQ(digests(json_of_decode({model(), "--ranks", "4", "--tp", "2", "--threads", "7"})), digests(both));
  // Another grid, other TP bits; EP knows no grid.
  const Json plain = json_of_decode({model(), "--ranks", "4"});
  EXPECT_EQ(digests(plain)[1], digests(both)[1]);
  EXPECT_NE(digests(plain)[3], digests(both)[3]);
  EXPECT_EQ(digests(json_of_decode({model(), "--ranks", "4", "--tp", "4", "--ep", "1"})), digests(plain));
  const Ran text = decode({model(), "--ranks", "4", "--ep", "2"});
  for (const char* word : {"2 slices of width 128 in each of 2 rows", "\ntp       2    2      8"})
    EXPECT_NE(text.out.find(word), std::string::npos) << word << " in\n" << text.out;
  const Ran alone = decode({model(), "--ranks", "4", "--tp", "1"});
  EXPECT_EQ(alone.code, 0) << alone.err;
  EXPECT_NE(alone.err.find("tp 1: nothing to cut, EP only"), std::string::npos) << alone.err;
}

TEST(DecodeCommand, UnevenCutsAndPaddingWhereAsked) {
  const TempDir wide;
  const std::string five = model_of_width(wide, 320);
  const Json uneven = json_of_decode({five, "--ranks", "4", "--uneven"});
  EXPECT_EQ(uneven["reshard"]["slices"], (std::vector<int>{128, 64, 64, 64}));
  EXPECT_EQ(uneven["checkpoint"]["converted_intermediate"], 320);
  EXPECT_LT(uneven["probe"]["max_rel_l2"], 0.01);
  const Ran text = decode({five, "--ranks", "4", "--uneven", "--batch", "1"});
  EXPECT_NE(text.out.find("slices of width 128 (1 rank) and 64 (3 ranks)"), std::string::npos) << text.out;
  EXPECT_NE(text.err.find("of width 128 or 64 on each rank"), std::string::npos) << text.err;
  const Json hybrid = json_of_decode({five, "--ranks", "8", "--tp", "4", "--uneven"});
  EXPECT_EQ(hybrid["steps"][3]["ep"], 2);

  const TempDir narrow;
  const std::string odd = model_of_width(narrow, 80);
  const Json padded = json_of_decode({odd, "--ranks", "2", "--pad"});
  EXPECT_EQ(padded["checkpoint"]["intermediate"], 80);
  EXPECT_EQ(padded["checkpoint"]["converted_intermediate"], 128);
  EXPECT_EQ(padded["reshard"]["slices"], (std::vector<int>{64, 64}));
  const Ran words = decode({odd, "--ranks", "2", "--pad", "--batch", "1"});
  EXPECT_NE(words.out.find("NVFP4 experts are 128 wide, with zeros from 80 on"), std::string::npos)
      << words.out;
  // The NVFP4 layer alone: how far it is padded does not show in EP.
  const auto digest = [&](const std::string& ranks) {
    return json_of_decode(
        {odd, "--ranks", "4", "--tp", ranks, "--pad", "--layers", "0"})["steps"][0]["output_sha256"];
  };
  EXPECT_EQ(digest("4"), digest("1"));

  const auto refused = [](const std::vector<std::string>& arguments, int code, const Names& words_wanted) {
    const Ran ran = decode(arguments);
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_EQ(ran.out, "");
    for (const std::string& word : words_wanted)
      EXPECT_NE(ran.err.find(word), std::string::npos) << word << " in: " << ran.err;
  };
  refused({five, "--ranks", "4"}, 4, {"slice 80", "--uneven would cut slices of 128 and 64"});
  refused({five, "--ranks", "8", "--uneven"}, 4, {"5 tiles of 64, fewer than slices", "1 to 5"});
  refused({odd, "--ranks", "2"}, 4, {"slice 40", "--pad would add zeros up to 128"});
  refused({odd, "--ranks", "2", "--mode", "ep"}, 4, {"intermediate 80", "--pad would add zeros up to 128"});
  refused({odd, "--ranks", "2", "--uneven"}, 4, {"not a multiple of 64", "--pad"});
}

TEST(DecodeCommand, SecondsAreFiniteAndNotNegative) {
  for (const char* bad : {"nan", "inf", "-inf", "-1", "-0", "1e99", "", "two", "1s"}) {
    const Ran ran = run_program({"decode", onehot(), "--seconds", bad});
    EXPECT_EQ(ran.code, 2) << bad << ": " << ran.err;
    EXPECT_NE(ran.err.find("--seconds"), std::string::npos) << ran.err;
  }
}

TEST(DecodeCommand, SeedsAreDecimal) {
  const auto digest = [](const std::string& seed) {
    const Ran ran = decode({onehot(), "--batch", "4", "--json", "--seed", seed});
    EXPECT_EQ(ran.code, 0) << ran.err;
    return Json::parse(ran.out)["steps"][0]["output_sha256"].get<std::string>();
  };
  EXPECT_EQ(digest("010"), digest("10"));
  EXPECT_NE(digest("010"), digest("8"));
  EXPECT_NE(digest("18446744073709551615"), digest("9223372036854775807"));
}

TEST(DecodeCommand, BadVariablesAreUsageErrors) {
  for (const char* bad : {"KERF_THREADS=1025", "KERF_THREADS=0", "KERF_TIMEOUT=0", "KERF_TIMEOUT=soon",
                          "KERF_TIMEOUT=99999999999", "KERF_ISA=mmx", "KERF_ISA=cpu"}) {
    const Ran ran = run_program({"decode", onehot(), "--seconds", "0"}, {bad});
    const std::string variable = std::string(bad).substr(0, std::string(bad).find('='));
    EXPECT_EQ(ran.code, 2) << bad << ": " << ran.err;
    for (const std::string& word :
         {variable, std::string(bad).substr(variable.size() + 1), std::string("wanted")})
      EXPECT_NE(ran.err.find(word), std::string::npos) << word << " in: " << ran.err;
  }
  EXPECT_EQ(run_program({"decode", onehot(), "--seconds", "0"}, {"KERF_ISA=scalar"}).code, 0);
}

TEST(DecodeCommand, SaysOnWhatTheExpertsRan) {
  const auto activation = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--batch", "1", "--quiet"});
    const Ran text = decode(arguments);
    arguments.emplace_back("--json");
    const Ran json = decode(arguments);
    EXPECT_EQ(json.code, 0) << json.err;
    const std::string said = Json::parse(json.out)["activation"];
    EXPECT_NE(text.out.find("\nactivation  " + said), std::string::npos) << text.out;
    return said;
  };
  EXPECT_EQ(activation({model()}), "nvfp4");
  EXPECT_EQ(activation({model(), "--act", "bf16"}), "bf16");
  EXPECT_EQ(activation({model(), "--layers", "1"}), "bf16");
}

TEST(DecodeCommand, VerboseSaysStagesAndProbes) {
  const std::vector<std::string> arguments = {model(), "--ranks", "2", "--batch", "1"};
  EXPECT_EQ(decode(arguments).err.find("debug"), std::string::npos);
  std::vector<std::string> verbose = arguments;
  verbose.emplace_back("--verbose");
  const Ran ran = decode(verbose);
  ASSERT_EQ(ran.code, 0) << ran.err;
  for (const char* word :
       {"loading: ", "resharding: ", "decoding: ", "in all: ", "layer 0: probe rel L2 0.00"})
    EXPECT_NE(ran.err.find(word), std::string::npos) << word << " in: " << ran.err;
}

TEST(DecodeCommand, OneIsSingular) {
  const Ran ran = decode({onehot(), "--batch", "1"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  for (const char* word : {"1 layer (1 NVFP4", "1 rank (", "4 experts a rank"})
    EXPECT_NE(ran.out.find(word), std::string::npos) << word << " in: " << ran.out;
}

TEST(DecodeCommand, OnehotTpSplitsTwoWays) {
  const Ran ran = decode({onehot(), "--ranks", "2", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(Json::parse(ran.out)["steps"].size(), 4U);
}

// Softmax with a scaling factor is a router that kerf does not have; a decode does not need it.
TEST(DecodeCommand, RunsBf16LayersWhateverTheirRouter) {
  const TempDir dir;
  Onehot scaled({.layers = {checkpoint::ExpertKind::bf16}});
  scaled.config["routed_scaling_factor"] = "2.5";
  scaled.write(dir.path());
  const Ran ran = decode({dir.path().string(), "--ranks", "2", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(Json::parse(ran.out)["checkpoint"]["bf16_layers"], 1);
}

// This thread, and what it starts, on one core while this lives.
class OneCore {
 public:
  OneCore() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
      if (CPU_ISSET(cpu, &before_)) CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~OneCore() { sched_setaffinity(0, sizeof before_, &before_); }
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;
  OneCore(OneCore&&) = delete;
  OneCore& operator=(OneCore&&) = delete;

 private:
  cpu_set_t before_{};
};

TEST(DecodeCommand, SaysWhatTimesMeanWhereRanksShareCores) {
  const OneCore pinned;
  const std::string words = "1 for 2 ranks: times follow the sum over ranks, not the busiest rank";
  const Ran two = decode({model(), "--ranks", "2", "--mode", "ep", "--batch", "1"});
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_NE(two.out.find(words), std::string::npos) << two.out;
  const Ran one = decode({model(), "--ranks", "1", "--batch", "1"});
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(one.out.find("sum over ranks"), std::string::npos) << one.out;
}

// A BF16 weight that is no number would come out as rows of NaN.
TEST(DecodeCommand, FaultyBf16WeightsEndInExitCode3) {
  const TempDir dir;
  Onehot faulty({.layers = {checkpoint::ExpertKind::bf16}});
  OwnedTensor& up = faulty.at(faulty.name(3, "up_proj.weight"));
  up.bytes[2 * 700] = 0x80;  // row 2, column 188: infinity
  up.bytes[2 * 700 + 1] = 0x7F;
  faulty.write(dir.path());
  for (const char* ranks : {"1", "2", "4"}) {
    const Ran ran = decode({dir.path().string(), "--ranks", ranks, "--mode", "ep", "--json"});
    EXPECT_EQ(ran.code, 3) << ran.err;
    EXPECT_EQ(ran.out, "");
    for (const char* word : {"layer 0", "experts.3.up_proj.weight", "row 2", "column 188", "0x7F80"})
      EXPECT_NE(ran.err.find(word), std::string::npos) << word << " in: " << ran.err;
  }
}

TEST(DecodeCommand, FaultyScalesEndInExitCode3) {
  const TempDir dir;
  Onehot faulty;
  faulty.set_f32(faulty.name(2, "down_proj.input_scale"), 0.0F);
  faulty.write(dir.path());
  for (const char* ranks : {"1", "2", "4"}) {
    const Ran ran = decode({dir.path().string(), "--ranks", ranks, "--mode", "ep", "--json"});
    EXPECT_EQ(ran.code, 3) << ran.err;
    EXPECT_EQ(ran.out, "");
    for (const char* word : {"layer 0", "experts.2.down_proj.input_scale", "expert 2", "1 of 4"})
      EXPECT_NE(ran.err.find(word), std::string::npos) << word << " in: " << ran.err;
  }
}

}  // namespace
}  // namespace kerf::test
