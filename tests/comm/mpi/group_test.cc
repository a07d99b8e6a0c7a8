// What the MPI group is beside any group: the contract that all of them keep, on as many processes as there
// are, and what is its own.
#include <gtest/gtest.h>
#include <sys/sysinfo.h>

#include <array>
#include <vector>

#include "kerf/comm/agree.h"
#include "tests/comm/contract.h"
#include "tests/comm/mpi/world.h"

namespace kerf::comm {
namespace {

using test::world;

class MpiContract : public testing::TestWithParam<test::Contract> {};
INSTANTIATE_TEST_SUITE_P(Group, MpiContract,
                         testing::ValuesIn(test::contracts().begin(), test::contracts().end()),
                         [](const auto& contract) { return contract.param.name; });
TEST_P(MpiContract, Holds) { GetParam().check(world()); }

TEST(MpiGroup, SaysWhatItIs) {
  EXPECT_EQ(world().name(), "mpi");
  EXPECT_TRUE(world().ordered());
  EXPECT_FALSE(world().shares_memory());
  EXPECT_GE(world().size(), 1);
  EXPECT_THROW(world().lend(
                   {}, [](Lent) {}, "x"),
               Error);
}

// One message that no int counts, strided; deselect with --gtest_filter=-*Large*.
TEST(MpiGroupLarge, OneMessageAboveTwoGiB) {
  constexpr std::int64_t runs = 70'001;
  constexpr std::int64_t run = 32'768;
  constexpr std::int64_t stride = run + 64;
  struct sysinfo info {};
  ASSERT_EQ(sysinfo(&info), 0);
  const bool room = info.freeram * info.mem_unit > 12'000'000'000U;
  if (all_min(world(), room ? 1 : 0, "room") == 0) GTEST_SKIP() << "less than 12 GB of memory is free";
  if (world().size() != 2) GTEST_SKIP() << "two ranks are enough";
  std::vector<std::uint64_t> from;
  std::vector<std::uint64_t> to;
  const auto value = [](std::size_t i) { return i * 0x9E3779B97F4A7C15U; };
  if (world().rank() == 0) {
    from.resize(runs * stride / 8);
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = value(i);
  } else {
    to.resize(runs * run / 8);
  }
  const tensor::StridedBytes none{nullptr, 1, 0, 1, 0, 0};
  const tensor::StridedBytes all{std::as_bytes(std::span(from)).data(), 1, 0, runs, stride, run};
  const std::array<tensor::StridedBytes, 2> send = {none, world().rank() == 0 ? all : none};
  const std::array<std::span<std::byte>, 2> received = {std::as_writable_bytes(std::span(to)),
                                                        std::span<std::byte>()};
  world().all_to_all(send, received, "a large message");
  bool same = true;
  for (std::size_t i = 0; i < to.size(); ++i)
    same = same && to[i] == value(i / (run / 8) * (stride / 8) + i % (run / 8));
  EXPECT_TRUE(same);
}

}  // namespace
}  // namespace kerf::comm
