// kerf bench through the program: its report, its plot, and what it refuses.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <set>

#include "kerf/base/machine.h"
#include "tests/cli/program.h"
#include "tests/support/xml.h"

namespace kerf::test {
namespace {

using Json = nlohmann::json;

template <typename... More>
Ran bench(More... more) {
  std::vector<std::string> arguments = {"bench", "--experts", "8", "--hidden", "256", "--intermediate",
                                        "128",   "--top-k",   "2", "--pairs",  "3",   "--threads",
                                        "2"};
  (arguments.emplace_back(more), ...);
  return run_program(arguments);
}

std::set<std::string> keys(const Json& object) {
  std::set<std::string> out;
  for (const auto& [key, value] : object.items()) out.insert(key);
  return out;
}

TEST(BenchCommand, ReportsEveryStepWithItsRead) {
  for (const char* ranks : {"1", "2"}) {
    const Ran ran = bench("--batch", "1,4", "--ranks", ranks, "--seed", "7", "--json");
    ASSERT_EQ(ran.code, 0) << ran.err;
    const Json j = json_of(ran);
    EXPECT_EQ(keys(j), (std::set<std::string>{"machine", "backend", "package", "threads", "ranks", "experts",
                                              "hidden", "intermediate", "top_k", "weights", "activation",
                                              "seed", "plot", "steps"}));
    EXPECT_EQ(j["backend"], "cpu");
    EXPECT_EQ(j["threads"], 2);
    EXPECT_EQ(j["ranks"], std::stoi(ranks));
    EXPECT_EQ(j["experts"], 8);
    EXPECT_EQ(j["hidden"], 256);
    EXPECT_EQ(j["intermediate"], 128);
    EXPECT_EQ(j["top_k"], 2);
    EXPECT_EQ(j["seed"], 7);
    EXPECT_TRUE(j["plot"].is_null());
    // One rank has nothing to cut: a line a batch.
    const std::vector<std::string> modes = j["ranks"] == 1 ? std::vector<std::string>{"ep", "ep"}
                                                           : std::vector<std::string>{"ep", "tp", "ep", "tp"};
    ASSERT_EQ(j["steps"].size(), modes.size());
    for (std::size_t i = 0; i < modes.size(); ++i) {
      const Json& s = j["steps"][i];
      EXPECT_EQ(keys(s),
                (std::set<std::string>{"intermediate", "batch", "mode", "activation", "experts_distinct",
                                       "bytes", "busiest_rank_bytes", "us", "read_us", "fraction_of_read",
                                       "fraction_min", "fraction_max", "gbps", "read_gbps", "pairs"}));
      EXPECT_EQ(s["mode"], modes[i]);
      EXPECT_EQ(s["batch"], 2 * i < modes.size() ? 1 : 4);
      EXPECT_EQ(s["activation"], "nvfp4");
      EXPECT_EQ(s["pairs"], 3);
      EXPECT_EQ(s["bytes"], s["experts_distinct"].get<std::int64_t>() * 3 * 256 * 128 * 9 / 16);
      const double ratio = s["read_us"].get<double>() / s["us"].get<double>();
      EXPECT_LE(s["fraction_min"].get<double>(), ratio * (1 + 1e-9));
      EXPECT_GE(s["fraction_max"].get<double>(), ratio * (1 - 1e-9));
      EXPECT_LE(s["fraction_min"], s["fraction_of_read"]);
      EXPECT_LE(s["fraction_of_read"], s["fraction_max"]);
      EXPECT_DOUBLE_EQ(s["gbps"].get<double>(), 1e-3 * s["bytes"].get<double>() / s["us"].get<double>());
      EXPECT_DOUBLE_EQ(s["read_gbps"].get<double>(),
                       1e-3 * s["bytes"].get<double>() / s["read_us"].get<double>());
    }
  }
}

TEST(BenchCommand, TakesOtherWeightsAndActivations) {
  const Json w4a16 =
      json_of(bench("--batch", "1", "--act", "bf16", "--ranks", "2", "--mode", "tp", "--json"));
  ASSERT_EQ(w4a16["steps"].size(), 1U);
  EXPECT_EQ(w4a16["steps"][0]["mode"], "tp");
  EXPECT_EQ(w4a16["steps"][0]["activation"], "bf16");
  EXPECT_EQ(w4a16["steps"][0]["bytes"], 2 * 3 * 256 * 128 * 9 / 16);
  EXPECT_EQ(w4a16["weights"], "nvfp4");
  const Json bf16 = json_of(bench("--batch", "1", "--weights", "bf16", "--ranks", "2", "--json"));
  ASSERT_EQ(bf16["steps"].size(), 1U);  // BF16 experts stay EP
  EXPECT_EQ(bf16["steps"][0]["mode"], "ep");
  EXPECT_EQ(bf16["steps"][0]["activation"], "bf16");
  EXPECT_EQ(bf16["steps"][0]["bytes"], 2 * 3 * 256 * 128 * 2);
  EXPECT_EQ(json_of(bench("--batch", "1", "--backend", "cpu:scalar", "--json"))["backend"], "cpu:scalar");
}

TEST(BenchCommand, PrintsATableUnderOneHeadline) {
  const Ran ran = bench("--batch", "1,4", "--ranks", "2", "--act", "bf16");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out.rfind("fraction of a plain read of the same bytes: ep 0.", 0), 0U) << ran.out;
  for (const char* words :
       {", tp 0.", "8 experts of 256 x 128, top 2, w4a16; 2 batches", "machine  ", "made up     from seed 1",
        "2 ranks, 2 threads, backend cpu (cpu-", "mode", "read GB/s", "\ntp "})
    EXPECT_TRUE(contains(ran.out, words));
}

TEST(BenchCommand, DrawsTheCurves) {
  const TempDir dir;
  const std::string path = (dir.path() / "out.svg").string();
  const Ran ran =
      bench("--batch", "1,2", "--ranks", "2", "--sizes", "128,256", "--plot", path.c_str(), "--json");
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json j = json_of(ran);
  EXPECT_EQ(j["plot"], path);
  ASSERT_EQ(j["steps"].size(), 6U);
  EXPECT_EQ(j["steps"][5]["intermediate"], 256);
  EXPECT_EQ(j["steps"][5]["batch"], 1);
  const std::string svg = read_text(path);
  EXPECT_EQ(xml_fault(svg), "");
  for (const char* words : {"data-name=\"ep\"", "data-name=\"tp\"", "tokens of a step",
                            "intermediate width of an expert", "fraction of a plain read"})
    EXPECT_TRUE(contains(svg, words));
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, 1U);
}

