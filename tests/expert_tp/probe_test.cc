// Route rows, and the probe against a sum written out in f64.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/comm/grid.h"
#include "kerf/comm/local.h"
#include "kerf/expert_tp/expert_tp.h"
#include "kerf/numeric/bf16.h"

namespace kerf::expert_tp {
namespace {

using numeric::bf16_to_f32;
using numeric::f32_to_bf16;

struct Output {
  std::int64_t tokens, top_k, hidden;
  std::vector<std::uint16_t> rows;
  std::vector<std::int32_t> map;
  std::vector<float> weights;
  [[nodiscard]] op::Unfinalized view() const { return {tokens, top_k, hidden, rows, weights, map}; }
};

// One row a route and three rows of NaN; route i is row places[i], or nowhere for -1.
Output make(std::int64_t tokens, std::int64_t top_k, std::int64_t hidden,
            const std::vector<std::int32_t>& map) {
  const auto routes = static_cast<std::size_t>(tokens * top_k);
  return {tokens, top_k,
          hidden, std::vector<std::uint16_t>((routes + 3) * static_cast<std::size_t>(hidden), 0x7FC5),
          map,    std::vector<float>(routes, 1.0F)};
}

void fill(Output& out, unsigned seed, float size) {
  std::mt19937 random(seed);
  for (const std::int32_t row : out.map)
    for (std::int64_t h = 0; row >= 0 && h < out.hidden; ++h)
      out.rows[static_cast<std::size_t>(row * out.hidden + h)] =
          f32_to_bf16(size * (static_cast<float>(random() % 2001) / 1000.0F - 1.0F));
}

TEST(RouteRows, InRouteOrderWithZerosElsewhere) {
  Output out = make(3, 2, 16, {4, -1, 0, 7, -1, 2});
  for (std::size_t i = 0; i < out.rows.size(); ++i)
    out.rows[i] = static_cast<std::uint16_t>(0x7F81 + i);  // NaNs
  const RouteRows got = route_rows(out.view());
  EXPECT_EQ(got.local, (std::vector<bool>{true, false, true, true, false, true}));
  ASSERT_EQ(got.rows.size(), 6U * 16U);
  for (std::size_t i = 0; i < 6; ++i)
    for (std::size_t h = 0; h < 16; ++h) {
      const std::int32_t row = out.map[i];
      EXPECT_EQ(got.rows[i * 16 + h], row < 0 ? 0 : out.rows[static_cast<std::size_t>(row) * 16 + h]);
    }
}

TEST(RouteRows, NothingAndNonsense) {
  EXPECT_TRUE(route_rows(make(0, 2, 16, {}).view()).rows.empty());
  EXPECT_THROW(route_rows(make(1, 2, 16, {0, 5}).view()), Error);  // rows 0 to 4
  EXPECT_THROW(route_rows(make(1, 2, 16, {0}).view()), Error);
}

// EP: route i on rank i % ranks. TP: every route on every rank, rows in another order on each.
struct Case {
  std::vector<Output> ep, tp;
};
Case make_case(int ranks, std::int64_t tokens, std::int64_t top_k, std::int64_t hidden, float size) {
  Case made;
  const std::int64_t routes = tokens * top_k;
  for (int r = 0; r < ranks; ++r) {
    std::vector<std::int32_t> ep;
    std::vector<std::int32_t> tp;
    for (std::int64_t i = 0; i < routes; ++i) {
      ep.push_back(i % ranks == r ? static_cast<std::int32_t>((i + 2) % (routes + 3)) : -1);
      tp.push_back(static_cast<std::int32_t>((i + r + 1) % (routes + 3)));
    }
    made.ep.push_back(make(tokens, top_k, hidden, ep));
    made.tp.push_back(make(tokens, top_k, hidden, tp));
    fill(made.ep.back(), static_cast<unsigned>(50 + r), size);
    fill(made.tp.back(), static_cast<unsigned>(90 + r), size / 2);
  }
  return made;
}

std::size_t at(const Output& out, std::size_t route, std::int64_t h) {
  return static_cast<std::size_t>(out.map[route] * out.hidden + h);
}

std::uint16_t summed(const Case& c, std::size_t route, std::int64_t h) {
  float sum = 0.0F;
  for (const Output& tp : c.tp) sum = sum + bf16_to_f32(tp.rows[at(tp, route, h)]);
  return f32_to_bf16(sum);
}

// EP rows become exactly the sum of the TP rows.
void equalise(Case& c) {
  for (Output& ep : c.ep)
    for (std::size_t i = 0; i < ep.map.size(); ++i)
      for (std::int64_t h = 0; ep.map[i] >= 0 && h < ep.hidden; ++h) ep.rows[at(ep, i, h)] = summed(c, i, h);
}

double expected(const Case& c) {
  double difference = 0;
  double wanted = 0;
  for (const Output& ep : c.ep) {  // rank by rank, as the sums over ranks are
    double d = 0;
    double w = 0;
    for (std::size_t i = 0; i < ep.map.size(); ++i) {
      if (ep.map[i] < 0) continue;
      for (std::int64_t h = 0; h < ep.hidden; ++h) {
        const double want = bf16_to_f32(ep.rows[at(ep, i, h)]);
        const double got = bf16_to_f32(summed(c, i, h));
        d += (got - want) * (got - want);
        w += want * want;
      }
    }
    difference += d;
    wanted += w;
  }
  return std::sqrt(difference / wanted);
}

std::vector<double> run_probe(const Case& c) {
  std::vector<double> values(c.ep.size(), -1);
  comm::run_local(static_cast<int>(c.ep.size()), {}, [&](comm::Group& group) {
    const auto me = static_cast<std::size_t>(group.rank());
    values[me] = probe_rel_l2(c.ep[me].view(), c.tp[me].view(), group);
  });
  return values;
}

TEST(Probe, IsTheRelativeDistance) {
  for (const int ranks : {1, 2, 4, 8})
    for (const std::int64_t tokens : {1, 5})
      for (const float size : {1.0F, 1e30F}) {  // squares of 1e30 only exist in f64
        const Case c = make_case(ranks, tokens, 3, 32, size);
        const double want = expected(c);
        EXPECT_GT(want, 0.1);
        for (const double value : run_probe(c))
          EXPECT_EQ(value, want) << ranks << " " << tokens << " " << size;
      }
}

TEST(Probe, EqualRowsAreZeroApart) {
  Case c = make_case(4, 3, 2, 32, 1.0F);
  equalise(c);
  for (const double value : run_probe(c)) EXPECT_EQ(value, 0.0);
}

TEST(Probe, OneElementOfManyShows) {
  Case c = make_case(4, 8, 2, 64, 1.0F);
  equalise(c);
  c.tp[2].rows[at(c.tp[2], 9, 17)] ^= 0x0100U;
  const double want = expected(c);
  EXPECT_GT(want, 0.0);
  for (const double value : run_probe(c)) EXPECT_EQ(value, want);
}

TEST(Probe, OneRoundingAfterTheSum) {
  // 256 + 1 + 1 + 1 on four ranks is 260 after one rounding, 256 after three.
  Case c = make_case(4, 1, 1, 1, 1.0F);
  for (std::size_t r = 0; r < 4; ++r) c.tp[r].rows[at(c.tp[r], 0, 0)] = f32_to_bf16(r == 0 ? 256.0F : 1.0F);
  c.ep[0].rows[at(c.ep[0], 0, 0)] = f32_to_bf16(260.0F);
  for (const double value : run_probe(c)) EXPECT_EQ(value, 0.0);
}

TEST(Probe, AllZeroIsZero) {
  Case c = make_case(2, 2, 2, 16, 0.0F);
  for (const double value : run_probe(c)) EXPECT_EQ(std::bit_cast<std::uint64_t>(value), 0U);
  for (const double value : run_probe(make_case(2, 0, 2, 16, 1.0F))) EXPECT_EQ(value, 0.0);
  // Zero against something is not.
  c.tp[1].rows[at(c.tp[1], 3, 5)] = f32_to_bf16(1.0F);
  for (const double value : run_probe(c)) EXPECT_EQ(value, INFINITY);
}

TEST(Probe, NanShows) {
  Case c = make_case(2, 2, 2, 16, 1.0F);
  c.tp[1].rows[at(c.tp[1], 3, 5)] = 0x7FC0;
  for (const double value : run_probe(c)) EXPECT_TRUE(std::isnan(value));
}

// Every rank's refusal; the group is whole afterwards.
std::vector<Verdict> refusals(const Case& c) {
  std::vector<Verdict> seen(c.ep.size());
  comm::run_local(static_cast<int>(c.ep.size()), {.timeout = std::chrono::seconds{20}},
                  [&](comm::Group& group) {
                    const auto me = static_cast<std::size_t>(group.rank());
                    seen[me] = attempt([&] { probe_rel_l2(c.ep[me].view(), c.tp[me].view(), group); });
                    group.barrier("after");
                  });
  return seen;
}

TEST(Probe, AnUnservedRouteIsRefusedOnEveryRank) {
  for (const std::size_t bad : {0U, 1U, 3U}) {
    Case c = make_case(4, 2, 3, 16, 1.0F);
    c.tp[bad].map[4] = -1;
    for (const Verdict& verdict : refusals(c))
      EXPECT_EQ(verdict,
                (Reason{ErrorKind::probe, "rank " + std::to_string(bad) +
                                              ": the TP experts did not serve 1 of 6 routes, the first "
                                              "token 1 route 1"}));
  }
}

// Rows of tp ranks. EP: rank r has the routes whose expert, i % ranks, is r. TP: a row's ranks have the
// routes of all of the row's experts.
Case make_grid_case(int ep, int tp, std::int64_t tokens, std::int64_t top_k) {
  Case made = make_case(ep * tp, tokens, top_k, 32, 1.0F);
  for (int r = 0; r < ep * tp; ++r)
    for (std::size_t i = 0; i < made.tp[static_cast<std::size_t>(r)].map.size(); ++i)
      if (static_cast<int>(i) % (ep * tp) / tp != r / tp) made.tp[static_cast<std::size_t>(r)].map[i] = -1;
  return made;
}

std::vector<Verdict> grid_refusals(const Case& c, int ep, int tp, double* value = nullptr) {
  std::vector<Verdict> seen(c.ep.size());
  std::vector<double> values(c.ep.size(), -1);
  comm::run_local(ep * tp, {.timeout = std::chrono::seconds{20}}, [&](comm::Group& group) {
    const comm::Grid grid(group, ep, tp);
    const auto me = static_cast<std::size_t>(group.rank());
    seen[me] = attempt([&] {
      values[me] = probe_rel_l2(c.ep[me].view(), c.tp[me].view(), {group, grid.row()});
    });
    group.barrier("after");
  });
  for (const double v : values) EXPECT_EQ(v, values[0]);
  if (value != nullptr) *value = values[0];
  return seen;
}

// The sums over ranks of a row alone, in f64 over everything.
double grid_expected(const Case& c, int tp) {
  double difference = 0;
  double wanted = 0;
  for (std::size_t r = 0; r < c.ep.size(); ++r) {
    const Output& ep = c.ep[r];
    const std::size_t row = r / static_cast<std::size_t>(tp) * static_cast<std::size_t>(tp);
    double d = 0;
    double w = 0;
    for (std::size_t i = 0; i < ep.map.size(); ++i)
      for (std::int64_t h = 0; ep.map[i] >= 0 && h < ep.hidden; ++h) {
        float sum = 0.0F;
        for (std::size_t s = row; s < row + static_cast<std::size_t>(tp); ++s)
          sum = sum + bf16_to_f32(c.tp[s].rows[at(c.tp[s], i, h)]);
        const double want = bf16_to_f32(ep.rows[at(ep, i, h)]);
        const double got = bf16_to_f32(f32_to_bf16(sum));
        d += (got - want) * (got - want);
        w += want * want;
      }
    difference += d;
    wanted += w;
  }
  return std::sqrt(difference / wanted);
}

TEST(ProbeOfAGrid, IsTheDistanceOverAllRows) {
  for (const auto& [ep, tp] : {std::pair{2, 2}, {2, 3}, {3, 2}, {4, 2}, {2, 4}}) {
    Case c = make_grid_case(ep, tp, 5, 3);
    const double want = grid_expected(c, tp);
    EXPECT_GT(want, 0.1);
    double value = 0;
    for (const Verdict& verdict : grid_refusals(c, ep, tp, &value)) EXPECT_FALSE(verdict) << verdict->text;
    EXPECT_EQ(value, want) << ep << " x " << tp;
  }
}

TEST(ProbeOfAGrid, RoutesThatNoRowOrTwoRowsServe) {
  const auto expect = [](const Case& c, const std::string& text) {
    for (const Verdict& verdict : grid_refusals(c, 2, 2))
      EXPECT_EQ(verdict, (Reason{ErrorKind::probe, text}));
  };
  Case half = make_grid_case(2, 2, 2, 3);  // route 2 belongs to rank 2's expert: row 1
  half.tp[3].map[2] = -1;
  expect(half, "rank 3: the TP experts did not serve 1 of 6 routes, the first token 0 route 2");
  half.tp[2].map[2] = -1;
  expect(half, "rank 0: the TP experts did not serve 1 of 6 routes, the first token 0 route 2");
  Case twice = make_grid_case(2, 2, 2, 3);
  twice.tp[1].map[3] = 0;  // of row 1 too
  expect(twice, "token 1 route 0 is served by two rows of ranks, that of rank 0 and that of rank 2");
}

TEST(Probe, ShapesThatDiffer) {
  Case c = make_case(2, 2, 3, 16, 1.0F);
  c.tp[1] = make(2, 3, 8, c.tp[1].map);
  const auto inside = refusals(c);
  EXPECT_EQ(inside[0], inside[1]);
  EXPECT_EQ(inside[0]->kind, ErrorKind::bug);
  c.ep[1] = make(2, 3, 8, c.ep[1].map);
  const auto between = refusals(c);
  EXPECT_EQ(between[0], between[1]);
  EXPECT_EQ(between[0]->text, "hidden width differs: rank 0 has 16, rank 1 has 8");
}

}  // namespace
}  // namespace kerf::expert_tp
