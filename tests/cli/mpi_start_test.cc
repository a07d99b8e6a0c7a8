// Processes that start from different things end alike, before a tensor is read; one that has no files is
// fed; kerf run gives what it gives with local ranks.
#include <gtest/gtest.h>

#include "kerf/checkpoint/safetensors.h"
#include "kerf/numeric/bf16.h"
#include "kerf/numeric/splitmix.h"
#include "tests/cli/mpi.h"

namespace kerf::test {
namespace {

namespace fs = std::filesystem;

class MpiStart : public MpiTest {
 protected:
  // Rank 2 of 4 with other arguments.
  Ran with_odd(const Words& others, const Words& odd, const Words& environment = {}) const {
    return run_parts({{2, Words{program_path} + others},
                      {1, Words{program_path} + odd},
                      {1, Words{program_path} + others}},
                     environment);
  }
  [[nodiscard]] Words decode(const std::string& from, const Words& more = {}) const {
    return Words{"decode", from, "--group", "mpi", "--seconds", "0", "--quiet"} + more;
  }
  // All ranks end with the text, each as its own words: none blames another.
  static void expect_all_say(const Ran& ran, int code, const std::string& text) {
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_TRUE(contains(ran.err, "kerf: error: " + text));
    for (const int rank : {1, 2, 3})
      EXPECT_TRUE(contains(ran.err, "kerf: error: [rank " + std::to_string(rank) + "] " + text));
  }
};

TEST_F(MpiStart, OptionsThatDifferAreNamed) {
  const std::string alike = "the ranks do not start alike: ";
  struct Case {
    Words odd;
    std::string text;
  };
  for (const auto& [odd, text] : std::vector<Case>{
           {decode(model_, {"--batch", "1,4"}), "--batch: rank 2: 1,4, others: 1,8"},
           {decode(model_, {"--ep", "2", "--tp", "2"}),
            "--ep: rank 2: 2, others: not given; --tp: rank 2: 2, others: not given"},
           {decode(model_, {"--tail", "exact", "--seed", "2"}),
            "--tail: rank 2: exact, others: fast; --seed: rank 2: 2, others: 1"},
           {decode(model_, {"--load-from-rank", "0"}), "--load-from-rank: rank 2: 0, others: not given"},
           {{"export", model_, (dir_.path() / "e").string(), "--group", "mpi"},
            "command: rank 2: export, others: decode"},
       })
    expect_all_say(with_odd(decode(model_), odd), 2, alike + text);
}

TEST_F(MpiStart, CheckpointsThatDifferAreNamed) {
  const std::string other = (dir_.path() / "other").string();
  ASSERT_EQ(run_program({"synth", other, "--model", "muse-spark", "--experts", "8", "--hidden", "256",
                         "--intermediate", "2048", "--layers", "3", "--top-k", "4", "--bf16-layers", "1",
                         "--seed", "5"})
                .code,
            0);
  const Ran ran = with_odd(decode(model_), decode(other));
  expect_all_say(ran, 3, "the ranks do not start alike: model: rank 2: ");
  EXPECT_TRUE(contains(ran.err, "top 4, model width"));
  EXPECT_TRUE(contains(ran.err, "top 2, model width"));
  EXPECT_TRUE(contains(ran.err, "; configuration files' digest: rank 2: "));
}

// The others' directory is nowhere to be found; each process has a working directory of its own.
TEST_F(MpiStart, ProcessesWithoutFilesAreFed) {
  const Words more = {"--json", "--batch", "1,5", "--tail", "both"};
  const Ran local = run_program(Words{"decode", model_, "--ranks", "4", "--seconds", "0", "--quiet"} + more);
  ASSERT_EQ(local.code, 0) << local.err;
  fs::create_directory(dir_.path() / "elsewhere");
  const Words fed = Words{program_path} + decode("c", more) + Words{"--load-from-rank", "0"};
  const Words nowhere =
      Words{program_path} + decode("/nowhere/at/all", more) + Words{"--load-from-rank", "0"};
  const Ran ran = run_parts({{1, Words{"--wdir", dir_.path().string()} + fed},
                             {2, Words{"--wdir", (dir_.path() / "elsewhere").string()} + nowhere},
                             {1, Words{"--wdir", "/"} + fed}});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto got = json_of(ran);
  const auto wanted = json_of(local);
  ASSERT_EQ(got["steps"].size(), 8U);
  for (std::size_t i = 0; i < got["steps"].size(); ++i)
    EXPECT_EQ(got["steps"][i]["output_sha256"], wanted["steps"][i]["output_sha256"]);
  EXPECT_GT(got["read_bytes_per_rank"][0], 0);
  for (const std::size_t r : {1U, 2U, 3U}) EXPECT_EQ(got["read_bytes_per_rank"][r], 0);
}

// Where the reading rank has no files, all end with its number and reason.
TEST_F(MpiStart, TheReadingRanksErrorIsAllRanks) {
  const Words more = {"--load-from-rank", "2"};
  const Ran ran = with_odd(decode(model_, more), decode("/nowhere/at/all", more));
  EXPECT_EQ(ran.code, 3) << ran.err;
  for (const char* who : {"error: ", "[rank 1] ", "[rank 2] ", "[rank 3] "})
    EXPECT_TRUE(contains(ran.err, who + std::string("rank 2: /nowhere/at/all: no such directory")));
  const Ran none = run_parts({{4, Words{program_path} + decode(model_, {"--load-from-rank", "4"})}});
  EXPECT_EQ(none.code, 2);
  EXPECT_TRUE(contains(none.err, "--load-from-rank 4: there are ranks 0 to 3"));
}

// Rows of a fixed generator, spread routes.
TEST_F(MpiStart, RunGivesWhatLocalRanksGive) {
  const std::string in = (dir_.path() / "in.safetensors").string();
  constexpr std::int64_t tokens = 5;
  std::vector<std::uint16_t> x(tokens * 256);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = numeric::f32_to_bf16(static_cast<float>((i * 2'654'435'761U >> 8U) % 2001) / 1000.0F - 1.0F);
  std::vector<std::int32_t> ids;
  const std::vector<float> weights(tokens * 2, 0.5F);
  for (std::int32_t i = 0; i < tokens * 2; ++i) ids.push_back((i * 3) % 8);
  const std::vector<std::pair<std::string, tensor::TensorView>> tensors = {
      {"x", {tensor::Dtype::bf16, {tokens, 256}, std::as_bytes(std::span(x))}},
      {"topk_ids", {tensor::Dtype::i32, {tokens, 2}, std::as_bytes(std::span(ids))}},
      {"topk_weights", {tensor::Dtype::f32, {tokens, 2}, std::as_bytes(std::span(weights))}}};
  checkpoint::write_safetensors(in, tensors);
  for (const Words& more :
       {Words{"--mode", "ep"}, Words{"--mode", "tp"}, Words{"--mode", "tp", "--tail", "exact"},
        Words{"--mode", "tp", "--ep", "2", "--tp", "2", "--unfinalized"}}) {
    const auto common = [&](const std::string& name) {
      return Words{"run",   model_, "--layer", "0", "--in", in, "--out", (dir_.path() / name).string(),
                   "--json"} +
             more;
    };
    const Ran local = run_program(common("local") + Words{"--ranks", "4"});
    ASSERT_EQ(local.code, 0) << local.err;
    const Ran mpi = run_parts({{4, Words{program_path} + common("mpi") + Words{"--group", "mpi"}}});
    ASSERT_EQ(mpi.code, 0) << mpi.err;
    EXPECT_EQ(json_of(mpi)["y_sha256"], json_of(local)["y_sha256"]);
    EXPECT_EQ(json_of(mpi)["ranks"], 4);
    EXPECT_EQ(read_text(dir_.path() / "mpi"), read_text(dir_.path() / "local"));
  }
}

}  // namespace
}  // namespace kerf::test
