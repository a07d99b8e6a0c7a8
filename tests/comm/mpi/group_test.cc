// The MPI group: what its collectives compute, bit for bit what the local group's do, on any number of
// processes.
#include <gtest/gtest.h>
#include <sys/sysinfo.h>

#include <bit>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kerf/comm/agree.h"
#include "kerf/comm/all_reduce.h"
#include "kerf/comm/grid.h"
#include "kerf/numeric/bf16.h"
#include "tests/comm/mpi/world.h"

namespace kerf::comm {
namespace {

using test::world;

std::byte mark(int from, int to, std::size_t i) {
  return static_cast<std::byte>(31 * from + 13 * to + 7 * static_cast<int>(i) + static_cast<int>(i >> 8U));
}

TEST(MpiGroup, SaysWhatItIs) {
  EXPECT_EQ(world().name(), "mpi");
  EXPECT_TRUE(world().ordered());
  EXPECT_FALSE(world().shares_memory());
  EXPECT_GE(world().size(), 1);
  EXPECT_THROW(world().lend(
                   {}, [](Lent) {}, "x"),
               Error);
}

TEST(MpiGroup, AllGatherIsInRankOrder) {
  for (const std::size_t bytes : {0U, 1U, 5U, 3800U, 4096U, 100'000U}) {
    std::vector<std::byte> mine(bytes);
    for (std::size_t i = 0; i < bytes; ++i) mine[i] = mark(world().rank(), 0, i);
    std::vector<std::byte> all(bytes * static_cast<std::size_t>(world().size()));
    world().all_gather(mine, all, "gather");
    for (int r = 0; r < world().size(); ++r)
      for (std::size_t i = 0; i < bytes; ++i)
        ASSERT_EQ(all[static_cast<std::size_t>(r) * bytes + i], mark(r, 0, i)) << r << " " << i;
    // In place: its own part is where it goes.
    std::vector<std::byte> again(all.size());
    const auto own = std::span(again).subspan(static_cast<std::size_t>(world().rank()) * bytes, bytes);
    std::ranges::copy(mine, own.begin());
    world().all_gather(own, again, "gather in place");
    EXPECT_EQ(again, all);
  }
}

// Blocks of all shapes and sizes, some empty, to every rank, from memory with other bytes in between.
TEST(MpiGroup, AllToAllSendsStridedBlocksAsTheyLie) {
  const int ranks = world().size();
  const auto shape = [&](int from, int to) {
    const std::int64_t planes = 1 + (from + to) % 3;
    const std::int64_t runs = (2 * from + to) % 5;  // 0: nothing
    const std::int64_t run = 1 + 37 * ((from + 3 * to) % 40);
    return tensor::StridedBytes{nullptr, planes, runs * (run + 9) + 11, runs, run + 9, run};
  };
  std::vector<std::vector<std::byte>> memory(static_cast<std::size_t>(ranks));
  std::vector<std::vector<std::byte>> got(memory.size());
  std::vector<tensor::StridedBytes> send;
  std::vector<std::span<std::byte>> received;
  for (int r = 0; r < ranks; ++r) {
    auto& block = memory[static_cast<std::size_t>(r)];
    tensor::StridedBytes b = shape(world().rank(), r);
    block.resize(static_cast<std::size_t>(b.planes * b.plane_stride));
    for (std::size_t i = 0; i < block.size(); ++i) block[i] = mark(world().rank(), r, i);
    b.base = block.data();
    send.push_back(b);
    auto& to = got[static_cast<std::size_t>(r)];
    to.resize(static_cast<std::size_t>(shape(r, world().rank()).packed_bytes()));
    received.emplace_back(to);
  }
  world().all_to_all(send, received, "exchange");
  for (int r = 0; r < ranks; ++r) {
    const tensor::StridedBytes b = shape(r, world().rank());
    std::size_t at = 0;
    for (std::int64_t p = 0; p < b.planes; ++p)
      for (std::int64_t u = 0; u < b.runs; ++u)
        for (std::int64_t i = 0; i < b.run_bytes; ++i)
          ASSERT_EQ(
              got[static_cast<std::size_t>(r)][at++],
              mark(r, world().rank(), static_cast<std::size_t>(p * b.plane_stride + u * b.run_stride + i)));
  }
}

// Values that tell orders and roundings apart: some cancel, some round, some are -0.0.
std::uint16_t term(int rank, std::size_t i) {
  std::uint64_t x = (static_cast<std::uint64_t>(rank + 1) << 32U) + i * 2'654'435'761U;
  x ^= x >> 33U;
  x *= 0xFF51AFD7ED558CCDU;
  x ^= x >> 29U;
  if (i % 97 == 0) return 0x8000;
  if (i % 5 == 0 && rank < 2) return numeric::f32_to_bf16(rank == 0 ? 0x1p24F : -0x1p24F);
  return static_cast<std::uint16_t>((x & 0x8FFFU) | 0x3000U);
}

std::uint16_t sum_of(int ranks, std::size_t i) {
  volatile float sum = 0.0F;
  for (int r = 0; r < ranks; ++r) sum = sum + numeric::bf16_to_f32(term(r, i));
  return numeric::f32_to_bf16(sum);
}

std::vector<std::uint16_t> terms(std::size_t count) {
  std::vector<std::uint16_t> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = term(world().rank(), i);
  return out;
}

// In the message, one-shot, two-shot, and two-shot in several rounds.
TEST(MpiGroup, AllReduceIsTheSumOverRanksBitForBit) {
  for (const std::size_t count : {0U, 1U, 1000U, 60'001U, 700'001U, 2'500'003U}) {
    auto mine = terms(count);
    std::vector<std::uint16_t> sum(count, 0xABCD);
    world().all_reduce_sum(mine, sum, "sum");
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(sum[i], sum_of(world().size(), i)) << count << " " << i;
    world().all_reduce_sum(mine, mine, "sum in place");
    EXPECT_EQ(mine, sum);
  }
}

TEST(MpiGroup, ReduceScatterGivesEachRankItsPart) {
  const auto ranks = static_cast<std::size_t>(world().size());
  for (const std::size_t part : {0U, 1U, 100U, 40'000U, 600'001U}) {
    const auto mine = terms(part * ranks);
    std::vector<std::uint16_t> got(part, 0xABCD);
    world().reduce_scatter_sum(mine, got, "part");
    for (std::size_t i = 0; i < part; ++i)
      ASSERT_EQ(got[i], sum_of(world().size(), part * static_cast<std::size_t>(world().rank()) + i)) << i;
  }
}

TEST(MpiGroup, NamedAllReducesHaveTheirOrders) {
  if (world().size() == 1) GTEST_SKIP() << "one rank";
  for (const std::string& name : all_reduce_names()) {
    const AllReduce& reduce = all_reduce(name);
    const AllReduceShape shape{world().size(), 5001};
    if (reduce.supports(shape)) continue;
    const auto mine = terms(5001);
    std::vector<std::uint16_t> sum(mine.size());
    std::vector<std::uint16_t> scratch(reduce.scratch_values(shape));
    reduce.run(world(), mine, sum, scratch, name);
    for (std::size_t i = 0; i < sum.size(); ++i)
      ASSERT_EQ(sum[i],
                numeric::sum_bf16(reduce.order(shape), world().size(), [&](int r) { return term(r, i); }));
  }
}

TEST(MpiGroup, SplitsIntoRowsAndColumnsThatKeepTheirNumbers) {
  const int ranks = world().size();
  const int tp = ranks % 2 == 0 ? 2 : 1;
  for (int round = 0; round < 3; ++round) {
    const Grid grid(world(), ranks / tp, tp);
    EXPECT_EQ(grid.row().size(), ranks / tp == 1 ? ranks : tp);
    if (grid.column() == nullptr) continue;
    EXPECT_EQ(grid.column()->rank(), world().rank() / tp);
    for (int r = 0; r < grid.column()->size(); ++r)
      EXPECT_EQ(grid.column()->number(r), r * tp + world().rank() % tp);
    const std::int32_t mine = world().rank();
    EXPECT_EQ(gathered(*grid.column(), std::span(&mine, 1), "column").back(),
              ranks - tp + world().rank() % tp);
    EXPECT_EQ(gathered(grid.row(), std::span(&mine, 1), "row").front(), world().rank() / tp * tp);
    EXPECT_EQ(all_max(world(), mine, "all"), ranks - 1);
  }
}

TEST(MpiGroup, ARefusalOfOneRankReachesAll) {
  const int last = world().size() - 1;
  const Verdict mine =
      world().rank() == last ? Verdict(Reason{ErrorKind::checkpoint, std::string(5000, 'x')}) : std::nullopt;
  const Verdict all = agree(world(), mine, "checking");
  ASSERT_TRUE(all);
  EXPECT_EQ(all->kind, ErrorKind::checkpoint);
  EXPECT_EQ(all->text, (last > 0 ? "rank " + std::to_string(last) + ": " : "") + std::string(5000, 'x'));
}

// A part's mismatch breaks that part alone, in the local group's words, on every rank of it.
TEST(MpiGroup, MismatchesAreRefusedOnAllRanks) {
  if (world().size() < 2) GTEST_SKIP() << "one rank";
  const int last = world().size() - 1;
  const std::string n = std::to_string(last);
  const auto refused = [&](const std::function<void(Group&)>& body) {
    const auto part = world().split(0, "a part");
    const Verdict first = attempt([&] { body(*part); });
    const Verdict second = attempt([&] { part->barrier("later"); });
    EXPECT_EQ(first, second);  // a fault is final
    return first ? *first : Reason{};
  };
  EXPECT_EQ(refused([&](Group& g) { g.barrier(g.rank() == last ? "b" : "a"); }),
            (Reason{ErrorKind::bug, "rank " + n + " is in barrier 'b' while rank 0 is in barrier 'a'"}));
  EXPECT_EQ(refused([&](Group& g) {
              std::vector<std::byte> mine(g.rank() == last ? 8 : 4);
              std::vector<std::byte> all(mine.size() * static_cast<std::size_t>(g.size()));
              g.all_gather(mine, all, "x");
            }),
            (Reason{ErrorKind::bug, "all-gather 'x': rank " + n + " brings 8 bytes, rank 0 4"}));
  EXPECT_EQ(
      refused([&](Group& g) {
        std::array<std::byte, 4> block{};
        std::vector<tensor::StridedBytes> send(static_cast<std::size_t>(g.size()),
                                               {block.data(), 1, 4, 1, 4, 4});
        if (g.rank() == last) send[0].run_bytes = 3;
        std::vector<std::byte> received(4 * send.size());
        all_to_all(g, send, received, "x");
      }),
      (Reason{ErrorKind::bug, "all-to-all 'x': rank " + n + " sends 3 bytes to rank 0, which wants 4"}));
  EXPECT_EQ(refused([&](Group& g) {
              std::vector<std::uint16_t> values(5);
              g.all_reduce_sum(std::span(values).first(4),
                               std::span(values).subspan(g.rank() == last ? 1 : 0, 4), "x");
            }),
            (Reason{ErrorKind::bug, "all-reduce 'x': rank " + n + " receives over what it sends"}));
  world().barrier("the whole group is sound");
}

TEST(MpiGroup, ManyCollectivesInARow) {
  for (int i = 0; i < 500; ++i) {
    const std::int32_t mine = 1000 * i + world().rank();
    const auto all = gathered(world(), std::span(&mine, 1), "round");
    for (int r = 0; r < world().size(); ++r) ASSERT_EQ(all[static_cast<std::size_t>(r)], 1000 * i + r);
    if (i % 7 == 0) world().barrier("round");
  }
}

TEST(MpiGroup, ASlowRankInTimeIsFine) {
  for (int r = 0; r < world().size(); ++r) {
    if (world().rank() == r) std::this_thread::sleep_for(std::chrono::milliseconds{50});
    world().barrier("slow");
  }
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
