// The tails: golden vectors, and both collective tails bit for bit against a plain statement of the rules.
#include "kerf/tail/tail.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/comm/local.h"
#include "tests/support/count_allocations.h"
#include "tests/support/npy.h"
#include "tests/tail/cases.h"

namespace kerf::tail {
namespace {

using test::all_norms;
using test::make_ranks;
using test::Placed;
using test::plain_tail;
using test::RankRows;
using test::Rows;

TEST(Finalize, GoldenF32Weights) {
  const RankRows rows{6,
                      4,
                      64,
                      test::golden<std::uint16_t>("final_rows"),
                      test::golden<float>("final_w_f32"),
                      test::golden<std::int32_t>("final_e2p")};
  tensor::HostMemory memory;
  for (const int threads : {1, 2, 5}) {
    const Scratch scratch(memory, {6, 4, 64, 1, threads, 1, {}});
    Rows out(6 * 64, 0xABCD);
    finalize(rows.view(), std::nullopt, Workers(threads), scratch, out);
    EXPECT_EQ(out, test::golden<std::uint16_t>("final_out_f32w"));
  }
}

TEST(Finalize, GoldenBf16Weights) {
  std::vector<float> weights;
  for (const std::uint16_t w : test::golden<std::uint16_t>("final_w_bf16")) weights.push_back(test::f32(w));
  const RankRows rows{
      6, 4, 64, test::golden<std::uint16_t>("final_rows"), weights, test::golden<std::int32_t>("final_e2p")};
  tensor::HostMemory memory;
  const Scratch scratch(memory, {6, 4, 64, 1, 1, 1, {}});
  Rows out(6 * 64, 0xABCD);
  finalize(rows.view(), std::nullopt, Workers(1), scratch, out);
  EXPECT_EQ(out, test::golden<std::uint16_t>("final_out_bf16w"));
}

// The tiny op's golden rows through the tail: all experts here, and experts 2 and 3 alone.
TEST(Finalize, GoldenOpOutputs) {
  const auto rows = test::golden<std::uint16_t>("op_rows_bf16");  // [10, 256], route order
  const auto ids = test::golden<std::int32_t>("op_ids");
  const auto weights = test::golden<float>("op_weights");
  tensor::HostMemory memory;
  const Workers workers(2);
  const Scratch scratch(memory, {5, 2, 256, 1, workers.size(), 1, {}});
  for (const auto& [name, first] : {std::pair{"op_out_tiny_op", 0}, std::pair{"op_out_tiny_op_ep", 2}}) {
    std::vector<std::int32_t> map;
    for (std::size_t r = 0; r < ids.size(); ++r)
      map.push_back(ids[r] >= first ? static_cast<std::int32_t>(r) : -1);
    std::vector<std::uint16_t> out(5 * 256);
    finalize({5, 2, 256, rows, weights, map}, std::nullopt, workers, scratch, out);
    EXPECT_EQ(out, test::golden<std::uint16_t>(name)) << name;
  }
}

TEST(Finalize, PlainBitsAtAnyThreadCount) {
  tensor::HostMemory memory;
  for (const std::int64_t hidden : {64, 320})
    for (const std::int64_t tokens : {0, 1, 7})
      for (const auto& norm : all_norms(hidden)) {
        const auto weights = test::make_weights(static_cast<std::size_t>(tokens * 3), 4);
        const auto rows =
            test::make_rows(tokens, 3, hidden, weights, 5, [](std::size_t i) { return i % 5 != 2; });
        Rows want;
        for (std::int64_t t = 0; t < tokens; ++t) {
          const auto at = static_cast<std::size_t>(3 * t);
          const auto token =
              test::plain_token({rows.row(at), rows.row(at + 1), rows.row(at + 2)},
                                std::span(weights).subspan(at, 3), static_cast<std::size_t>(hidden), norm);
          want.insert(want.end(), token.begin(), token.end());
        }
        for (const int threads : {1, 2, 3, 8}) {
          const Scratch scratch(memory, {tokens, 3, hidden, 1, threads, 1, {}});
          Rows out(want.size(), 0xABCD);
          finalize(rows.view(), norm, Workers(threads), scratch, out);
          EXPECT_EQ(out, want);
        }
      }
}

TEST(Finalize, ATokenWithoutRoutesIsPlusZero) {
  const auto rows = test::make_rows(2, 2, 64, {1, 1, 1, 1}, 3, [](std::size_t i) { return i >= 2; });
  tensor::HostMemory memory;
  const Scratch scratch(memory, {2, 2, 64, 1, 1, 1, {}});
  Rows out(2 * 64, 0xABCD);
  finalize(rows.view(), std::nullopt, Workers(1), scratch, out);
  EXPECT_TRUE(std::all_of(out.begin(), out.begin() + 64, [](std::uint16_t v) { return v == 0; }));
  EXPECT_TRUE(std::any_of(out.begin() + 64, out.end(), [](std::uint16_t v) { return v != 0; }));
}

void run_tail(Placed kind, const RankRows& rows, const std::optional<RouteNorm>& norm, comm::Group& group,
              const Workers& workers, const Scratch& scratch, Rows& out) {
  if (kind == Placed::ep)
    ep_tail(rows.view(), norm, group, workers, scratch, out);
  else
    tp_tail(rows.view(), norm, group, workers, scratch, out);
}

// Every rank's output.
std::vector<Rows> run_ranks(Placed kind, const std::vector<RankRows>& ranks,
                            const std::optional<RouteNorm>& norm, int threads = 1,
                            std::int64_t extra_tokens = 0) {
  std::vector<Rows> outs(ranks.size());
  comm::run_local(static_cast<int>(ranks.size()), {}, [&](comm::Group& group) {
    const auto me = static_cast<std::size_t>(group.rank());
    const RankRows& rows = ranks[me];
    tensor::HostMemory memory;
    const Scratch scratch(
        memory, {rows.tokens + extra_tokens, rows.top_k, rows.hidden, group.size(), threads, 1, {}});
    for (const auto& tensor : {&scratch.rows, &scratch.reduced, &scratch.partial, &scratch.values})
      std::fill(tensor->bytes().begin(), tensor->bytes().end(), std::byte{0xFF});  // NaN in every type
    outs[me].assign(static_cast<std::size_t>(rows.tokens * rows.hidden), 0xABCD);
    run_tail(kind, rows, norm, group, Workers(threads), scratch, outs[me]);
  });
  return outs;
}

// A rank that only notices once tokens are on their way would leave the others waiting for it.
TEST(TpTail, AScratchThatIsTooSmallIsFoundBeforeAnythingIsSent) {
  const auto all = make_ranks(Placed::tp, 2, 3, 2, 64);
  for (const bool partial : {true, false}) {
    std::optional<Error> waiting;
    const Verdict v = attempt([&] {
      comm::run_local(2, {}, [&](comm::Group& group) {
        const bool small = group.rank() == 1;
        tensor::HostMemory memory;
        Scratch scratch(memory, {3, 2, 64, 2, small && !partial ? 1 : 2, 1, {}});
        if (small && partial) scratch.partial = {};
        Rows out(3 * 64);
        try {
          tp_tail(all[static_cast<std::size_t>(group.rank())].view(), std::nullopt, group, Workers(2),
                  scratch, out, RowSum::reduce_scatter);
        } catch (const comm::GroupFailed& e) {
          waiting = e;
          throw;
        }
      });
    });
    ASSERT_TRUE(v);
    EXPECT_EQ(v->kind, ErrorKind::bug);
    EXPECT_NE(v->text.find(partial ? "scratch partial" : "scratch values"), std::string::npos) << v->text;
    ASSERT_TRUE(waiting);
    EXPECT_NE(std::string(waiting->what()).find("TP tail: sum of rows"), std::string::npos)
        << waiting->what();
  }
}

class Tails : public testing::TestWithParam<Placed> {};
INSTANTIATE_TEST_SUITE_P(Both, Tails, testing::Values(Placed::ep, Placed::tp),
                         [](const auto& made) { return made.param == Placed::ep ? "ep" : "tp"; });

TEST_P(Tails, PlainBitsOnEveryRank) {
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8})
    for (const std::int64_t tokens : {0, 1, 3, 8})
      for (const std::int64_t top_k : {1, 3}) {
        const std::int64_t hidden = 72;
        const auto rows = make_ranks(GetParam(), ranks, tokens, top_k, hidden);
        for (const auto& norm : all_norms(hidden)) {
          const Rows want = plain_tail(GetParam(), rows, norm);
          for (const Rows& out : run_ranks(GetParam(), rows, norm, 1, tokens == 3 ? 9 : 0))
            ASSERT_EQ(out, want) << ranks << " ranks, " << tokens << " tokens, top " << top_k;
        }
      }
}

