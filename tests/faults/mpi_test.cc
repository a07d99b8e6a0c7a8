// What breaks on one of four processes, several times each (FAULT_TIMES, CI: 3; ./dev faults: 20): all ranks
// that are left end, soon, with that rank's reason or its number and what was awaited, and nothing of them is
// left running.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <regex>

#include "kerf/comm/mpi.h"
#include "kerf/tools/synth.h"
#include "tests/decode/synthetic.h"
#include "tests/faults/processes.h"
#include "tests/faults/spoilt.h"
#include "tests/faults/times.h"
#include "tests/support/mpi_environment.h"
#include "tests/support/paths.h"

namespace kerf::test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr int kOdd = 2;

class MpiFault : public testing::Test {
 protected:
  void SetUp() override {
    if (const Verdict why = comm::mpi_absent()) GTEST_SKIP() << why->text;
    if (!fs::exists(mpirun_path)) GTEST_SKIP() << "there is no mpirun";
    good_ = (dir_.path() / "good").string();
    bad_ = (dir_.path() / "bad").string();
    // NVFP4 alone, small.
    static const Synthetic model(8, 128, 256, {}, 2);
    fs::copy(model.path(), good_, fs::copy_options::recursive);
    fs::copy(model.path(), bad_, fs::copy_options::recursive);
  }
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_TRUE(none_left(dir_.path().string(), std::chrono::seconds{5})) << "something is left running";
  }

  // Ranks 0, 1 and 3 of one command, rank 2 of another.
  static Timed run(const Words& command, const Words& odd, std::chrono::seconds longest = 60s,
                   Words environment = {}) {
    environment = environment + mpi_environment();
    return timed(Words{mpirun_path, "-np", "2"} + command + Words{":", "-np", "1"} + odd +
                     Words{":", "-np", "1"} + command,
                 environment, longest);
  }
  [[nodiscard]] Words decode(const std::string& from, const Words& more = {}) const {
    return Words{program_path, "decode", from, "--group", "mpi", "--seconds", "0", "--quiet"} + more;
  }
  // The ranks of the test's own program.
  [[nodiscard]] Timed run_fault(const std::string& fault, std::chrono::milliseconds timeout = 60s,
                                std::chrono::seconds longest = 60s) const {
    const Words rank = {fault_rank_path, good_, std::to_string(timeout.count()), std::to_string(kOdd), fault};
    return run(rank, rank, longest);
  }

  // All have ended soon, not with 0, and each rank says the words.
  static void expect_ended(const Timed& ran, int code, const Words& words, double seconds = 10,
                           const std::vector<std::string>& ranks = {"[rank 1] ", "[rank 2] ", "[rank 3] "}) {
    EXPECT_LT(ran.seconds, seconds) << ran.err;
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_EQ(ran.out, "");
    for (const std::string& rank : ranks) {
      std::size_t begin = ran.err.find(rank);
      ASSERT_NE(begin, std::string::npos) << rank << "says nothing in: " << ran.err;
      // The odd rank's own line has its number once.
      const bool own = rank == "[rank 2] ";
      if (own) begin += rank.size();
      const std::string line =
          (own ? "rank 2: " : "") + ran.err.substr(begin, ran.err.find('\n', begin) - begin);
      for (const std::string& word : words)
        EXPECT_NE(line.find(word), std::string::npos) << "no '" << word << "' in: " << line;
    }
  }
  void each_time(const Words& command, const Words& odd, int code, const Words& words) const {
    for (int i = 0; i < fault_times(); ++i) expect_ended(run(command, odd), code, words);
  }
  void each_time(const std::string& fault, int code, const Words& words,
                 const std::vector<std::string>& ranks = {"[rank 0] ", "[rank 1] ", "[rank 2] ",
                                                          "[rank 3] "}) const {
    for (int i = 0; i < fault_times(); ++i) expect_ended(run_fault(fault), code, words, 10, ranks);
  }

  [[nodiscard]] fs::path shard() const {
    for (const auto& file : fs::directory_iterator(bad_))
      if (file.path().extension() == ".safetensors") return file.path();
    return {};
  }

  TempDir dir_;
  std::string good_, bad_;
};

TEST_F(MpiFault, Nothing) {
  const Timed ran = run_fault("none");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
}

TEST_F(MpiFault, AShardIsMissing) {
  fs::remove(shard());
  each_time(decode(good_), decode(bad_), 3, {"rank 2: " + bad_});
}

TEST_F(MpiFault, AShardIsAByteShort) {
  fs::resize_file(shard(), fs::file_size(shard()) - 1);
  each_time(decode(good_), decode(bad_), 3, {"rank 2: ", shard().filename().string()});
}

