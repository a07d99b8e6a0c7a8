// kerf decode: what each rank reads, and one rank that reads for all.
#include "tests/cli/muse_spark.h"
#include "tests/cli/program.h"

#include "kerf/tools/synth.h"

namespace kerf::test {
namespace {

const std::string& model() {
  static const TempDir dir;
  static const std::string path = [] {
    write_muse_spark(dir.path(), 2);
    return dir.path().string();
  }();
  return path;
}

Ran decode(std::vector<std::string> more) {
  std::vector<std::string> arguments = {"decode", model(), "--ranks", "4", "--seconds", "0"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_program(arguments);
}

TEST(DecodeReads, OneRankReadsForAllWithTheSameOutputs) {
  const nlohmann::json each = json_of(decode({"--json"}));
  const nlohmann::json one = json_of(decode({"--json", "--load-from-rank", "1"}));
  ASSERT_EQ(each["steps"].size(), 4U);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(one["steps"][i]["output_sha256"], each["steps"][i]["output_sha256"]);
  std::int64_t sum = 0;
  for (const auto& bytes : each["read_bytes_per_rank"]) {
    EXPECT_GT(bytes, 0);
    sum += bytes.get<std::int64_t>();
  }
  ASSERT_EQ(one["read_bytes_per_rank"].size(), 4U);
  for (std::size_t r = 0; r < 4; ++r) {
    const auto bytes = one["read_bytes_per_rank"][r].get<std::int64_t>();
    if (r == 1)
      EXPECT_TRUE(bytes > sum * 9 / 10 && bytes <= sum) << bytes << " of " << sum;
    else
      EXPECT_EQ(bytes, 0);
  }
  EXPECT_TRUE(contains(decode({}).out, "\nreads       0.00"));
  EXPECT_TRUE(contains(decode({"--load-from-rank", "0"}).out, "one rank reads for all"));
}

TEST(DecodeReads, WhatCannotBeReadForAll) {
  expect_refusal(decode({"--load-from-rank", "4"}), 2, {"--load-from-rank 4", "ranks 0 to 3"});
  const TempDir dir;
  const std::string out = (dir.path() / "out").string();
  ASSERT_EQ(run_program({"export", model(), out, "--ranks", "4"}).code, 0);
  expect_refusal(run_program({"decode", out, "--load-from-rank", "0", "--seconds", "0"}), 4,
                 {"rank 0", "an export has a file for each rank"});
}

}  // namespace
}  // namespace kerf::test
