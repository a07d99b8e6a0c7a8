// kerf plan: which placements and cuts are legal, and what they take.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/support/onehot.h"

namespace kerf::test {
namespace {

Ran plan(std::int64_t experts, std::int64_t h, std::int64_t i, std::vector<std::string> more) {
  std::vector<std::string> a = {"plan",
                                "--experts",
                                std::to_string(experts),
                                "--hidden",
                                std::to_string(h),
                                "--intermediate",
                                std::to_string(i),
                                "--top-k",
                                "2",
                                "--json"};
  a.insert(a.end(), more.begin(), more.end());
  return run_program(a);
}

struct Cut {
  std::int64_t h, i, tp;
  int code;
  std::vector<std::string> words;  // the slice for code 0
};

class PlanCuts : public testing::TestWithParam<Cut> {};

TEST_P(PlanCuts, AsTheLayoutAllows) {
  const Cut& c = GetParam();
  const Ran ran = plan(128, c.h, c.i, {"--tp", std::to_string(c.tp)});
  ASSERT_EQ(ran.code, c.code) << ran.err;
  if (c.code == 0) {
    EXPECT_EQ(std::to_string(json_of(ran)["slice"].get<std::int64_t>()), c.words.at(0));
    return;
  }
  EXPECT_EQ(ran.out, "");
  for (const std::string& w : c.words) EXPECT_TRUE(contains(ran.err, w));
}

INSTANTIATE_TEST_SUITE_P(
    All, PlanCuts,
    testing::Values(
        Cut{256, 128, 2, 0, {"64"}}, Cut{256, 128, 4, 4, {"slice 32", "legal tp: 1, 2"}},
        Cut{256, 192, 2, 4, {"slice 96", "legal tp: 1, 3"}}, Cut{256, 192, 3, 0, {"64"}},
        Cut{2816, 704, 4, 4, {"slice 176", "legal tp: 1, 11"}}, Cut{2560, 640, 2, 0, {"320"}},
        Cut{2560, 640, 4, 4, {"slice 160"}}, Cut{2560, 640, 8, 4, {"slice 80"}},
        Cut{2688, 1856, 1, 0, {"1856"}},
        Cut{2688, 1856, 8, 4, {"slice 232", "splits a 16-value group", "legal tp: 1, 29"}},
        Cut{2880, 2880, 2, 4, {"hidden 2880 is not a multiple of 128", "slice 1440 is not a multiple of 64"}},
        Cut{7168, 2048, 8, 0, {"256"}}, Cut{7168, 2048, 16, 0, {"128"}}, Cut{7168, 2048, 32, 0, {"64"}},
        Cut{7168, 2048, 64, 4, {"slice 32", "legal tp: 1, 2, 4, 8, 16, 32"}},
        Cut{256, 128, 0, 2, {"--tp: got '0'"}}, Cut{256, 128, -1, 2, {"--tp: got '-1'"}},
        Cut{256, 128, 3, 4, {"does not split 3 ways"}}),
    [](const auto& instance) {
      const Cut& c = instance.param;
      const char* sign = c.tp < 0 ? "_minus" : "";
      return testing::PrintToString(c.h) + "_" + testing::PrintToString(c.i) + sign + "_tp" +
             testing::PrintToString(std::abs(c.tp));
    });

TEST(Plan, PlacementOfExperts) {
  const Ran good = plan(160, 256, 128, {"--ep", "8"});
  ASSERT_EQ(good.code, 0) << good.err;
  EXPECT_EQ(json_of(good)["experts_per_rank"], 20);
  EXPECT_EQ(json_of(good)["tp"], 1);
  expect_refusal(plan(60, 256, 128, {"--ep", "8"}), 4,
                 {"60 experts over 8 ranks", "legal ep: 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60"});
  expect_refusal(plan(128, 256, 128, {"--ep", "6"}), 4, {"128 experts over 6 ranks"});
  expect_refusal(plan(4, 256, 128, {"--ep", "8"}), 4, {"4 experts over 8 ranks", "legal ep: 1, 2, 4"});
  expect_refusal(plan(4, 256, 128, {"--ep", "0"}), 2, {"--ep: got '0'"});
  expect_refusal(plan(4, 256, 128, {"--ep", "-2"}), 2, {"--ep: got '-2'"});
  expect_refusal(plan(4, 256, 128, {"--ranks", "0"}), 2, {"--ranks: got '0'"});
}

TEST(Plan, RanksMeanBothAndEveryReasonIsGiven) {
  expect_refusal(plan(4, 256, 128, {"--ranks", "8"}), 4, {"slice 16", "4 experts over 8 ranks"});
  const Ran ran = plan(4, 256, 128, {"--ranks", "2"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(json_of(ran)["ep"], 1);
  EXPECT_EQ(json_of(ran)["tp"], 2);
  EXPECT_EQ(json_of(ran)["experts_per_rank"], 2);
  EXPECT_EQ(json_of(ran)["experts_per_row"], 4);
  EXPECT_EQ(plan(4, 256, 128, {"--ranks", "4", "--tp", "1"}).code, 0);
}

// Every sum by hand, for 3 NVFP4 layers and 1 BF16 layer of 8 experts of 256 x 128 on 2 ranks.
TEST(Plan, BytesByKind) {
  const Ran ran = plan(8, 256, 128, {"--ranks", "2", "--layers", "4", "--bf16-layers", "0"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  const auto json = json_of(ran);
  const auto ep = json["bytes_per_rank"]["ep"];
  EXPECT_EQ(ep["w13"], 3 * 4 * 256 * 128);
  EXPECT_EQ(ep["w13_sf"], 3 * 4 * 256 * 16);
  EXPECT_EQ(ep["w2"], 3 * 4 * 256 * 64);
  EXPECT_EQ(ep["w2_sf"], 3 * 4 * 256 * 8);
  EXPECT_EQ(ep["scalars"], 3 * (4 * 3 * 4 + 8));
  EXPECT_EQ(ep["bf16"], 4 * 3 * 256 * 128 * 2);
  const auto tp = json["bytes_per_rank"]["tp"];
  for (const char* kind : {"w13", "w13_sf", "w2", "w2_sf"}) EXPECT_EQ(tp[kind], ep[kind]) << kind;
  EXPECT_EQ(tp["scalars"], 3 * (8 * 3 * 4 + 8));
  EXPECT_EQ(tp["bf16"], 0);
  const auto total = [](const nlohmann::json& kinds) {
    std::int64_t sum = 0;
    for (const char* kind : {"w13", "w13_sf", "w2", "w2_sf", "scalars", "bf16"})
      sum += kinds[kind].get<std::int64_t>();
    return sum;
  };
  EXPECT_EQ(ep["total"], total(ep));
  EXPECT_EQ(tp["total"], total(tp));
  const std::int64_t both = total(ep) + total(tp);
  EXPECT_EQ(json["reshard_packed"], 4 * 256 * 128);
  EXPECT_EQ(json["peak_per_rank"]["load"], total(ep));
  // The larger of the two transients: here two ops' rows of 128 KiB each, and their metadata and workspaces.
  const auto probe = json["probe_buffers"].get<std::int64_t>();
  EXPECT_GT(probe, 2 * 128 * 1024);
  EXPECT_EQ(json["peak_per_rank"]["reshard"], both + std::max<std::int64_t>(probe, 4 * 256 * 128));
  EXPECT_EQ(json["peak_per_rank"]["steady"], both + json["step_buffers"].get<std::int64_t>());
  EXPECT_GT(json["step_buffers"], 0);
}

TEST(Plan, ExactTailsNeedRoomAndSlicesThatAreNodes) {
  const auto buffers = [](const std::string& tail) {
    const Ran ran = plan(8, 256, 1024, {"--ranks", "2", "--tail", tail});
    EXPECT_EQ(ran.code, 0) << ran.err;
    return json_of(ran)["step_buffers"].get<std::int64_t>();
  };
  EXPECT_GT(buffers("exact"), buffers("fast"));
  expect_refusal(plan(8, 256, 128, {"--ranks", "2", "--tail", "exact"}), 4,
                 {"I = 128 do not", "exact tp: 1;"});
}

// As decode does: nothing is cut where nothing can be, unless that was asked for.
TEST(Plan, Bf16LayersStayWhole) {
  const Ran ran = plan(4, 256, 128, {"--ranks", "4", "--bf16-layers", "0"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(json_of(ran)["tp"], 1);
  EXPECT_EQ(json_of(ran)["bytes_per_rank"]["ep"]["total"], 3 * 256 * 128 * 2);
  EXPECT_EQ(json_of(ran)["bytes_per_rank"]["tp"]["total"], 0);
  expect_refusal(plan(4, 256, 128, {"--tp", "2", "--bf16-layers", "0"}), 4, {"only NVFP4 experts are cut"});
}

TEST(Plan, AsksTheBackendThatWillRun) {
  expect_refusal(plan(4, 192, 128, {"--bf16-layers", "0"}), 4, {"hidden 192", "not a multiple of 128"});
  EXPECT_EQ(plan(4, 192, 128, {"--bf16-layers", "0", "--backend", "reference"}).code, 0);
  expect_refusal(plan(4, 256, 128, {"--backend", "abacus"}), 2, {"abacus", "reference"});
  const auto buffers = [](const std::vector<std::string>& more) {
    return json_of(plan(4, 256, 128, more))["step_buffers"].get<std::int64_t>();
  };
  EXPECT_GT(buffers({"--backend", "cpu"}), buffers({"--backend", "reference"}));  // which has no workspace
}

// What decode runs as EP is planned so, with the reason; a cut that was asked for is refused.
TEST(Plan, ShapesThatCannotBeCutArePlannedAsEp) {
  const Ran ran = plan(4, 256, 128, {"--ranks", "4"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(json_of(ran)["ep"], 4);
  EXPECT_EQ(json_of(ran)["tp"], 1);
  EXPECT_TRUE(contains(json_of(ran)["tp_not_possible"].get<std::string>(), "slice 32"));
  EXPECT_TRUE(json_of(plan(4, 256, 128, {"--ranks", "2"}))["tp_not_possible"].is_null());
  const Ran text =
      run_program({"plan", "--experts", "4", "--hidden", "256", "--intermediate", "128", "--ranks", "4"});
  EXPECT_TRUE(contains(text.out, "EP alone: expert TP is not possible"));
  EXPECT_TRUE(contains(text.out, "1 NVFP4 layer and 0 BF16 layers of 4 experts"));
  EXPECT_TRUE(contains(text.out, "4 ranks: stock 1 expert each; EP 4 x TP 1: 1 expert of a row, slice 128"));
  expect_refusal(plan(4, 256, 128, {"--ranks", "4", "--tp", "4"}), 4, {"slice 32"});
  const Ran bf16 = plan(4, 256, 128, {"--ranks", "4", "--bf16-layers", "0"});
  EXPECT_TRUE(contains(json_of(bf16)["tp_not_possible"].get<std::string>(), "no NVFP4 layer"));
}

TEST(Plan, NumbersOfRanksMustAgree) {
  expect_refusal(plan(8, 256, 128, {"--ranks", "3", "--tp", "2", "--ep", "2"}), 2, {"3 ranks", "ep 2"});
  expect_refusal(plan(8, 256, 128, {"--ranks", "8", "--ep", "2", "--tp", "2"}), 2,
                 {"ep 2 x tp 2 is not 8 ranks"});
  expect_refusal(plan(8, 256, 128, {"--ranks", "4", "--tp", "3"}), 2, {"4 ranks", "tp 3"});
  expect_refusal(plan(8, 256, 128, {"--ep", "1048576", "--tp", "1048576"}), 2, {"1099511627776 ranks"});
}

// Every sum by hand, for 3 NVFP4 layers and 1 BF16 layer of 8 experts of 256 x 128 on 2 x 2 ranks.
TEST(Plan, BytesOfAHybrid) {
  for (const std::vector<std::string>& grid : {std::vector<std::string>{"--ranks", "4", "--ep", "2"},
                                               {"--ranks", "4", "--tp", "2"},
                                               {"--ep", "2", "--tp", "2"}}) {
    std::vector<std::string> more = grid;
    more.insert(more.end(), {"--layers", "4", "--bf16-layers", "0"});
    const Ran ran = plan(8, 256, 128, more);
    ASSERT_EQ(ran.code, 0) << ran.err;
    const auto json = json_of(ran);
    EXPECT_EQ(json["ranks"], 4);
    EXPECT_EQ(json["ep"], 2);
    EXPECT_EQ(json["tp"], 2);
    EXPECT_EQ(json["experts_per_rank"], 2);
    EXPECT_EQ(json["experts_per_row"], 4);
    EXPECT_EQ(json["slices"], (std::vector<int>{64, 64}));
    const auto ep = json["bytes_per_rank"]["ep"];
    const auto tp = json["bytes_per_rank"]["tp"];
    EXPECT_EQ(ep["w13"], 3 * 2 * 256 * 128);
    EXPECT_EQ(ep["bf16"], 2 * 3 * 256 * 128 * 2);
    EXPECT_EQ(tp["w13"], 3 * 4 * 128 * 128);  // 4 experts of 2 x 64 rows
    EXPECT_EQ(tp["w2_sf"], 3 * 4 * 256 * 4);
    EXPECT_EQ(tp["scalars"], 3 * (4 * 3 * 4 + 8));
    EXPECT_EQ(tp["bf16"], 0);
  }
  const Ran text = run_program(
      {"plan", "--experts", "8", "--hidden", "256", "--intermediate", "128", "--ep", "2", "--tp", "2"});
  EXPECT_TRUE(contains(text.out, "4 ranks: stock 2 experts each; EP 2 x TP 2: 4 experts of a row, slice 64"));
}

// The widest slice is planned, and what is padded is counted.
TEST(Plan, UnevenSlicesAndPadding) {
  const Ran uneven = plan(8, 256, 768, {"--ranks", "8", "--uneven"});
  ASSERT_EQ(uneven.code, 0) << uneven.err;
  EXPECT_EQ(json_of(uneven)["slice"], 128);
  EXPECT_EQ(json_of(uneven)["slices"], (std::vector<int>{128, 128, 128, 128, 64, 64, 64, 64}));
  EXPECT_EQ(json_of(uneven)["bytes_per_rank"]["tp"]["w13"], 8 * 256 * 128);
  EXPECT_TRUE(json_of(uneven)["tp_not_possible"].is_null());
  EXPECT_TRUE(contains(json_of(plan(8, 256, 768, {"--ranks", "8"}))["tp_not_possible"].get<std::string>(),
                       "--uneven would cut slices of 128 and 64"));
  expect_refusal(plan(8, 256, 320, {"--tp", "8", "--uneven"}), 4, {"5 tiles", "fewer than slices"});

  const Ran padded =
      plan(8, 256, 96, {"--ranks", "4", "--ep", "2", "--pad", "--layers", "2", "--bf16-layers", "1"});
  ASSERT_EQ(padded.code, 0) << padded.err;
  EXPECT_EQ(json_of(padded)["intermediate"], 96);
  EXPECT_EQ(json_of(padded)["converted_intermediate"], 128);
  EXPECT_EQ(json_of(padded)["bytes_per_rank"]["ep"]["w2"], 2 * 256 * 64);
  EXPECT_EQ(json_of(padded)["bytes_per_rank"]["ep"]["bf16"], 2 * 3 * 256 * 128 * 2);
  EXPECT_EQ(json_of(padded)["bytes_per_rank"]["tp"]["w2"], 4 * 256 * 32);
  expect_refusal(plan(8, 256, 96, {"--ranks", "2"}), 4, {"--pad would add zeros up to 128"});
  expect_refusal(plan(8, 256, 100, {"--pad"}), 4, {"not a multiple of 16"});
  const Ran text =
      run_program({"plan", "--experts", "8", "--hidden", "256", "--intermediate", "96", "--pad"});
  EXPECT_TRUE(contains(text.out, "NVFP4 experts padded with zeros from 96 to 128"));
}

TEST(Plan, TextNamesWhatJsonNames) {
  const Ran ran =
      run_program({"plan", "--experts", "8", "--hidden", "256", "--intermediate", "128", "--ranks", "2"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  for (const char* words : {"w13_sf", "scalars", "load", "reshard", "steady", "legal tp  1, 2",
                            "legal ep  1, 2, 4, 8", "slice 64"})
    EXPECT_TRUE(contains(ran.out, words));
}

TEST(Plan, FromAConfigWithoutWeights) {
  const TempDir dir;
  Onehot checkpoint;
  checkpoint.write(dir.path());
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    if (entry.path().extension() != ".json" || entry.path().filename() == "model.safetensors.index.json")
      std::filesystem::remove(entry.path());
  for (const std::string& path : {dir.path().string(), (dir.path() / "config.json").string()}) {
    const Ran ran = run_program({"plan", path, "--ranks", "2", "--layers", "5", "--json"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(json_of(ran)["experts"], 4);
    EXPECT_EQ(json_of(ran)["nvfp4_layers"], 5);
    EXPECT_EQ(json_of(ran)["slice"], 64);
  }
  expect_refusal(run_program({"plan", dir.path().string(), "--tp", "4"}), 4, {"slice 32"});
  // Without a word on quantisation: as if NVFP4, and said.
  std::filesystem::remove(dir.path() / "hf_quant_config.json");
  const Ran bare = run_program({"plan", dir.path().string(), "--ranks", "2", "--json"});
  ASSERT_EQ(bare.code, 0) << bare.err;
  EXPECT_EQ(json_of(bare)["nvfp4_layers"], 1);
  EXPECT_TRUE(contains(bare.err, "no quantisation"));
}

TEST(Plan, KnowsTheKindsOfLayersOfACheckpoint) {
  const TempDir dir;
  const std::string c = (dir.path() / "c").string();
  ASSERT_EQ(run_program({"synth", c, "--experts", "4", "--hidden", "128", "--intermediate", "128", "--layers",
                         "3", "--top-k", "2", "--bf16-layers", "0,2"})
                .code,
            0);
  const auto full = run_program({"plan", c, "--ranks", "2", "--json"});
  ASSERT_EQ(full.code, 0) << full.err;
  EXPECT_EQ(json_of(full)["bf16_layers"], 2);
  EXPECT_EQ(json_of(full)["nvfp4_layers"], 1);
  // Without the weights the exclusions of the quantisation say the same.
  std::filesystem::remove(dir.path() / "c" / "model-00001-of-00001.safetensors");
  const auto bare = run_program({"plan", c, "--ranks", "2", "--json"});
  ASSERT_EQ(bare.code, 0) << bare.err;
  EXPECT_EQ(bare.out, full.out);
}

TEST(Plan, SizesThatMakeNoSense) {
  expect_refusal(run_program({"plan", "--ranks", "2"}), 2, {"--experts, --hidden and --intermediate"});
  expect_refusal(plan(0, 256, 128, {}), 2, {"--experts: got '0'"});
  expect_refusal(plan(4, -256, 128, {}), 2, {"--hidden: got '-256'"});
  expect_refusal(plan(4, 256, 128, {"--layers", "0"}), 2, {"--layers: got '0'"});
  expect_refusal(plan(4, 256, 128, {"--layers", "2", "--bf16-layers", "2"}), 2, {"--bf16-layers", "2"});
  expect_refusal(plan(4, 256, 128, {"--layers", "2", "--bf16-layers", "0-x"}), 2, {"0-x"});
  expect_refusal(plan(1, 256, 128, {}), 2, {"top-k is 2"});
  expect_refusal(plan(1LL << 40, 1LL << 40, 1LL << 40, {}), 2, {"2^60"});
}

}  // namespace
}  // namespace kerf::test