TEST_F(MpiFault, TheConfigDiffers) {
  change_top_k(fs::path(bad_) / "config.json");
  each_time(decode(good_), decode(bad_), 3,
            {"the ranks do not start alike: model: rank 2: ", "top 2", "others: ", "top 4"});
}

TEST_F(MpiFault, AGlobalScaleDiffersInItsLastBit) {
  change_a_global_scale(shard());
  each_time(decode(good_), decode(bad_), 3,
            {"do not start alike: layer 0, down's ", "of expert 5: rank 2: ", ", others: "});
}

TEST_F(MpiFault, ThePlacementDiffers) {
  each_time(decode(good_), decode(good_, {"--ep", "2", "--tp", "2"}), 2,
            {"--ep: rank 2: 2, others: not given; --tp: rank 2: 2, others: not given"});
}

TEST_F(MpiFault, ABlockScaleIsNaN) { each_time("nan", 3, {"layer 0", "0x7F"}); }

TEST_F(MpiFault, AnAllocationFails) {
  each_time("allocation", 7, {"rank 2: ", "bytes left on this machine"});
}

TEST_F(MpiFault, TheProbeIsOverTheLimitThereAlone) {
  each_time("probe", 6, {"rank 2: layer 0", "limit 1e-09"});
}

// Late for the first vote; the time-out is shortened to 2 s.
TEST_F(MpiFault, ItSleepsBeforeTheFirstVote) {
  for (int i = 0; i < fault_times(); ++i)
    expect_ended(run_fault("sleep:30", 2s), 5, {"rank 2 did not reach 'opening the checkpoint' within 2 s"},
                 12, {"[rank 0] ", "[rank 1] ", "[rank 3] "});
}

// The same with 40 s and a time-out of 20 s; within the usual 60 s it is waited for.
TEST_F(MpiFault, TakesMinutesWhenItSleeps40Seconds) {
  expect_ended(run_fault("sleep:40", 20s), 5, {"rank 2 did not reach 'opening the checkpoint' within 20 s"},
               30, {"[rank 0] ", "[rank 1] ", "[rank 3] "});
  const Timed in_time = run_fault("sleep:40", 60s, 80s);
  EXPECT_EQ(in_time.code, 0) << in_time.err;
  EXPECT_GT(in_time.seconds, 40);
}

// It tells the others that it goes, and why.
TEST_F(MpiFault, ItThrowsDuringTheReshard) { each_time("throw@w13", 70, {"it breaks here"}); }
TEST_F(MpiFault, ItThrowsBetweenTwoSteps) { each_time("throw@7", 70, {"it breaks here"}); }
TEST_F(MpiFault, ItReturnsBetweenTwoSteps) {
  each_time("return@7", 5, {"rank 2 returned while '"}, {"[rank 0] ", "[rank 1] ", "[rank 3] "});
}

// It goes without a word: the launcher says so and ends the others, who may still say what they waited for.
TEST_F(MpiFault, ItIsGone) {
  for (const char* fault : {"kill@w13", "kill@7", "exit@w13", "exit@7"}) {
    for (int i = 0; i < fault_times(); ++i) {
      const Timed ran = run_fault(fault);
      EXPECT_LT(ran.seconds, 10) << fault << ran.err;
      EXPECT_NE(ran.code, 0) << fault;
      const bool killed = std::string_view(fault).starts_with("kill");
      EXPECT_TRUE(std::regex_search(ran.err, std::regex(killed ? "rank 2 with PID [0-9]+ .*signal 9"
                                                               : "Process name: \\[\\[[0-9,]+\\],2\\]")))
          << fault << ": " << ran.err;
    }
  }
}

// A full disk while the tuner's cache is written: it is said, nothing is left, the decode goes on.
TEST_F(MpiFault, TheCacheCannotBeWritten) {
  const std::string cache = (dir_.path() / "cache.json").string();
  const Words command = decode(good_, {"--tune-seconds", "0.01", "--tactic-cache", cache, "--json"});
  std::string limited = "ulimit -f 0; exec";
  for (const std::string& word : command) limited += " '" + word + "'";
  for (int i = 0; i < fault_times(); ++i) {
    // Shared memory of ranks is made of files, too: these go by sockets.
    const Timed ran =
        timed(Words{mpirun_path, "-np", "1", "/bin/sh", "-c", limited, ":", "-np", "3"} + command,
              mpi_environment() + Words{"OMPI_MCA_btl=self,tcp"}, 60s);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_NE(ran.err.find("the tactic cache is not written: " + cache + ": cannot write it: "),
              std::string::npos)
        << ran.err;
    for (const auto& file : fs::directory_iterator(dir_.path()))
      EXPECT_FALSE(file.path().filename().string().starts_with("cache.json")) << file.path();
  }
}

}  // namespace
}  // namespace kerf::test
