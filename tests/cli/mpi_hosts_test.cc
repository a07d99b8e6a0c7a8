// kerf on two hosts: network namespaces with addresses and names of their own, where this machine allows
// them.
#include <gtest/gtest.h>

#include "tests/cli/mpi.h"

namespace kerf::test {
namespace {

class TwoHosts : public MpiTest {
 protected:
  // Two ranks on each.
  Ran on_both(const Words& command) {
    return run_executable(
        "/bin/bash",
        Words{std::string(source_folder) + "/tests/cli/two_hosts.sh", mpirun_path, "2"} + command,
        mpi_environment());
  }
  void expect_local_bits(const Ran& ran, const Words& more) {
    ASSERT_EQ(ran.code, 0) << ran.err;
    const Ran local =
        run_program(Words{"decode", model_, "--ranks", "4", "--seconds", "0", "--json", "--quiet"} + more);
    ASSERT_EQ(local.code, 0) << local.err;
    const auto got = json_of(ran)["steps"];
    const auto wanted = json_of(local)["steps"];
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i]["output_sha256"], wanted[i]["output_sha256"]);
  }
};

TEST_F(TwoHosts, DecodeToTheLocalGroupsBits) {
  const Words more = {"--tail", "both", "--batch", "1,5"};
  const Ran ran = on_both(
      Words{program_path, "decode", model_, "--group", "mpi", "--seconds", "0", "--json", "--quiet"} + more);
  if (ran.code == 77) GTEST_SKIP() << ran.err;
  expect_local_bits(ran, more);
}

// The second host has no files.
TEST_F(TwoHosts, OneIsFedByTheOther) {
  const std::string script =
      "path='" + model_ + "'; case $(hostname) in kerf-b-*) path=/nowhere/at/all;; esac; exec '" +
      program_path + "' decode $path --group mpi --load-from-rank 0 --seconds 0 --json --quiet --batch 3";
  const Ran ran = on_both({"/bin/bash", "-c", script});
  if (ran.code == 77) GTEST_SKIP() << ran.err;
  expect_local_bits(ran, {"--batch", "3"});
}

// A rank of the other host that cannot start.
TEST_F(TwoHosts, AFaultOnOneEndsBoth) {
  const std::string script =
      "path='" + model_ +
      "'; case $(hostname)$OMPI_COMM_WORLD_LOCAL_RANK in kerf-b-*1) path=/nowhere/at/all;; esac; exec '" +
      program_path + "' decode $path --group mpi --seconds 0 --json --quiet";
  const Ran ran = on_both({"/bin/bash", "-c", script});
  if (ran.code == 77) GTEST_SKIP() << ran.err;
  EXPECT_EQ(ran.code, 3) << ran.err;
  for (const char* who : {"error: ", "[rank 1] ", "[rank 2] "})
    EXPECT_TRUE(contains(ran.err, who + std::string("rank 3: /nowhere/at/all: no such directory")));
}

}  // namespace
}  // namespace kerf::test
