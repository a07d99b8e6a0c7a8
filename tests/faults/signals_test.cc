// Somebody stops the program while it loads or decodes, with ranks that are threads and ranks that are
// processes; and a table that cannot be written for want of room.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <set>
#include <thread>

#include "kerf/comm/mpi.h"
#include "tests/decode/synthetic.h"
#include "tests/faults/processes.h"
#include "tests/faults/times.h"
#include "tests/support/mpi_environment.h"
#include "tests/support/paths.h"

namespace kerf::test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

// Loads for some tenths of a second.
const Synthetic& model() {
  static const Synthetic made(64, 512, 512, {}, 3);
  return made;
}

class Interrupted : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!GetParam()) return;
    if (const Verdict why = comm::mpi_absent()) GTEST_SKIP() << why->text;
    if (!fs::exists(mpirun_path)) GTEST_SKIP() << "there is no mpirun";
  }
  [[nodiscard]] Words command(const Words& more) const {
    const Words decode =
        Words{program_path, "decode",         model().path().string(),          "--seconds",
              "100",        "--tactic-cache", (dir_.path() / "cache").string(), "--verbose"} +
        more;
    if (!GetParam()) return decode + Words{"--ranks", "4"};
    return Words{mpirun_path, "-np", "4"} + decode + Words{"--group", "mpi"};
  }
  static Words environment() { return mpi_environment(); }
  // It has ended soon, told why, and nothing is left: no process, no file.
  void expect_stopped(const Ran& ran, std::chrono::steady_clock::time_point from,
                      const std::string& message) const {
    EXPECT_LT(std::chrono::steady_clock::now() - from, 10s);
    EXPECT_NE(ran.code, 0);
    if (!GetParam()) {
      EXPECT_EQ(ran.code, 128 + SIGINT);
    }
    EXPECT_NE(ran.err.find(message), std::string::npos) << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_TRUE(none_left(model().path().string(), 5s)) << "something is left running";
    EXPECT_TRUE(fs::is_empty(dir_.path())) << fs::directory_iterator(dir_.path())->path();
  }

  TempDir dir_;
};
INSTANTIATE_TEST_SUITE_P(Groups, Interrupted, testing::Values(false, true),
                         [](const auto& group) { return group.param ? "mpi" : "local"; });

TEST_P(Interrupted, WhileItLoads) {
  for (int i = 0; i < fault_times(); ++i) {
    Running running(command({}), environment());
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    // Each is held as it is found with a file open, so that none has loaded before the last of them begins.
    std::set<int> ranks;
    while (std::ssize(ranks) < (GetParam() ? 4 : 1) && std::chrono::steady_clock::now() < deadline) {
      for (const int rank : those_who_have_open(model().path().string(), ".safetensors"))
        if (ranks.insert(rank).second) (void)::kill(rank, SIGSTOP);
      std::this_thread::sleep_for(1ms);
    }
    ASSERT_EQ(std::ssize(ranks), GetParam() ? 4 : 1) << running.err();
    const auto from = std::chrono::steady_clock::now();
    for (const int rank : ranks) (void)::kill(rank, SIGINT);  // mpirun would take its time
    for (const int rank : ranks) (void)::kill(rank, SIGCONT);
    const Ran ran = running.wait(20s);
    expect_stopped(ran, from, "kerf: error: interrupted (SIGINT)");
    EXPECT_EQ(ran.err.find("expert TP over"), std::string::npos) << "it had loaded";
  }
}

TEST_P(Interrupted, WhileItDecodes) {
  for (int i = 0; i < fault_times(); ++i) {
    Running running(command({}), environment());
    ASSERT_TRUE(running.says("expert TP over 4 ranks")) << running.err();
    std::this_thread::sleep_for(300ms);  // past the warm-up: steps for 100 s and more
    const auto from = std::chrono::steady_clock::now();
    running.send(SIGINT);
    expect_stopped(
        running.wait(20s), from,
        GetParam() ? "kerf: error: ended from outside (SIGTERM)" : "kerf: error: interrupted (SIGINT)");
  }
}

// kerf tune on a full disk, and kerf decode with a cache: a limit on the size of files stands for the disk.
TEST(AFullDisk, KerfTuneEndsAndLeavesNothing) {
  for (int i = 0; i < 20; ++i) {
    const TempDir dir;
    const std::string table = (dir.path() / "table.json").string();
    // Standard error has to be no file.
    const std::string tune = std::string(program_path) +
                             " tune --experts 8 --hidden 128 --intermediate 128 --top-k 2 --tp 2 "
                             "--tokens 1 --seconds 0.01 --quiet --out " +
                             table;
    const Timed ran =
        timed({"/bin/sh", "-c", "((ulimit -f 0; exec " + tune + ") 2>&1; echo code $?) | cat >&2"}, {}, 60s);
    EXPECT_NE(ran.err.find(table + ": cannot write it: File too large"), std::string::npos) << ran.err;
    EXPECT_NE(ran.err.find("\ncode 2\n"), std::string::npos) << ran.err;
    EXPECT_TRUE(fs::is_empty(dir.path()));
  }
}

}  // namespace
}  // namespace kerf::test
