// Decode steps that go on and on, on four ranks: the same bits, no memory gained, no file descriptor.
#include "tests/lasting/steps.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <regex>

#include "kerf/comm/local.h"
#include "kerf/comm/mpi.h"
#include "tests/decode/synthetic.h"
#include "tests/support/mpi_environment.h"
#include "tests/support/program.h"

namespace kerf::test {
namespace {

constexpr int kRanks = 4;
// What a process may gain: the C library keeps and returns pages as it likes. A leak of 32 bytes a step would
// be more in 100,000 of them.
constexpr std::int64_t kGainKib = 2048;

const Synthetic& model() {
  static const Synthetic made(8, 128, 256, {}, 2);
  return made;
}

void local_ranks(std::int64_t steps) {
  const checkpoint::Checkpoint from = model().open();
  std::vector<Lasted> all(kRanks);
  comm::run_local(kRanks, {}, [&](comm::Group& group) {
    all[static_cast<std::size_t>(group.rank())] = last(group, from, steps);
  });
  for (const Lasted& l : all) EXPECT_EQ(l.differing, 0);
  const Lasted& l = all.front();  // one process
  EXPECT_LE(l.after.resident_kib, l.before.resident_kib + kGainKib);
  EXPECT_EQ(l.after.descriptors, l.before.descriptors);
  std::printf("%d local ranks: %lld to %lld KiB, %lld to %lld descriptors, %.1f s\n", kRanks,
              static_cast<long long>(l.before.resident_kib), static_cast<long long>(l.after.resident_kib),
              static_cast<long long>(l.before.descriptors), static_cast<long long>(l.after.descriptors),
              l.seconds);
}

void mpi_ranks(std::int64_t steps) {
  if (const Verdict why = comm::mpi_absent()) GTEST_SKIP() << why->text;
  if (!std::filesystem::exists(mpirun_path)) GTEST_SKIP() << "there is no mpirun";
  const Ran ran = run_executable("/usr/bin/timeout",
                                 {"-k", "5", "1500", mpirun_path, "-np", std::to_string(kRanks),
                                  lasting_rank_path, model().path().string(), std::to_string(steps)},
                                 mpi_environment());
  ASSERT_EQ(ran.code, 0) << ran.err;
  std::printf("%s", ran.out.c_str());
  const std::regex line(
      "rank ([0-9]+): ([0-9]+) differ, ([0-9]+) to ([0-9]+) KiB, ([0-9]+) to ([0-9]+) desc");
  int ranks = 0;
  for (auto it = std::sregex_iterator(ran.out.begin(), ran.out.end(), line); it != std::sregex_iterator();
       ++it) {
    const auto number = [&](int group) { return std::stoll((*it)[static_cast<std::size_t>(group)]); };
    EXPECT_EQ(number(2), 0);
    EXPECT_LE(number(4), number(3) + kGainKib);
    EXPECT_EQ(number(5), number(6));
    ++ranks;
  }
  EXPECT_EQ(ranks, kRanks);
}

TEST(Lasting, HundredThousandStepsOfLocalRanks) { local_ranks(100'000); }
TEST(Lasting, TenThousandStepsOfMpiRanks) { mpi_ranks(10'000); }

}  // namespace
}  // namespace kerf::test
