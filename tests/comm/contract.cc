#include "tests/comm/contract.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kerf/comm/agree.h"
#include "kerf/comm/all_reduce.h"
#include "kerf/comm/facts.h"
#include "kerf/comm/grid.h"
#include "kerf/numeric/bf16.h"

namespace kerf::test {
namespace {

using namespace comm;

std::byte mark(int from, int to, std::size_t i) {
  return static_cast<std::byte>(31 * from + 13 * to + 7 * static_cast<int>(i) + static_cast<int>(i >> 8U));
}

void all_gather_is_in_rank_order(Group& world) {
  for (const std::size_t bytes : {0U, 1U, 5U, 3800U, 4096U, 100'000U}) {
    std::vector<std::byte> mine(bytes);
    for (std::size_t i = 0; i < bytes; ++i) mine[i] = mark(world.rank(), 0, i);
    std::vector<std::byte> all(bytes * static_cast<std::size_t>(world.size()));
    world.all_gather(mine, all, "gather");
    for (int r = 0; r < world.size(); ++r)
      for (std::size_t i = 0; i < bytes; ++i)
        ASSERT_EQ(all[static_cast<std::size_t>(r) * bytes + i], mark(r, 0, i)) << r << " " << i;
    // In place: its own part is where it goes.
    std::vector<std::byte> again(all.size());
    const auto own = std::span(again).subspan(static_cast<std::size_t>(world.rank()) * bytes, bytes);
    std::ranges::copy(mine, own.begin());
    world.all_gather(own, again, "gather in place");
    EXPECT_EQ(again, all);
  }
}

// Blocks of all shapes and sizes, some empty, to every rank, from memory with other bytes in between.
void all_to_all_sends_strided_blocks_as_they_lie(Group& world) {
  const int ranks = world.size();
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
    tensor::StridedBytes b = shape(world.rank(), r);
    block.resize(static_cast<std::size_t>(b.planes * b.plane_stride));
    for (std::size_t i = 0; i < block.size(); ++i) block[i] = mark(world.rank(), r, i);
    b.base = block.data();
    send.push_back(b);
    auto& to = got[static_cast<std::size_t>(r)];
    to.resize(static_cast<std::size_t>(shape(r, world.rank()).packed_bytes()));
    received.emplace_back(to);
  }
  world.all_to_all(send, received, "exchange");
  for (int r = 0; r < ranks; ++r) {
    const tensor::StridedBytes b = shape(r, world.rank());
    std::size_t at = 0;
    for (std::int64_t p = 0; p < b.planes; ++p)
      for (std::int64_t u = 0; u < b.runs; ++u)
        for (std::int64_t i = 0; i < b.run_bytes; ++i)
          ASSERT_EQ(
              got[static_cast<std::size_t>(r)][at++],
              mark(r, world.rank(), static_cast<std::size_t>(p * b.plane_stride + u * b.run_stride + i)));
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

// A group whose sums have no order is near: each of at most `ranks` additions and roundings is off by half a
// unit in the last of bf16's 8 places, of at most the sum of all magnitudes.
bool is_sum(const Group& world, std::uint16_t got, std::size_t i) {
  if (world.ordered()) return got == sum_of(world.size(), i);
  double sum = 0;
  double magnitudes = 0;
  for (int r = 0; r < world.size(); ++r) {
    const double t = numeric::bf16_to_f32(term(r, i));
    sum += t;
    magnitudes += std::abs(t);
  }
  return std::abs(numeric::bf16_to_f32(got) - sum) <= world.size() * magnitudes * 0x1p-8;
}

std::vector<std::uint16_t> terms(const Group& world, std::size_t count) {
  std::vector<std::uint16_t> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = term(world.rank(), i);
  return out;
}

// Where the group promises bits. In the message, one-shot, two-shot, and two-shot in several rounds.
void all_reduce_is_the_sum_over_ranks_bit_for_bit(Group& world) {
  for (const std::size_t count : {0U, 1U, 1000U, 60'001U, 700'001U, 2'500'003U}) {
    auto mine = terms(world, count);
    std::vector<std::uint16_t> sum(count, 0xABCD);
    world.all_reduce_sum(mine, sum, "sum");
    for (std::size_t i = 0; i < count; ++i) ASSERT_TRUE(is_sum(world, sum[i], i)) << count << " " << i;
    world.all_reduce_sum(mine, mine, "sum in place");
    EXPECT_EQ(mine, sum);
  }
}

void reduce_scatter_gives_each_rank_its_part(Group& world) {
  const auto ranks = static_cast<std::size_t>(world.size());
  for (const std::size_t part : {0U, 1U, 100U, 40'000U, 600'001U}) {
    const auto mine = terms(world, part * ranks);
    std::vector<std::uint16_t> got(part, 0xABCD);
    world.reduce_scatter_sum(mine, got, "part");
    for (std::size_t i = 0; i < part; ++i)
      ASSERT_TRUE(is_sum(world, got[i], part * static_cast<std::size_t>(world.rank()) + i)) << i;
  }
}

void named_all_reduces_have_their_orders(Group& world) {
  if (world.size() == 1) return;
  for (const std::string& name : all_reduce_names()) {
    const AllReduce& reduce = all_reduce(name);
    const AllReduceShape shape{world.size(), 5001};
    if (reduce.supports(shape)) continue;
    const auto mine = terms(world, 5001);
    std::vector<std::uint16_t> sum(mine.size());
    std::vector<std::uint16_t> scratch(reduce.scratch_values(shape));
    reduce.run(world, mine, sum, scratch, name);
    for (std::size_t i = 0; i < sum.size(); ++i)
      ASSERT_EQ(sum[i],
                numeric::sum_bf16(reduce.order(shape), world.size(), [&](int r) { return term(r, i); }));
  }
}

void splits_into_rows_and_columns_that_keep_their_numbers(Group& world) {
  const int ranks = world.size();
  const int tp = ranks % 2 == 0 ? 2 : 1;
  for (int round = 0; round < 3; ++round) {
    const Grid grid(world, ranks / tp, tp);
    EXPECT_EQ(grid.row().size(), ranks / tp == 1 ? ranks : tp);
    if (grid.column() == nullptr) continue;
    EXPECT_EQ(grid.column()->rank(), world.rank() / tp);
    for (int r = 0; r < grid.column()->size(); ++r)
      EXPECT_EQ(grid.column()->number(r), r * tp + world.rank() % tp);
    const std::int32_t mine = world.rank();
    EXPECT_EQ(gathered(*grid.column(), std::span(&mine, 1), "column").back(), ranks - tp + world.rank() % tp);
    EXPECT_EQ(gathered(grid.row(), std::span(&mine, 1), "row").front(), world.rank() / tp * tp);
    EXPECT_EQ(all_max(world, mine, "all"), ranks - 1);
  }
}

void a_refusal_of_one_rank_reaches_all(Group& world) {
  const int last = world.size() - 1;
  const Verdict mine =
      world.rank() == last ? Verdict(Reason{ErrorKind::checkpoint, std::string(5000, 'x')}) : std::nullopt;
  const Verdict all = agree(world, mine, "checking");
  ASSERT_TRUE(all);
  EXPECT_EQ(all->kind, ErrorKind::checkpoint);
  EXPECT_EQ(all->text, (last > 0 ? "rank " + std::to_string(last) + ": " : "") + std::string(5000, 'x'));
}

// A part's mismatch breaks that part alone, in the local group's words, on every rank of it.
void mismatches_are_refused_on_all_ranks(Group& world) {
  if (world.size() < 2) return;
  const int last = world.size() - 1;
  const std::string n = std::to_string(last);
  const auto refused = [&](const std::function<void(Group&)>& body) {
    const auto part = world.split(0, "a part");
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
  world.barrier("the whole group is sound");
}

void many_collectives_in_a_row(Group& world) {
  for (int i = 0; i < 500; ++i) {
    const std::int32_t mine = 1000 * i + world.rank();
    const auto all = gathered(world, std::span(&mine, 1), "round");
    for (int r = 0; r < world.size(); ++r) ASSERT_EQ(all[static_cast<std::size_t>(r)], 1000 * i + r);
    if (i % 7 == 0) world.barrier("round");
  }
}

void a_slow_rank_in_time_is_fine(Group& world) {
  for (int r = 0; r < world.size(); ++r) {
    if (world.rank() == r) std::this_thread::sleep_for(std::chrono::milliseconds{50});
    world.barrier("slow");
  }
}

// A fact that differs on the last rank, by a name of any length.
void facts_that_differ_are_told(Group& world) {
  const int last = world.size() - 1;
  for (const std::size_t length : {1U, 100U, 5000U, 70'000U}) {
    const std::string name(length, 'n');
    const auto mine = [&](const std::string& odd) {
      return compare_facts(world, "facts", [&] {
        return Facts{{"same", std::string(length, 's'), ErrorKind::bug},
                     {name, world.rank() == last ? odd : "even", ErrorKind::checkpoint}};
      });
    };
    EXPECT_FALSE(mine("even"));
    const Verdict v = mine("odd");
    if (last == 0) {
      EXPECT_FALSE(v);
      continue;
    }
    const std::string sides =
        last == 1 ? "rank 0: even, rank 1: odd" : "rank " + std::to_string(last) + ": odd, others: even";
    EXPECT_EQ(v, (Reason{ErrorKind::checkpoint, "the ranks do not start alike: " + name + ": " + sides}));
  }
}

// Texts of any lengths, none among them.
void texts_come_in_rank_order(Group& world) {
  for (const std::size_t most : {0U, 1U, 4000U, 100'000U}) {
    const auto text = [&](int rank) {
      return std::string(most * static_cast<std::size_t>(rank) / 7, static_cast<char>('a' + rank % 26));
    };
    const auto all = gather_text(world, text(world.rank()), "texts");
    ASSERT_EQ(std::ssize(all), world.size());
    for (int r = 0; r < world.size(); ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], text(r));
  }
}

constexpr std::array kContracts = {
    Contract{"AllGatherIsInRankOrder", all_gather_is_in_rank_order},
    Contract{"AllToAllSendsStridedBlocksAsTheyLie", all_to_all_sends_strided_blocks_as_they_lie},
    Contract{"AllReduceIsTheSumOverRanksBitForBit", all_reduce_is_the_sum_over_ranks_bit_for_bit},
    Contract{"ReduceScatterGivesEachRankItsPart", reduce_scatter_gives_each_rank_its_part},
    Contract{"NamedAllReducesHaveTheirOrders", named_all_reduces_have_their_orders},
    Contract{"SplitsIntoRowsAndColumnsThatKeepTheirNumbers",
             splits_into_rows_and_columns_that_keep_their_numbers},
    Contract{"ARefusalOfOneRankReachesAll", a_refusal_of_one_rank_reaches_all},
    Contract{"MismatchesAreRefusedOnAllRanks", mismatches_are_refused_on_all_ranks},
    Contract{"ManyCollectivesInARow", many_collectives_in_a_row},
    Contract{"ASlowRankInTimeIsFine", a_slow_rank_in_time_is_fine},
    Contract{"FactsThatDifferAreTold", facts_that_differ_are_told},
    Contract{"TextsComeInRankOrder", texts_come_in_rank_order},
};

}  // namespace

std::span<const Contract> contracts() { return kContracts; }

}  // namespace kerf::test
