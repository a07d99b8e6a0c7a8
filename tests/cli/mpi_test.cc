// kerf as an MPI program: what rank 0 reports is what the local group reports, and when one process fails all
// end with its reason. Where processes are to differ, mpirun starts one of them with other arguments.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/cli/mpi.h"

namespace kerf::test {
namespace {

// `ranks` of one program, then one of another where that has arguments.
Ran run_mpi(int ranks, const Words& arguments, const Words& odd = {}, Words environment = {}) {
  std::vector<Part> parts = {{ranks, Words{program_path} + arguments}};
  if (!odd.empty()) parts.push_back({1, odd});
  return run_parts(parts, std::move(environment));
}

class MpiProgram : public MpiTest {
 protected:
  std::vector<std::string> digests(const Ran& ran) {
    EXPECT_EQ(ran.code, 0) << ran.err;
    std::vector<std::string> out;
    if (ran.code != 0) return out;
    const auto report = json_of(ran);
    for (const auto& step : report["steps"])
      out.push_back(step["mode"].get<std::string>() + " " + step["tail"].get<std::string>() + " " +
                    std::to_string(step["batch"].get<int>()) + " " +
                    step["output_sha256"].get<std::string>());
    return out;
  }
};

TEST_F(MpiProgram, DecodesToTheLocalGroupsBits) {
  struct Case {
    int ranks;
    Words more;
    std::size_t steps;
  };
  for (const auto& [ranks, more, steps] : std::vector<Case>{
           {2, {"--tail", "both", "--batch", "1,5"}, 8},
           {4, {"--tail", "both", "--batch", "1,40"}, 8},
           {4, {"--ep", "2", "--tp", "2", "--tail", "both", "--batch", "3"}, 4},
           {4, {"--act", "bf16", "--batch", "7"}, 2},
           {8, {"--mode", "ep", "--tail", "both", "--batch", "2"}, 2},
       }) {
    const Words common = Words{"decode", model_, "--seconds", "0", "--json", "--quiet"} + more;
    const auto local = digests(run_program(common + Words{"--ranks", std::to_string(ranks)}));
    const Ran ran = run_mpi(ranks, common + Words{"--group", "mpi"});
    EXPECT_EQ(digests(ran), local);
    EXPECT_EQ(local.size(), steps);
    if (ran.code == 0) {
      EXPECT_EQ(json_of(ran)["group"], "mpi");
    }
  }
}

TEST_F(MpiProgram, ExportsAndStartsFromExportsLikeTheLocalGroup) {
  const std::string a = (dir_.path() / "a").string();
  const std::string b = (dir_.path() / "b").string();
  ASSERT_EQ(run_program({"export", model_, a, "--ranks", "4", "--expert-tp"}).code, 0);
  const Ran made = run_mpi(4, {"export", model_, b, "--expert-tp", "--group", "mpi", "--json", "--quiet"});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(json_of(made)["ranks"], 4);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(a)) {
    EXPECT_EQ(read_text(entry.path()), read_text(std::filesystem::path(b) / entry.path().filename()));
    ++files;
  }
  EXPECT_GE(files, 4);
  const Words decode = {"decode", b, "--seconds", "0", "--json", "--quiet"};
  EXPECT_EQ(digests(run_mpi(4, decode + Words{"--group", "mpi"})), digests(run_program(decode)));
}

TEST_F(MpiProgram, WhatOneProcessFailsAtAllEndWith) {
  const Words decode = {"decode", model_, "--group", "mpi", "--seconds", "0", "--quiet"};
  const auto begin = std::chrono::steady_clock::now();
  // A rank that finds nothing to open: the others are already waiting for it. Several times: how processes
  // end is a matter of chance.
  for (int round = 0; round < 3; ++round) {
    const Ran lost =
        run_mpi(3, decode, {program_path, "decode", model_ + "/nowhere", "--group", "mpi", "--seconds", "0"});
    EXPECT_EQ(lost.code, 3) << lost.err;
    EXPECT_EQ(lost.out, "");
    EXPECT_TRUE(contains(lost.err, "[rank 3] "));
    for (const char* rank : {"error: rank 3: ", "[rank 1] rank 3: ", "[rank 2] rank 3: "})
      EXPECT_TRUE(contains(lost.err, rank));
    EXPECT_TRUE(contains(lost.err, "nowhere"));
  }
  // One that goes without a word: the launcher tells, and ends the others.
  const Ran gone = run_mpi(3, decode, {"/bin/sh", "-c", "kill -9 $$"});
  EXPECT_NE(gone.code, 0);
  EXPECT_EQ(gone.out, "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds{60});
}

// Rank 3 is stopped in the middle of its steps.
TEST_F(MpiProgram, ALateRankIsNamedWithWhatWasAwaited) {
  const Words decode = {"decode", model_, "--group", "mpi", "--mode", "ep", "--seconds", "60", "--quiet"};
  std::string words = "(sleep 2; kill -STOP $$) & exec " + std::string(program_path);
  for (const std::string& word : decode) words += " " + word;
  const auto begin = std::chrono::steady_clock::now();
  const Ran ran = run_mpi(3, decode, {"/bin/sh", "-c", words}, {"KERF_TIMEOUT=2"});
  EXPECT_EQ(ran.code, 5) << ran.err;
  EXPECT_TRUE(contains(ran.err, "rank 3 did not say how it ended: rank"));
  EXPECT_TRUE(contains(ran.err, "within 2 s"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds{20});
}

TEST_F(MpiProgram, CopiesOfOneProcessAreRefused) {
  const Words decode = {"decode", model_, "--seconds", "0"};
  const Ran ran = run_mpi(2, decode);
  EXPECT_EQ(ran.code, 2);
  EXPECT_TRUE(contains(ran.err, "OMPI_COMM_WORLD_SIZE=2"));
  EXPECT_TRUE(contains(ran.err, "--group mpi"));
  EXPECT_EQ(
      run_mpi(2, {"bench", "--experts", "8", "--hidden", "256", "--intermediate", "128", "--top-k", "2"})
          .code,
      2);
  const std::string out = (dir_.path() / "out").string();
  EXPECT_EQ(run_mpi(2, {"verify", model_}).code, 2);
  EXPECT_EQ(run_mpi(2, {"synth", out}).code, 2);
  const Ran back = run_mpi(2, {"export", model_, out, "--to", "logical", "--group", "mpi"});
  EXPECT_EQ(back.code, 2);
  EXPECT_TRUE(contains(back.err, "--to logical with --group mpi: one process writes it, wanted local"));
  EXPECT_FALSE(std::filesystem::exists(out));
  const Ran other = run_mpi(2, decode + Words{"--group", "mpi", "--ranks", "3"});
  EXPECT_EQ(other.code, 2);
  EXPECT_TRUE(contains(other.err, "--ranks 3, but MPI has 2 processes"));
  expect_refusal(run_program(decode + Words{"--group", "mpi"}, {"RANK=1", "WORLD_SIZE=4"}), 2,
                 {"torchrun says rank 1 of 4", "WORLD_SIZE=4", "mpirun"});
  // What is advised is not what is refused then.
  expect_refusal(run_program(decode, {"RANK=1", "WORLD_SIZE=4"}), 2,
                 {"torchrun started 4", "--group nccl with --device cuda makes each of them a rank"});
}

TEST_F(MpiProgram, AnInstructionSetThatOneProcessIsToldIsNamedAsThat) {
  const Words decode = {"decode", model_, "--group", "mpi", "--seconds", "0"};
  std::string words = "exec " + std::string(program_path);
  for (const std::string& word : decode) words += " " + word;
  const Ran ran = run_mpi(1, decode, {"/bin/sh", "-c", "KERF_ISA=scalar " + words.substr(5)});
  EXPECT_EQ(ran.code, 2);
  EXPECT_TRUE(contains(ran.err, "backend (--backend, KERF_ISA): rank 0: cpu, rank 1: cpu:scalar")) << ran.err;
}

TEST(LauncherVariables, EnvShowsWhatWasFoundAndWhy) {
  const Ran found = run_program({"env", "--json"}, {"RANK=2", "WORLD_SIZE=4", "LOCAL_RANK=0"});
  ASSERT_EQ(found.code, 0);
  const auto launch = json_of(found)["launch"];
  EXPECT_EQ(launch["launcher"], "torchrun");
  EXPECT_EQ(launch["rank"], 2);
  EXPECT_EQ(launch["size"], 4);
  EXPECT_EQ(launch["local_rank"], 0);
  EXPECT_EQ(launch["variables"], (std::vector<std::string>{"RANK=2", "WORLD_SIZE=4", "LOCAL_RANK=0"}));
  const Ran odd = run_program({"env"}, {"RANK=4", "WORLD_SIZE=4"});
  EXPECT_EQ(odd.code, 0);
  EXPECT_TRUE(contains(odd.out, "RANK is '4' and WORLD_SIZE is '4'"));
  expect_refusal(run_program({"decode", "nowhere"}, {"RANK=1"}), 2, {"RANK is '1'", "WORLD_SIZE is not set"});
}

}  // namespace
}  // namespace kerf::test