TEST_P(Tails, WideRowsAtAnyThreadCount) {
  const std::int64_t hidden = 640;
  const auto rows = make_ranks(GetParam(), 2, 6, 4, hidden);
  for (const auto& norm : all_norms(hidden)) {
    const Rows want = plain_tail(GetParam(), rows, norm);
    for (const int threads : {1, 2, 4})
      for (const Rows& out : run_ranks(GetParam(), rows, norm, threads)) ASSERT_EQ(out, want);
  }
}

TEST_P(Tails, NanStaysInItsToken) {
  const std::int64_t hidden = 72;
  for (const int ranks : {1, 2, 4}) {
    auto rows = make_ranks(GetParam(), ranks, 5, 2, hidden);
    const auto norm = all_norms(hidden)[2];
    const Rows clean = run_ranks(GetParam(), rows, norm)[0];
    // Token 3, route 0, on a rank that has it.
    for (RankRows& rank : rows)
      if (rank.map[6] >= 0) {
        rank.rows[static_cast<std::size_t>(rank.map[6] * hidden + 11)] = 0xFFFF;
        break;
      }
    for (const Rows& out : run_ranks(GetParam(), rows, norm))
      for (std::size_t i = 0; i < out.size(); ++i)
        ASSERT_EQ(out[i], i / hidden == 3 ? numeric::bf16_nan : clean[i]) << i;
  }
}