TEST(BenchCommand, RefusesWhatMakesNoSense) {
  expect_refusal(bench("--batch", "0"), 2, {"a batch of 0 tokens", "wanted 1 to"});
  expect_refusal(bench("--batch", "many"), 2, {"--batch", "many"});
  expect_refusal(bench("--sizes", "wide"), 2, {"--sizes", "wide"});
  expect_refusal(bench("--sizes", "100"), 4, {"100"});
  expect_refusal(bench("--pairs", "0"), 2, {"--pairs"});
  expect_refusal(bench("--ranks", "0"), 2, {"--ranks"});
  expect_refusal(bench("--weights", "int4"), 2, {"--weights"});
  expect_refusal(bench("--backend", "abacus"), 2, {"abacus"});
  expect_refusal(bench("--ranks", "3"), 4, {"8 experts", "3"});
  expect_refusal(bench("--ranks", "4", "--mode", "tp"), 4, {"slice 32", "legal tp: 1, 2"});
  expect_refusal(bench("--mode", "tp"), 4, {"at least 2 ranks"});
  expect_refusal(bench("--mode", "tp", "--ranks", "2", "--weights", "bf16"), 4,
                 {"only NVFP4 experts are cut"});
  expect_refusal(
      run_program({"bench", "--experts", "8", "--hidden", "256", "--intermediate", "128", "--top-k", "9"}), 2,
      {"top-k is 9", "8 experts"});
  expect_refusal(run_program({"bench", "--experts", "8", "--hidden", "256", "--intermediate", "128"}), 2,
                 {"--top-k"});
}

TEST(BenchCommand, SaysWhereALayerFitsIntoACache) {
  if (largest_cache() == 0) GTEST_SKIP() << "the system tells of no cache";
  EXPECT_TRUE(
      contains(bench("--batch", "1").err, "the layer of width 128 has 432.00 KiB, the largest cache "));
}

// Before anything is measured or allocated.
TEST(BenchCommand, RefusesAPlotThatCannotBeWrittenAndALayerThatDoesNotFit) {
  const TempDir dir;
  expect_refusal(bench("--plot", (dir.path() / "none" / "out.svg").c_str()), 2, {"none"});
  expect_refusal(bench("--plot", dir.path().c_str()), 2, {dir.path().string()});
  expect_refusal(run_program({"bench", "--experts", "1048576", "--hidden", "4096", "--intermediate", "4096",
                              "--top-k", "8", "--batch", "1"}),
                 7, {"1 rank x (stock experts", "GiB are available"});
}

// The plot would take the report's place: the name of the file that standard output goes to, by whatever
// name.
TEST(BenchCommand, RefusesAPlotWhereItsOwnReportGoes) {
  const TempDir dir;
  const std::string path = (dir.path() / "report.txt").string();
  for (const std::string& name : {path, std::string("/dev/stdout"), std::string("/proc/self/fd/1")}) {
    const int report = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    ASSERT_GE(report, 0);
    const Ran ran = run_program({"bench", "--experts", "4", "--hidden", "128", "--intermediate", "64",
                                 "--top-k", "2", "--batch", "1", "--pairs", "1", "--plot", name},
                                {}, report);
    close(report);
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_TRUE(contains(ran.err, "standard output"));
    EXPECT_EQ(read_text(path), "") << name;
  }
}

// What does not fit is refused without the advice to use options that this command does not have.
TEST(BenchCommand, GivesNoAdviceThatItCannotTake) {
  const Ran ran = bench("--batch", "1", "--sizes", "96");
  expect_refusal(ran, 4, {"96"});
  EXPECT_EQ(ran.err.find("--pad"), std::string::npos) << ran.err;
}

}  // namespace
}  // namespace kerf::test
