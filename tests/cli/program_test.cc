// What holds for the program as a whole: exit codes, streams, help, the environment.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "kerf/base/build_info.h"
#include "kerf/base/env.h"
#include "kerf/op/op.h"
#include "tests/cli/program.h"

namespace kerf::test {
namespace {

const std::vector<std::string> commands = {"inspect", "verify", "plan", "decode", "run", "synth", "env"};

TEST(Program, HelpNamesEveryCommand) {
  const Ran ran = run_program({"--help"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  for (const std::string& c : commands) EXPECT_TRUE(contains(ran.out, "\n  " + c));
  EXPECT_TRUE(contains(ran.out, "Exit codes"));
}

TEST(Program, EveryCommandHasHelp) {
  for (const std::string& c : commands)
    for (const char* flag : {"-h", "--help"}) {
      const Ran ran = run_program({c, flag});
      EXPECT_EQ(ran.code, 0) << c;
      EXPECT_EQ(ran.err, "") << c;
      for (const char* option : {"--json", "--quiet", "--verbose"})
        EXPECT_TRUE(contains(ran.out, option)) << c;
    }
}

TEST(Program, Version) {
  const Ran ran = run_program({"--version"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, "kerf " + std::string(version()) + "\n");
}

TEST(Program, UsageErrorsAreCodeTwo) {
  expect_refusal(run_program({}), 2, {"kerf --help"});
  expect_refusal(run_program({"carve"}), 2, {"carve"});
  expect_refusal(run_program({"env", "--colour"}), 2, {"--colour"});
  expect_refusal(run_program({"inspect"}), 2, {"CKPT"});
  expect_refusal(run_program({"env", "extra"}), 2, {"extra"});
  expect_refusal(run_program({"plan", "--ranks", "four"}), 2, {"--ranks", "four"});
  expect_refusal(run_program({"plan", "--ranks", "4x"}), 2, {"4x"});
  expect_refusal(run_program({"plan", "--ranks"}), 2, {"--ranks"});
  expect_refusal(run_program({"plan", "--ranks", "99999999999999999999"}), 2, {"--ranks"});
}

TEST(Program, BadPathsAreCodeThree) {
  const TempDir dir;
  std::filesystem::create_directory(dir.path() / "empty");
  std::filesystem::create_directory(dir.path() / "broken");
  std::ofstream(dir.path() / "broken" / "config.json") << "{\"hidden_size\": ";
  for (const char* c : {"inspect", "verify", "plan"}) {
    expect_refusal(run_program({c, (dir.path() / "nowhere").string()}), 3, {"nowhere"});
    expect_refusal(run_program({c, (dir.path() / "empty").string()}), 3, {"config.json"});
    expect_refusal(run_program({c, (dir.path() / "broken").string()}), 3, {"broken", "config.json"});
  }
}

TEST(Program, AFullDiskIsAnError) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  const Ran ran = run_program({"env"}, {}, full);
  close(full);
  EXPECT_EQ(ran.code, 1);
  EXPECT_TRUE(contains(ran.err, "cannot write to standard output"));
}

TEST(Program, AReaderThatLeftIsAnErrorAndNoSignal) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  close(ends[0]);
  const Ran ran = run_program({"env"}, {}, ends[1]);
  close(ends[1]);
  EXPECT_EQ(ran.code, 1) << ran.err;
  EXPECT_EQ(ran.err, "");
}

TEST(Program, EnvListsEverythingThereIs) {
  const Ran ran = run_program({"env", "--json"}, {"KERF_THREADS=3"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  const auto json = json_of(ran);
  for (const char* key :
       {"version", "compiler", "build_type", "cores", "backends", "groups", "absent", "variables", "options"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["backends"].get<std::vector<std::string>>(), op::backend_names());
  for (const char* part : {"cuda", "mpi", "nccl"})
    EXPECT_TRUE(contains(json["absent"][part].get<std::string>(), "not built: "));
  EXPECT_EQ(json["variables"].size(), env_table.size());
  EXPECT_EQ(json["variables"]["KERF_THREADS"]["value"], "3");
  EXPECT_TRUE(json["variables"]["KERF_ISA"]["value"].is_null());
  EXPECT_LE(json["options"].size(), 8U);
  EXPECT_TRUE(json["options"].contains("KERF_SANITIZE"));

  const Ran text = run_program({"env"}, {"KERF_THREADS=3"});
  EXPECT_EQ(text.code, 0);
  for (const EnvVariable& v : env_table) EXPECT_TRUE(contains(text.out, v.name));
  for (const std::string& b : op::backend_names()) EXPECT_TRUE(contains(text.out, b));
}

TEST(Program, BadVariablesAreUsageErrors) {
  const TempDir dir;
  const std::string c = (dir.path() / "c").string();
  for (const char* value : {"KERF_THREADS=0", "KERF_THREADS=-1", "KERF_THREADS=many"})
    expect_refusal(run_program({"synth", c, "--model", "tiny"}, {value}), 2, {"KERF_THREADS"});
}

}  // namespace
}  // namespace kerf::test
