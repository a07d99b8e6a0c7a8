// Exports that are killed: what is left starts with the outputs of a whole one or not at all, and the same
// command again is a whole one.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>

#include "kerf/checkpoint/export_facts.h"
#include "tests/cli/exports.h"
#include "tests/support/paths.h"

namespace kerf::test {
namespace {

// Every state that a run can be in when it is killed between the renames of its files: some have their names,
// the others are on their way.
TEST(KilledExport, NoStateBetweenRenamesStarts) {
  const TempDir whole;
  ASSERT_EQ(exported(model(), whole.path(), {"--ranks", "4"}).code, 0);
  const auto wanted = outputs(whole.path().string(), {"--batch", "1"});
  for (unsigned named = 0; named < 15; ++named) {
    const TempDir dir;
    for (int r = 0; r < 4; ++r) {
      const std::string name = checkpoint::export_file_name(r, 4);
      fs::copy_file(whole.path() / name, dir.path() / ((named >> r & 1U) != 0 ? name : name + ".tmp-77-0"));
    }
    EXPECT_EQ(decoded(dir.path().string(), {"--batch", "1"}).code, 3) << named;
    EXPECT_EQ(run_program({"verify", dir.path().string()}).code, 3) << named;
    if (named % 5 != 0) continue;
    ASSERT_EQ(exported(model(), dir.path(), {"--ranks", "4"}).code, 0) << named;
    EXPECT_EQ(outputs(dir.path().string(), {"--batch", "1"}), wanted) << named;
    EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 4) << named;
  }
}

// kill -9 at moments spread over the whole run, over what the kill before left. Whatever is there then starts
// with the outputs of a whole export, or is refused; and the same command again is one.
class KilledExportOf : public testing::TestWithParam<Arguments> {};

TEST_P(KilledExportOf, LeavesNothingThatALaterStartWouldTrust) {
  constexpr int kills = 24;
  const bool logical = GetParam().front() == "--to";
  const TempDir source;
  if (logical) {
    ASSERT_EQ(exported(model(), source.path(), {"--ranks", "2"}).code, 0);
  }
  const std::string from = logical ? source.path().string() : model();
  const TempDir clean;
  double seconds = 0;  // of the fastest whole run so far: others on the machine make some of them long
  const auto timed = [&](const auto& run) {
    const auto start = std::chrono::steady_clock::now();
    const int code = run();
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (code == 0) seconds = seconds == 0 ? took : std::min(seconds, took);
    return code;
  };
  ASSERT_EQ(timed([&] { return exported(from, clean.path(), GetParam()).code; }), 0);
  const Arguments batch = {"--batch", "1", "--mode", GetParam().back() == "--expert-tp" ? "tp" : "ep"};
  const auto wanted = outputs(clean.path().string(), batch);
  const TempDir dir;
  int killed = 0;
  int refused = 0;
  for (int i = 0; i < kills; ++i) {
    Arguments command = {"-s",
                         "KILL",
                         std::to_string(seconds * (i + 0.5) / kills),
                         program_path,
                         "export",
                         from,
                         dir.path().string()};
    command.insert(command.end(), GetParam().begin(), GetParam().end());
    killed += timed([&] { return run_executable("/usr/bin/timeout", command).code; }) == 137 ? 1 : 0;
    const Ran ran = decoded(dir.path().string(), batch);
    EXPECT_TRUE(ran.code == 0 || ran.code == 3) << ran.code << ": " << ran.err;
    if (ran.code == 0) {
      EXPECT_EQ(outputs(dir.path().string(), batch), wanted) << i;
    }
    refused += ran.code == 3 ? 1 : 0;
  }
  EXPECT_GT(killed, kills / 4);
  EXPECT_GT(refused, 0);
  ASSERT_EQ(exported(from, dir.path(), GetParam()).code, 0);
  EXPECT_EQ(outputs(dir.path().string(), batch), wanted);
  for (const auto& entry : fs::directory_iterator(clean.path()))
    EXPECT_EQ(read_text(entry.path()), read_text(dir.path() / entry.path().filename())) << entry.path();
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()),
            std::distance(fs::directory_iterator(clean.path()), fs::directory_iterator()));
}

INSTANTIATE_TEST_SUITE_P(All, KilledExportOf,
                         testing::Values(Arguments{"--ranks", "8"}, Arguments{"--ranks", "4", "--expert-tp"},
                                         Arguments{"--to", "logical"}));

}  // namespace
}  // namespace kerf::test
