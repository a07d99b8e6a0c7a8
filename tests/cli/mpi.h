// kerf under mpirun: ranks of one program, or of programs with arguments of their own.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kerf/comm/mpi.h"
#include "tests/cli/program.h"
#include "tests/support/mpi_environment.h"

namespace kerf::test {

// So many ranks of one program, its path first.
struct Part {
  int ranks;
  Words command;
};

// What does not end is ended: timeout's code is 124, or 137.
inline Ran run_parts(const std::vector<Part>& parts, Words environment = {}, const Words& options = {},
                     int longest_seconds = 120) {
  environment = environment + mpi_environment();
  Words all = Words{"-k", "5", std::to_string(longest_seconds), mpirun_path} + options;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) all.emplace_back(":");
    all = all + Words{"-np", std::to_string(parts[i].ranks)} + parts[i].command;
  }
  return run_executable("/usr/bin/timeout", all, environment);
}

// Skips where there is no MPI; otherwise a checkpoint of three layers, one of them of BF16 experts.
class MpiTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const Verdict why = comm::mpi_absent()) GTEST_SKIP() << why->text;
    if (!std::filesystem::exists(mpirun_path)) GTEST_SKIP() << "there is no mpirun";
    model_ = (dir_.path() / "c").string();
    ASSERT_EQ(run_program({"synth", model_, "--model", "muse-spark", "--experts", "8", "--hidden", "256",
                           "--intermediate", "2048", "--layers", "3", "--top-k", "2", "--bf16-layers", "1",
                           "--seed", "5"})
                  .code,
              0);
  }

  TempDir dir_;
  std::string model_;
};

}  // namespace kerf::test
