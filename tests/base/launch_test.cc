// What launchers say about a process: the variables as each of them documents them.
#include "kerf/base/launch.h"

#include <gtest/gtest.h>

#include "kerf/base/error.h"

namespace kerf {
namespace {

Reason refused(const Environment& environment) {
  const Verdict v = attempt([&] { (void)find_launch(environment); });
  return v ? *v : Reason{};
}

TEST(Launch, NothingIsOneProcess) {
  const Launch l = find_launch({{"HOME", "/root"}, {"RANK", ""}});
  EXPECT_EQ(l.launcher, "");
  EXPECT_EQ(l.rank, 0);
  EXPECT_EQ(l.size, 1);
  EXPECT_FALSE(l.started);
  EXPECT_TRUE(l.variables.empty());
}

TEST(Launch, EachLauncherIsFoundByItsVariables) {
  const Launch ompi = find_launch({{"OMPI_COMM_WORLD_RANK", "3"},
                                   {"OMPI_COMM_WORLD_SIZE", "8"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(ompi.launcher, "Open MPI");
  EXPECT_EQ(ompi.rank, 3);
  EXPECT_EQ(ompi.size, 8);
  EXPECT_EQ(ompi.local_rank, 1);
  EXPECT_EQ(ompi.local_size, 2);
  EXPECT_TRUE(ompi.started);

  const Launch pmi = find_launch({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}});
  EXPECT_EQ(pmi.launcher, "PMI (MPICH, Intel MPI)");
  EXPECT_EQ(pmi.size, 2);
  EXPECT_EQ(pmi.local_rank, 0);
  EXPECT_FALSE(pmi.local_size);

  const Launch torch = find_launch({{"RANK", "5"},
                                    {"WORLD_SIZE", "16"},
                                    {"LOCAL_RANK", "5"},
                                    {"MASTER_ADDR", "10.0.0.1"},
                                    {"MASTER_PORT", "29500"}});
  EXPECT_EQ(torch.launcher, "torchrun");
  EXPECT_EQ(torch.rank, 5);
  EXPECT_EQ(torch.size, 16);
  EXPECT_EQ(torch.host, "10.0.0.1");
  EXPECT_EQ(torch.port, "29500");
  EXPECT_EQ(torch.variables, (std::vector<std::string>{"RANK=5", "WORLD_SIZE=16", "LOCAL_RANK=5",
                                                       "MASTER_ADDR=10.0.0.1", "MASTER_PORT=29500"}));

  const Environment step = {
      {"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}, {"SLURM_STEP_ID", "0"}};
  const Launch slurm = find_launch(step);
  EXPECT_EQ(slurm.launcher, "Slurm");
  EXPECT_EQ(slurm.rank, 2);
  EXPECT_EQ(slurm.size, 4);
  EXPECT_EQ(slurm.local_rank, 0);
  EXPECT_TRUE(slurm.started);
}

TEST(Launch, AJobIsWhatAllOfItsProcessesShareAndNoOtherDoes) {
  const auto job = [](Environment e, const Environment& more) {
    e.insert(more.begin(), more.end());
    return find_launch(e).job;
  };
  const Environment slurm = {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}};
  const std::string step = job(slurm, {{"SLURM_JOB_ID", "11"}, {"SLURM_STEP_ID", "0"}});
  EXPECT_NE(step, "");
  EXPECT_EQ(step, job({{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}},
                      {{"SLURM_JOB_ID", "11"}, {"SLURM_STEP_ID", "0"}}));
  EXPECT_NE(step, job(slurm, {{"SLURM_JOB_ID", "11"}, {"SLURM_STEP_ID", "1"}}));
  EXPECT_NE(step, job(slurm, {{"SLURM_JOB_ID", "12"}, {"SLURM_STEP_ID", "0"}}));
  EXPECT_EQ(job(slurm, {{"SLURM_STEP_ID", "0"}}), "");

  const Environment torch = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "none"}};
  EXPECT_NE(job(torch, {}), "");
  EXPECT_EQ(job(torch, {{"TORCHELASTIC_RESTART_COUNT", "0"}}),
            job(torch, {{"TORCHELASTIC_RESTART_COUNT", "1"}}));  // hosts of one job may count otherwise
  EXPECT_EQ(job({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, {}), "");
  EXPECT_NE(job({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, {{"PMIX_NAMESPACE", "1234"}}),
            "");
}

TEST(Launch, AnAllocationOfSlurmAloneHasStartedNothing) {
  EXPECT_EQ(find_launch({{"SLURM_NTASKS", "8"}}).launcher, "");  // salloc's shell
  const Launch script = find_launch({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}});
  EXPECT_EQ(script.size, 8);
  EXPECT_FALSE(script.started);
}

TEST(Launch, TheInnerLauncherCounts) {
  const Launch l = find_launch({{"SLURM_PROCID", "0"},
                                {"SLURM_NTASKS", "8"},
                                {"OMPI_COMM_WORLD_RANK", "1"},
                                {"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_EQ(l.launcher, "Open MPI");
  EXPECT_EQ(l.rank, 1);
}

TEST(Launch, WhatDoesNotFitIsNamedWithItsValue) {
  EXPECT_EQ(
      refused({{"RANK", "1"}}),
      (Reason{ErrorKind::usage, "RANK is '1' (torchrun), but WORLD_SIZE is not set: set both, or neither"}));
  EXPECT_EQ(
      refused({{"PMI_SIZE", "4"}}),
      (Reason{ErrorKind::usage,
              "PMI_SIZE is '4' (PMI (MPICH, Intel MPI)), but PMI_RANK is not set: set both, or neither"}));
  EXPECT_EQ(refused({{"RANK", "4"}, {"WORLD_SIZE", "4"}}),
            (Reason{ErrorKind::usage,
                    "RANK is '4' and WORLD_SIZE is '4' (torchrun): a rank is below the number of ranks"}));
  EXPECT_EQ(refused({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
            (Reason{ErrorKind::usage,
                    "LOCAL_RANK is '2' and LOCAL_WORLD_SIZE is '2' (torchrun): a rank is "
                    "below the number of ranks"}));
  for (const char* value : {"two", "-1", "1x", "99999999999", " 1"})
    EXPECT_EQ(refused({{"RANK", value}, {"WORLD_SIZE", "4"}}),
              (Reason{ErrorKind::usage, "RANK is '" + std::string(value) +
                                            "' (torchrun), wanted a whole number from 0 to 2147483647"}));
}

}  // namespace
}  // namespace kerf
