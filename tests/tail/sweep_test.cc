// Both fast tails over many sizes, on up to 16 ranks: bit for bit against the plain rules, which the three
// ways of adding TP rows share; and near f64, within a bound that is derived here.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "kerf/comm/local.h"
#include "tests/tail/cases.h"

namespace kerf::tail {
namespace {

using test::all_norms;
using test::f32;
using test::Placed;
using test::RankRows;
using test::Rows;

struct Case {
  std::int64_t tokens, top_k, hidden;
  std::optional<RouteNorm> norm;
  std::vector<RankRows> ranks;
};

enum class Tail { ep, tp_all_reduce, tp_reduce_scatter, tp_in_place };
constexpr std::array<Tail, 4> tails = {Tail::ep, Tail::tp_all_reduce, Tail::tp_reduce_scatter,
                                       Tail::tp_in_place};

Placed placed(Tail tail) { return tail == Tail::ep ? Placed::ep : Placed::tp; }

// out[case][rank]
std::vector<std::vector<Rows>> run(Tail tail, int ranks, const std::vector<Case>& cases, int threads = 1) {
  std::vector<std::vector<Rows>> out(cases.size(), std::vector<Rows>(static_cast<std::size_t>(ranks)));
  const RowSum way = tail == Tail::tp_all_reduce       ? RowSum::all_reduce
                     : tail == Tail::tp_reduce_scatter ? RowSum::reduce_scatter
                                                       : RowSum::in_place;
  comm::run_local(ranks, {}, [&](comm::Group& group) {
    const auto me = static_cast<std::size_t>(group.rank());
    const Workers workers(threads);
    for (std::size_t c = 0; c < cases.size(); ++c) {
      const RankRows& rows = cases[c].ranks[me];
      tensor::HostMemory memory;
      const Scratch scratch(memory,
                            {rows.tokens, rows.top_k, rows.hidden, ranks, threads, 1, {Kind::fast, way}});
      EXPECT_EQ(memory.current(),
                scratch_bytes({rows.tokens, rows.top_k, rows.hidden, ranks, threads, 1, {Kind::fast, way}}));
      for (const auto* tensor : {&scratch.rows, &scratch.reduced, &scratch.partial, &scratch.values})
        std::fill(tensor->bytes().begin(), tensor->bytes().end(), std::byte{0xFF});
      Rows& mine = out[c][me];
      mine.assign(static_cast<std::size_t>(rows.tokens * rows.hidden), 0xABCD);
      if (tail == Tail::ep)
        ep_tail(rows.view(), cases[c].norm, group, workers, scratch, mine);
      else
        tp_tail(rows.view(), cases[c].norm, group, workers, scratch, mine, way);
    }
  });
  return out;
}

std::vector<Rows> first_case(std::vector<std::vector<Rows>> outs) { return std::move(outs[0]); }

// T from 0 to 64 with K from 1 to 16, each norm again and again; and every K with every norm where tokens are
// few.
std::vector<Case> sweep(Placed placed, int ranks) {
  std::vector<Case> cases;
  const auto add = [&](std::int64_t t, std::int64_t k, std::size_t norm, std::int64_t hidden) {
    cases.push_back({t, k, hidden, all_norms(hidden)[norm], test::make_ranks(placed, ranks, t, k, hidden)});
  };
  for (std::int64_t t = 0; t <= 64; ++t) add(t, 1 + (5 * t + 3) % 16, static_cast<std::size_t>(t % 6), 24);
  for (std::int64_t k = 1; k <= 16; ++k)
    for (std::size_t norm = 0; norm < 6; ++norm) add(1 + k % 5, k, norm, 24);
  for (std::size_t norm = 0; norm < 6; ++norm) add(3, 2, norm, 300);
  return cases;
}

class EveryTail : public testing::TestWithParam<Tail> {};
constexpr std::array<const char*, 4> names = {"ep", "tp_all_reduce", "tp_reduce_scatter", "tp_in_place"};
INSTANTIATE_TEST_SUITE_P(Fast, EveryTail, testing::ValuesIn(tails),
                         [](const auto& made) { return names[static_cast<std::size_t>(made.param)]; });

// The oracle does not know which way TP rows are added, so both have its bits, on every rank.
TEST_P(EveryTail, PlainBitsOverTokensRanksAndTopK) {
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
    const std::vector<Case> cases = sweep(placed(GetParam()), ranks);
    const auto outs = run(GetParam(), ranks, cases);
    for (std::size_t c = 0; c < cases.size(); ++c) {
      const Rows want = test::plain_tail(placed(GetParam()), cases[c].ranks, cases[c].norm);
      for (const Rows& out : outs[c])
        ASSERT_EQ(out, want) << ranks << " ranks, " << cases[c].tokens << " tokens, top " << cases[c].top_k
                             << ", case " << c;
    }
  }
}

// Sets every value of route `route` on the ranks that have it: the first gets `value`, others +0.
void set_route(std::vector<RankRows>& ranks, std::size_t route, std::uint16_t value) {
  bool first = true;
  for (RankRows& rank : ranks) {
    if (rank.map[route] < 0) continue;
    for (std::int64_t h = 0; h < rank.hidden; ++h) {
      const auto sign = static_cast<std::uint16_t>(h % 3 == 0 ? 0x8000 : 0);
      rank.rows[static_cast<std::size_t>(rank.map[route] * rank.hidden + h)] =
          first ? static_cast<std::uint16_t>(value ^ sign) : std::uint16_t{0};
    }
    first = false;
  }
}

TEST_P(EveryTail, RowsOfZerosHugeOnesAndNan) {
  constexpr std::int64_t hidden = 72;
  for (const int ranks : {1, 2, 4, 8})
    for (const std::int64_t tokens : {4, 9})
      for (const auto& norm : all_norms(hidden)) {
        // A gain before the norm, up to 1.375 here, must leave it below infinity.
        const bool grows = norm && norm->gain_before_norm && !norm->gain.empty();
        const std::uint16_t huge = test::bf16(grows ? 2.4e38F : 3e38F);
        const std::vector<float> weights(static_cast<std::size_t>(tokens), 0.5F);
        std::vector<RankRows> rows;
        for (int r = 0; r < ranks; ++r)
          rows.push_back(
              test::make_rows(tokens, 1, hidden, weights, static_cast<unsigned>(r), [&](std::size_t i) {
                return placed(GetParam()) == Placed::tp || static_cast<int>(i) % ranks == r;
              }));
        const Case clean{tokens, 1, hidden, norm, rows};
        Case spoilt = clean;
        set_route(spoilt.ranks, 0, 0);
        set_route(spoilt.ranks, 1, huge);
        set_route(spoilt.ranks, 2, numeric::bf16_nan);
        const auto outs = run(GetParam(), ranks, {clean, spoilt});
        const Rows want = test::plain_tail(placed(GetParam()), spoilt.ranks, norm);
        for (const Rows& out : outs[1]) {
          ASSERT_EQ(out, want);
          for (std::size_t i = 0; i < out.size(); ++i) {
            const std::size_t h = i % hidden;
            const float sign = h % 3 == 0 ? -1.0F : 1.0F;
            if (i / hidden == 0) {
              ASSERT_EQ(out[i] & 0x7FFF, 0) << "a row of zeros stays zero";
            } else if (i / hidden == 2) {
              ASSERT_EQ(out[i], numeric::bf16_nan);
            } else if (i / hidden > 2) {
              ASSERT_EQ(out[i], outs[0][0][i]) << "another token's rows do not matter";
            } else if (!norm) {
              ASSERT_EQ(out[i], test::bf16(sign * 0.5F * f32(huge)));
            } else if (norm->gain.empty()) {
              ASSERT_NEAR(f32(out[i]), sign * 0.5F, 0x1p-8) << "the squares of 3e38 did not overflow";
            } else {
              ASSERT_TRUE(std::isfinite(f32(out[i])));
            }
          }
        }
      }
}

// Two ranks' rows that are each far from zero and nearly cancel: the norm sees their sum, not the parts. Rank
// 0 has 1 + 2^-6 and rank 1 -1, so that the row is 2^-6 throughout, and normed it is 1.
TEST(TpTail, PartialsAreAddedBeforeTheNorm) {
  constexpr std::int64_t hidden = 64;
  std::vector<RankRows> rows;
  for (int r = 0; r < 2; ++r) {
    rows.push_back(test::make_rows(1, 1, hidden, {1.0F}, 1, [](std::size_t) { return true; }));
    std::fill_n(rows.back().rows.begin() + rows.back().map[0] * hidden, hidden,
                test::bf16(r == 0 ? 1.015625F : -1.0F));
  }
  for (const Tail tail : {Tail::tp_all_reduce, Tail::tp_reduce_scatter, Tail::tp_in_place})
    for (const Rows& out : first_case(run(tail, 2, {{1, 1, hidden, RouteNorm{{}, true, 0.0F}, rows}})))
      EXPECT_EQ(out, Rows(hidden, 0x3F80));
}

// Error of an output against f64, u = 2^-8 (one rounding to bf16), v = 2^-24 (to f32), n ranks.
//
// A row r of a route is the sum of its partials p_s. TP: f32 sums, then one rounding, so what the norm is
// given is off by at most d |r_h| + a_h with d = u and a_h = n v (1 + u) sum_s |p_s,h|; EP: d = 0, a = 0. A
// gain before the norm scales both and rounds once more: d becomes d + u + d u. Norm: the root mean square
// with eps is the length of a vector, so it moves no further than that vector does: m' is within d m + rms(a)
// of m. With y = t / m:
//   |y'_h - y_h| <= (2 d |y_h| + a_h / m + |y_h| rms(a) / m) / (1 - d - rms(a) / m)
// and the norm's own f32 arithmetic adds (n_256 + 18) v |y'_h| (norm_test.cc: (ceil(H/256) + 10) / 2 + 4).
// Sum: each term is weighted by |w_k|, and fma over K terms adds K v of the sum of magnitudes; each rank's
// partial output is rounded (EP: u of it, at most u times the sum of magnitudes), and so is the last sum.
struct Bound {
  double value = 0;
  double error = 0;
};

struct Errors {
  double rank_sum;  // of the sum over ranks, in units of sum |p|
  double row;       // d of a finished row
  double partial;   // of partial outputs, in units of the sum of magnitudes
};

std::vector<Bound> in_f64(const Case& c, std::size_t token, const Errors& e) {
  constexpr double u = 0x1p-8;
  constexpr double v = 0x1p-24;
  const auto hidden = static_cast<std::size_t>(c.hidden);
  const auto top_k = static_cast<std::size_t>(c.top_k);
  const auto width = static_cast<double>(c.hidden);
  std::vector<Bound> out(hidden);
  std::vector<double> magnitude(hidden);
  for (std::size_t k = 0; k < top_k; ++k) {
    const std::size_t route = token * top_k + k;
    std::vector<double> y(hidden);
    std::vector<double> a(hidden);
    bool here = false;
    for (const RankRows& rank : c.ranks) {
      if (rank.row(route) == nullptr) continue;
      here = true;
      for (std::size_t h = 0; h < hidden; ++h) {
        y[h] += f32(rank.row(route)[h]);
        a[h] += e.rank_sum * std::abs(f32(rank.row(route)[h]));
      }
    }
    if (!here) continue;
    double d = e.row;
    double after = 0;
    if (c.norm) {
      const bool gain = !c.norm->gain.empty();
      if (gain && c.norm->gain_before_norm) {
        d += u + d * u;
        for (std::size_t h = 0; h < hidden; ++h) {
          y[h] *= f32(c.norm->gain[h]);
          a[h] *= std::abs(f32(c.norm->gain[h])) * (1 + u);
        }
      }
      double squares = 0;
      double a_squares = 0;
      for (std::size_t h = 0; h < hidden; ++h) {
        squares += y[h] * y[h];
        a_squares += a[h] * a[h];
      }
      const double m = std::sqrt(squares / width + static_cast<double>(c.norm->eps));
      const double rms = std::sqrt(a_squares / width) / m;
      after = ((std::ceil(width / 256) + 10) / 2 + 4) * v * 1.001;
      for (std::size_t h = 0; h < hidden; ++h) {
        y[h] /= m;
        a[h] = (a[h] / m + std::abs(y[h]) * (rms + 2 * d)) / (1 - d - rms);
        if (gain && !c.norm->gain_before_norm) {
          y[h] *= f32(c.norm->gain[h]);
          a[h] *= std::abs(f32(c.norm->gain[h]));
        }
      }
      d = 0;  // contained in a
    }
    const double w = c.ranks[0].weights[route];
    for (std::size_t h = 0; h < hidden; ++h) {
      const double error = d * std::abs(y[h]) + a[h];
      out[h].value += w * y[h];
      out[h].error += std::abs(w) * (error + after * (std::abs(y[h]) + error));
      magnitude[h] += std::abs(w) * (std::abs(y[h]) + error);
    }
  }
  for (std::size_t h = 0; h < hidden; ++h) {
    out[h].error += magnitude[h] * (static_cast<double>(c.top_k) * v * 1.001 + e.partial);
    out[h].error += u * (std::abs(out[h].value) + out[h].error);
  }
  return out;
}

TEST_P(EveryTail, IsNearFloat64) {
  constexpr double u = 0x1p-8;
  constexpr double v = 0x1p-24;
  double closest = 0;  // how much of the bound was used
  for (const int ranks : {1, 2, 5, 8}) {
    std::vector<Case> cases;
    for (const std::int64_t tokens : {2, 11})
      for (const std::int64_t top_k : {1, 4, 16})
        for (const auto& norm : all_norms(320))
          cases.push_back(
              {tokens, top_k, 320, norm, test::make_ranks(placed(GetParam()), ranks, tokens, top_k, 320)});
    const bool tp = placed(GetParam()) == Placed::tp;
    const Errors errors = tp ? Errors{ranks * v * (1 + u), u, 0} : Errors{0, 0, u + ranks * v * (1 + u)};
    const auto outs = run(GetParam(), ranks, cases);
    for (std::size_t c = 0; c < cases.size(); ++c)
      for (std::size_t t = 0; t < static_cast<std::size_t>(cases[c].tokens); ++t) {
        const auto want = in_f64(cases[c], t, errors);
        for (std::size_t h = 0; h < want.size(); ++h) {
          const double error = std::abs(f32(outs[c][0][t * want.size() + h]) - want[h].value);
          ASSERT_LE(error, want[h].error) << ranks << " ranks, case " << c << ", token " << t << ", " << h;
          if (want[h].error > 0) closest = std::max(closest, error / want[h].error);
        }
      }
  }
  EXPECT_GT(closest, 0.2) << "a bound that nothing comes near proves little";
}

TEST(TpTail, AScratchForTheOtherWayIsRefused) {
  const auto rows =
      test::make_rows(8, 2, 64, std::vector<float>(16, 1.0F), 3, [](std::size_t) { return true; });
  const auto refusal = [&](RowSum made_for, RowSum way) {
    return attempt([&] {
      comm::run_local(2, {}, [&](comm::Group& group) {
        tensor::HostMemory memory;
        const Scratch scratch(memory, {8, 2, 64, 2, 1, 1, {Kind::fast, made_for}});
        Rows out(8 * 64);
        tp_tail(rows.view(), std::nullopt, group, Workers(1), scratch, out, way);
      });
    });
  };
  const Verdict v = refusal(RowSum::reduce_scatter, RowSum::all_reduce);
  ASSERT_TRUE(v);
  EXPECT_EQ(v->kind, ErrorKind::bug);
  EXPECT_EQ(refusal(RowSum::all_reduce, RowSum::reduce_scatter), std::nullopt);
}

}  // namespace
}  // namespace kerf::tail