TEST_P(Tails, NoRoutesGivePlusZero) {
  for (const int ranks : {1, 2, 4}) {
    std::vector<RankRows> rows;
    for (int r = 0; r < ranks; ++r)
      rows.push_back(
          test::make_rows(3, 2, 64, std::vector<float>(6, -1.0F), 3, [](std::size_t) { return false; }));
    for (const auto& norm : all_norms(64))
      for (const Rows& out : run_ranks(GetParam(), rows, norm)) EXPECT_EQ(out, Rows(3 * 64, 0));
  }
}

TEST_P(Tails, NegativeZerosAndTinySums) {
  // Rows of -0.0 sum to +0.0 on any number of ranks; so does a partial that underflows to -0.0 in bf16 on EP.
  for (const int ranks : {1, 2, 3}) {
    std::vector<RankRows> rows;
    for (int r = 0; r < ranks; ++r) {
      rows.push_back(test::make_rows(1, 1, 64, {0.25F}, 3, [](std::size_t) { return true; }));
      for (std::int64_t h = 0; h < 64; ++h)
        rows.back().rows[static_cast<std::size_t>(rows.back().map[0] * 64 + h)] =
            h % 2 == 0 ? 0x8000 : 0x8001;
    }
    const Rows want = plain_tail(GetParam(), rows, std::nullopt);
    for (const Rows& out : run_ranks(GetParam(), rows, std::nullopt)) {
      EXPECT_EQ(out, want);
      for (std::size_t h = 0; h < 64; h += 2) EXPECT_EQ(out[h], 0);
    }
    if (GetParam() == Placed::ep) {
      EXPECT_EQ(want[1], 0) << "0.25 * 2^-133 is below half of bf16's least";
    }
  }
}

TEST_P(Tails, NothingIsAllocated) {
  const std::int64_t hidden = 320;
  const auto rows = make_ranks(GetParam(), 3, 4, 2, hidden);
  const auto norm = all_norms(hidden)[2];
  std::atomic<std::int64_t> seen{0};
  comm::run_local(3, {}, [&](comm::Group& group) {
    const RankRows& mine = rows[static_cast<std::size_t>(group.rank())];
    tensor::HostMemory memory;
    const Workers workers(1);
    const Scratch scratch(memory, {4, 2, hidden, 3, 1, 1, {}});
    Rows out(static_cast<std::size_t>(4 * hidden));
    run_tail(GetParam(), mine, norm, group, workers, scratch, out);
    const std::int64_t before = test::allocations;
    for (int i = 0; i < 3; ++i) run_tail(GetParam(), mine, norm, group, workers, scratch, out);
    seen += test::allocations - before;
  });
  EXPECT_EQ(seen.load(), 0);
}

TEST_P(Tails, WrongSizesAreBugs) {
  tensor::HostMemory memory;
  const auto good =
      test::make_rows(3, 2, 64, std::vector<float>(6, 1.0F), 3, [](std::size_t) { return true; });
  const auto refusal = [&](const RankRows& rows, const std::optional<RouteNorm>& norm, std::size_t out_size,
                           std::int64_t scratch_tokens, int scratch_workers) {
    return attempt([&] {
      comm::run_local(1, {}, [&](comm::Group& group) {
        const Scratch scratch(memory, {scratch_tokens, 2, 64, 1, scratch_workers, 1, {}});
        Rows out(out_size);
        run_tail(GetParam(), rows, norm, group, Workers(2), scratch, out);
      });
    });
  };
  EXPECT_EQ(refusal(good, std::nullopt, 192, 3, 2), std::nullopt);
  RankRows outside = good;
  outside.map[4] = 15;  // rows 0 to 14 are there
  RankRows below = good;
  below.map[4] = -2;
  RankRows few = good;
  few.weights.pop_back();
  for (const Verdict& verdict :
       {refusal(good, std::nullopt, 191, 3, 2), refusal(good, std::nullopt, 192, 2, 2),
        refusal(good, std::nullopt, 192, 3, 1), refusal(good, RouteNorm{Rows(63), true, 1e-8F}, 192, 3, 2),
        refusal(outside, std::nullopt, 192, 3, 2), refusal(below, std::nullopt, 192, 3, 2),
        refusal(few, std::nullopt, 192, 3, 2)}) {
    ASSERT_TRUE(verdict);
    EXPECT_EQ(verdict->kind, ErrorKind::bug);
  }
}

}  // namespace
}  // namespace kerf::tail
