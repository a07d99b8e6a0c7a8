// --group nccl: where its processes meet and which device each takes, from what launchers set; what is
// refused by name. (With devices: tests/comm/nccl_gpu_test.cc.)
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "cli/meeting.h"
#include "tests/cli/program.h"
#include "tests/support/gpu.h"

namespace kerf::test {
namespace {

Environment torchrun(const std::string& rank, const std::string& local) {
  return {{"RANK", rank},
          {"WORLD_SIZE", "16"},
          {"LOCAL_RANK", local},
          {"MASTER_ADDR", "node-a"},
          {"MASTER_PORT", "29500"}};
}

cli::Meeting meeting(const Environment& e, const std::string& file = "", std::optional<int> port = {},
                     const std::string& job = "") {
  return cli::find_meeting(find_launch(e), e, {file, port, job});
}

std::string refused(const Environment& e, const std::string& file = "", std::optional<int> port = {}) {
  const Verdict v = attempt([&] { (void)meeting(e, file, port); });
  EXPECT_TRUE(v);
  if (!v) return "";
  EXPECT_EQ(v->kind, ErrorKind::usage);
  return v->text;
}

TEST(NcclMeeting, IsBesideTorchrunsOwnPort) {
  const cli::Meeting m = meeting(torchrun("11", "3"));
  EXPECT_EQ(m.tcp.rank, 11);
  EXPECT_EQ(m.tcp.size, 16);
  EXPECT_EQ(m.tcp.host, "node-a");
  EXPECT_EQ(m.tcp.port, 29501);
  EXPECT_EQ(m.tcp.file, "");
  EXPECT_EQ(cli::device_of(m, 8), 3);
  EXPECT_EQ(meeting(torchrun("11", "3"), "", 4000).tcp.port, 4000);
  Environment last = torchrun("0", "0");
  last["MASTER_PORT"] = "65535";
  EXPECT_EQ(meeting(last).tcp.port, 65'534);
}

TEST(NcclMeeting, IsAFileWhereOneIsNamed) {
  const cli::Meeting m = meeting(torchrun("1", "1"), "/shared/meet");
  EXPECT_EQ(m.tcp.file, "/shared/meet");
  EXPECT_EQ(m.tcp.host, "");
}

TEST(NcclMeeting, IsOfTheLaunchersJobUnlessAnotherIsNamed) {
  Environment e = torchrun("1", "1");
  EXPECT_EQ(meeting(e).tcp.job, "");
  e["TORCHELASTIC_RUN_ID"] = "7";
  EXPECT_EQ(meeting(e).tcp.job, find_launch(e).job);
  EXPECT_TRUE(contains(meeting(e).tcp.job, "7"));
  EXPECT_EQ(meeting(e, "/shared/meet", {}, "mine").tcp.job, "mine");
}

TEST(NcclMeeting, OfOtherLaunchersIsAtMasterAddr) {
  Environment slurm = {
      {"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_ID", "0"}};
  EXPECT_TRUE(
      contains(refused(slurm, "", 4000), "Slurm started 4 processes, and nothing says where they meet"));
  slurm["MASTER_ADDR"] = "node-b";
  EXPECT_TRUE(contains(refused(slurm), "KERF_RENDEZVOUS_PORT"));
  const cli::Meeting m = meeting(slurm, "", 4000);
  EXPECT_EQ(m.tcp.host, "node-b");
  EXPECT_EQ(m.tcp.port, 4000);
  EXPECT_EQ(m.tcp.rank, 2);
}

TEST(NcclMeeting, OneProcessNeedsNone) {
  EXPECT_EQ(meeting({}).tcp.size, 1);
  EXPECT_EQ(cli::device_of(meeting({}), 8), 0);
  // A batch script, which has started nothing itself.
  EXPECT_EQ(meeting({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}).tcp.size, 1);
}

TEST(NcclMeeting, PortsThatMakeNoSenseAreRefused) {
  for (const char* port : {"0", "65536", "x", "29500 ", "-1"}) {
    Environment e = torchrun("0", "0");
    e["MASTER_PORT"] = port;
    EXPECT_TRUE(contains(refused(e), std::string("MASTER_PORT is '") + port + "'")) << port;
  }
}

TEST(NcclMeeting, EachProcessTakesItsOwnDevice) {
  const cli::Meeting m = meeting(torchrun("5", "5"));
  EXPECT_EQ(cli::device_of(m, 8), 5);
  EXPECT_EQ(cli::device_of(m, 1), 0);  // it sees its own alone
  const Verdict few = attempt([&] { (void)cli::device_of(m, 4); });
  ASSERT_TRUE(few);
  EXPECT_EQ(few->kind, ErrorKind::device);
  EXPECT_TRUE(contains(few->text, "process 5 of its host, which has 4 devices")) << few->text;
  Environment pmi = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1000"}};
  const Verdict which = attempt([&] { (void)cli::device_of(meeting(pmi), 4); });
  ASSERT_TRUE(which);
  EXPECT_TRUE(contains(which->text, "does not say which of this host's processes")) << which->text;
}

TEST(NcclCommand, EnvShowsTheVariablesAndWhyThereIsNone) {
  const Ran ran = run_program({"env", "--json"}, {"KERF_NCCL_LIBRARY=/no/such/file"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto json = json_of(ran);
  EXPECT_EQ(json["variables"]["KERF_NCCL_LIBRARY"]["value"], "/no/such/file");
  for (const char* name : {"KERF_RENDEZVOUS_PORT", "KERF_RENDEZVOUS_FILE", "KERF_JOB_ID"})
    EXPECT_TRUE(json["variables"].contains(name));
  EXPECT_LE(json["variables"].size(), 8U);
  const auto why = json["absent"]["nccl"].get<std::string>();
  EXPECT_TRUE(contains(why, !cuda::built()         ? "not built: configure with -DKERF_CUDA=ON"
                            : why_no_gpu().empty() ? "/no/such/file"
                                                   : why_no_gpu()))
      << why;
  const Ran asked = run_program({"decode", "nowhere", "--group", "nccl", "--device", "cuda"},
                                {"KERF_NCCL_LIBRARY=/no/such/file"});
  EXPECT_TRUE(contains(asked.err, "--group nccl: " + why)) << asked.err;
}

}  // namespace
}  // namespace kerf::test
