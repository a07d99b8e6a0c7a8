// The main job at a shape that every group size can cut: EP and TP side by side on up to 16 ranks.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/program.h"

namespace kerf::test {
namespace {

using Step = std::pair<std::string, int>;  // mode, batch

// 48 experts of 256 x 3072 over 2, 3, 4, 8 and 16 ranks, one token and eight: both modes run, the probe finds
// them close, and three starts give the same bits (the third with other threads).
TEST(MainJob, EpAndTpOnTwoToSixteenRanks) {
  const TempDir dir;
  const Ran synth =
      run_program({"synth", dir.path().string(), "--experts", "48", "--hidden", "256", "--intermediate",
                   "3072", "--layers", "2", "--top-k", "8", "--bf16-layers", "none", "--quiet"});
  ASSERT_EQ(synth.code, 0) << synth.err;
  for (const int ranks : {2, 3, 4, 8, 16}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    std::vector<std::string> first;
    for (const char* threads : {"", "", "5"}) {
      std::vector<std::string> arguments = {"decode",    dir.path().string(),
                                            "--ranks",   std::to_string(ranks),
                                            "--batch",   "1,8",
                                            "--seconds", "0",
                                            "--json",    "--quiet"};
      if (*threads != '\0') arguments.insert(arguments.end(), {"--threads", threads});
      const Ran ran = run_program(arguments);
      ASSERT_EQ(ran.code, 0) << ran.err;
      const auto json = json_of(ran);
      EXPECT_EQ(json["ranks"], ranks);
      EXPECT_EQ(json["checkpoint"]["nvfp4_layers"], 2);
      EXPECT_GT(json["probe"]["min_rel_l2"].get<double>(), 0);
      EXPECT_LT(json["probe"]["max_rel_l2"].get<double>(), 0.01);
      std::vector<Step> steps;
      std::vector<std::string> digests;
      for (const auto& step : json["steps"]) {
        steps.emplace_back(step["mode"].get<std::string>(), step["batch"].get<int>());
        digests.push_back(step["output_sha256"].get<std::string>());
        EXPECT_EQ(digests.back().size(), 64U);
        EXPECT_GT(step["us_per_layer"].get<double>(), 0);
      }
      EXPECT_EQ(steps, (std::vector<Step>{{"ep", 1}, {"ep", 8}, {"tp", 1}, {"tp", 8}}));
      EXPECT_EQ(std::set<std::string>(digests.begin(), digests.end()).size(), 4U);
      if (first.empty()) first = digests;
      EXPECT_EQ(digests, first) << "threads: " << (*threads != '\0' ? threads : "as found");
    }
  }
}

}  // namespace
}  // namespace kerf::test
