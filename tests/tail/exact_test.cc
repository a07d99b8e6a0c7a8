// The exact tail on every placement: one oracle, which knows no ranks at all, has the bits of all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <random>

#include "kerf/comm/grid.h"
#include "kerf/comm/local.h"
#include "tests/support/allocations.h"
#include "tests/tail/exact_cases.h"

namespace kerf::tail {
namespace {

using test::all_norms;
using test::Held;
using test::held_by;
using test::make_model;
using test::Model;
using test::oracle;
using test::Placement;
using test::Rows;

Where where_of(const Model& m, comm::Group& group, const comm::Grid& grid, const Held& held) {
  if (grid.tp() == 1) return {group, nullptr, &group, m.experts, {}};
  return {group, &grid.row(), grid.column(), m.experts, held.g2_alphas};
}

void poison(const Scratch& s) {
  for (const auto* tensor :
       {&s.rows, &s.reduced, &s.partial, &s.values, &s.owned, &s.routes, &s.sums_sent, &s.sums_here})
    std::fill(tensor->bytes().begin(), tensor->bytes().end(), std::byte{0xFF});
}

struct Step {
  Model model;
  std::optional<RouteNorm> norm;
};

// out[step][rank]; all steps share a scratch that is large enough for the largest.
std::vector<std::vector<Rows>> run(const Placement& p, const std::vector<Step>& steps, int threads = 1,
                                   const std::function<void(int rank, Held&)>& spoil = {}) {
  std::vector<std::vector<Rows>> out(steps.size(), std::vector<Rows>(static_cast<std::size_t>(p.ranks())));
  Extent extent{0, 1, 1, p.ranks(), threads, p.tp, {Kind::exact, RowSum::reduce_scatter}};
  for (const Step& s : steps) {
    extent.tokens = std::max(extent.tokens, s.model.tokens);
    extent.top_k = std::max(extent.top_k, s.model.top_k);
    extent.hidden = std::max(extent.hidden, s.model.hidden);
  }
  comm::run_local(p.ranks(), {}, [&](comm::Group& group) {
    const comm::Grid grid(group, p.ep, p.tp);
    const Workers workers(threads);
    tensor::HostMemory memory;
    const Scratch scratch(memory, extent);
    EXPECT_EQ(memory.current(), scratch_bytes(extent));
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const Model& m = steps[s].model;
      Held held = held_by(m, p, group.rank());
      if (spoil) spoil(group.rank(), held);
      poison(scratch);
      Rows& mine = out[s][static_cast<std::size_t>(group.rank())];
      mine.assign(static_cast<std::size_t>(m.tokens * m.hidden), 0xABCD);
      exact_tail(held.view(m), where_of(m, group, grid, held), steps[s].norm, workers, scratch, mine);
    }
  });
  return out;
}

std::vector<Rows> first_step(std::vector<std::vector<Rows>> outs) { return std::move(outs[0]); }

// Placements of experts that have so many segments.
std::vector<Placement> placements(std::int64_t segments) {
  std::vector<Placement> all = {{1, 1}, {2, 1}, {3, 1}, {5, 1}, {8, 1}, {16, 1}};
  if (segments == 8) {
    const std::vector<Placement> more = {{1, 2}, {1, 4}, {1, 8}, {2, 2}, {4, 2},
                                         {2, 4}, {3, 2}, {2, 8}, {4, 4}};
    all.insert(all.end(), more.begin(), more.end());
  } else if (segments == 6) {
    all = {{1, 1}, {6, 1}, {1, 3}, {1, 6}, {2, 3}, {2, 6}};
  } else {
    all = {{1, 1}, {7, 1}, {1, 7}, {2, 7}};
  }
  return all;
}

TEST(ExactTail, OneOraclesBitsOnEveryPlacement) {
  unsigned seed = 1;
  for (const std::int64_t segments : {8, 6, 7}) {
    std::vector<Step> steps;
    std::vector<Rows> want;
    const auto add = [&](std::int64_t tokens, std::int64_t top_k, std::int64_t hidden, std::size_t norm) {
      steps.push_back({make_model(tokens, top_k, segments, ++seed, hidden), all_norms(hidden)[norm]});
      want.push_back(oracle(steps.back().model, steps.back().norm));
    };
    // Fewer tokens than ranks, as many, more; uneven shares; every norm, every top k.
    for (std::int64_t t = 0; t <= 18; ++t) add(t, 1 + (5 * t + 3) % 16, 24, static_cast<std::size_t>(t % 6));
    for (std::int64_t k = 1; k <= 16; ++k) add(1 + k % 4, k, 24, static_cast<std::size_t>(k % 6));
    for (const std::int64_t t : {31, 32, 33, 64}) add(t, 4, 24, static_cast<std::size_t>(t % 6));
    for (std::size_t norm = 0; norm < 6; ++norm) add(5, 3, 300, norm);
    for (const Placement& p : placements(segments)) {
      const auto outs = run(p, steps);
      for (std::size_t s = 0; s < steps.size(); ++s)
        for (const Rows& out : outs[s])
          ASSERT_EQ(out, want[s]) << "EP " << p.ep << " x TP " << p.tp << ", " << steps[s].model.tokens
                                  << " tokens, top " << steps[s].model.top_k << ", step " << s;
    }
  }
}

TEST(ExactTail, AnyThreadCount) {
  const Step step{make_model(20, 5, 8, 77, 300), all_norms(300)[2]};
  const Rows want = oracle(step.model, step.norm);
  for (const Placement& p : {Placement{1, 1}, {3, 1}, {1, 4}, {2, 2}})
    for (const int threads : {1, 2, 5})
      for (const Rows& out : first_step(run(p, {step}, threads))) ASSERT_EQ(out, want) << threads;
}

// All routes on one expert, and all on the last rank's: nothing is sized for an even spread.
TEST(ExactTail, AllRoutesOnOneExpert) {
  for (const std::int64_t tokens : {3, 17}) {
    Step step{make_model(tokens, 4, 8, 5), all_norms(24)[1]};
    for (std::int32_t& id : step.model.ids) id = static_cast<std::int32_t>(step.model.experts - 1);
    for (float& w : step.model.weights) w = 0.25F;
    const Rows want = oracle(step.model, step.norm);
    for (const Placement& p : placements(8))
      for (const Rows& out : first_step(run(p, {step}))) ASSERT_EQ(out, want) << p.ep << " x " << p.tp;
  }
}

TEST(ExactTail, NoRoutesGivePlusZeroWhateverTheirWeights) {
  for (const std::int64_t tokens : {2, 9}) {
    Step step{make_model(tokens, 3, 8, 6), all_norms(24)[2]};
    std::ranges::fill(step.model.ids, -1);
    std::ranges::fill(step.model.weights, std::numeric_limits<float>::quiet_NaN());
    for (const Placement& p : placements(8))
      for (const Rows& out : first_step(run(p, {step})))
        ASSERT_EQ(out, Rows(static_cast<std::size_t>(tokens) * 24, 0)) << p.ep << " x " << p.tp;
  }
}

// Route 0's row is zero, route 1's huge, route 2's has a NaN, each alone in its token.
TEST(ExactTail, RowsOfZerosHugeOnesAndNan) {
  for (const std::int64_t tokens : {4, 9, 20})
    for (std::size_t n = 0; n < 6; ++n) {
      const auto norm = all_norms(24)[n];
      Step clean{make_model(tokens, 1, 8, 8), norm};
      for (std::size_t i = 0; i < 4; ++i) {
        clean.model.ids[i] = static_cast<std::int32_t>(400 * i + 7);
        clean.model.weights[i] = 0.5F;
      }
      clean.model.g2_alphas[407] = 0.5F;
      Step spoilt = clean;
      for (std::int64_t h = 0; h < 24; ++h)
        for (std::int64_t s = 0; s < 8; ++s) {
          spoilt.model.sums[spoilt.model.at(s, 0, h)] = 0;
          spoilt.model.sums[spoilt.model.at(s, 1, h)] = s == 5 ? 3e38F : 1e30F;
        }
      spoilt.model.sums[spoilt.model.at(3, 2, 11)] = std::numeric_limits<float>::quiet_NaN();
      const Rows want = oracle(spoilt.model, norm);
      for (const Placement& p : {Placement{1, 1}, {4, 1}, {1, 2}, {1, 8}, {2, 4}}) {
        const auto outs = run(p, {clean, spoilt});
        for (const Rows& out : outs[1]) {
          ASSERT_EQ(out, want) << p.ep << " x " << p.tp;
          for (std::size_t i = 0; i < out.size(); ++i) {
            const std::size_t token = i / 24;
            const float value = test::f32(out[i]);
            const bool only_here = !norm && i % 24 != 11;
            EXPECT_TRUE(token != 0 || value == 0.0F);
            EXPECT_TRUE(token != 1 || std::isfinite(value));
            EXPECT_TRUE(token != 1 || !norm || !norm->gain.empty() || value == 0.5F);
            EXPECT_TRUE(token != 2 || std::isnan(value) != only_here);
            EXPECT_TRUE(token < 3 || out[i] == outs[0][0][i]) << "another token's rows do not matter";
          }
        }
      }
    }
}

// Against f64, bounded: a row is one sum in f32 and one rounding, 2^-8 + 10 * 2^-24 of the sum of magnitudes
// at most; without a norm the output adds K f32 roundings and one to bf16. The norm is held to f64 elsewhere.
TEST(ExactTail, IsNearFloat64) {
  const Step step{make_model(12, 6, 8, 21), std::nullopt};
  const Model& m = step.model;
  const Rows out = first_step(run({2, 2}, {step}))[3];
  double closest = 0;
  for (std::int64_t t = 0; t < m.tokens; ++t)
    for (std::int64_t h = 0; h < m.hidden; ++h) {
      double want = 0;
      double error = 0;
      double magnitude = 0;
      for (std::int64_t k = 0; k < m.top_k; ++k) {
        const auto i = static_cast<std::size_t>(t * m.top_k + k);
        if (m.ids[i] < 0) continue;
        double row = 0;
        double terms = 0;
        for (std::int64_t s = 0; s < 8; ++s) {
          const double term = static_cast<double>(m.g2_alphas[static_cast<std::size_t>(m.ids[i])]) *
                              m.sums[m.at(s, static_cast<std::int64_t>(i), h)];
          row += term;
          terms += std::abs(term);
        }
        want += m.weights[i] * row;
        magnitude += std::abs(m.weights[i]) * (std::abs(row) * (1 + 0x1p-8) + terms * 10 * 0x1p-24);
        error += std::abs(m.weights[i]) * (std::abs(row) * 0x1p-8 + terms * 10 * 0x1p-24);
      }
      error += magnitude * static_cast<double>(m.top_k) * 0x1p-24;
      error += 0x1p-8 * (std::abs(want) + error);
      const double got = test::f32(out[static_cast<std::size_t>(t * m.hidden + h)]);
      ASSERT_LE(std::abs(got - want), error) << t << " " << h;
      if (error > 0) closest = std::max(closest, std::abs(got - want) / error);
    }
  EXPECT_GT(closest, 0.2);
}

TEST(ExactTail, NothingIsAllocated) {
  for (const Placement& p : {Placement{4, 1}, {1, 4}, {2, 2}})
    for (const std::int64_t tokens : {2, 7}) {
      const Step step{make_model(tokens, 3, 8, 31), all_norms(24)[2]};
      std::atomic<std::int64_t> seen{0};
      comm::run_local(p.ranks(), {}, [&](comm::Group& group) {
        const comm::Grid grid(group, p.ep, p.tp);
        const Held held = held_by(step.model, p, group.rank());
        tensor::HostMemory memory;
        const Workers workers(1);
        const Scratch scratch(memory,
                              {tokens, 3, 24, p.ranks(), 1, p.tp, {Kind::exact, RowSum::reduce_scatter}});
        const Where where = where_of(step.model, group, grid, held);
        Rows out(static_cast<std::size_t>(tokens * 24));
        exact_tail(held.view(step.model), where, step.norm, workers, scratch, out);
        const std::int64_t before = test::allocations;
        EXPECT_GT(before, 0) << "the scratch's own";
        for (int i = 0; i < 3; ++i)
          exact_tail(held.view(step.model), where, step.norm, workers, scratch, out);
        seen += test::allocations - before;
      });
      EXPECT_EQ(seen.load(), 0) << p.ep << " x " << p.tp << ", " << tokens << " tokens";
    }
}

TEST(ExactTail, WrongSizesAreBugs) {
  const Model m = make_model(4, 2, 8, 41);
  const Extent fits{4, 2, 24, 2, 1, 2, {Kind::exact, RowSum::reduce_scatter}};
  const auto refusal = [&](const Extent& extent, const std::function<void(op::Unfinalized&, Where&)>& edit) {
    return attempt([&] {
      comm::run_local(2, {}, [&](comm::Group& group) {
        const comm::Grid grid(group, 1, 2);
        const Held held = held_by(m, {1, 2}, group.rank());
        tensor::HostMemory memory;
        const Scratch scratch(memory, extent);
        op::Unfinalized rows = held.view(m);
        Where where = where_of(m, group, grid, held);
        edit(rows, where);
        Rows out(4 * 24);
        exact_tail(rows, where, std::nullopt, Workers(1), scratch, out);
      });
    });
  };
  EXPECT_EQ(refusal(fits, [](auto&, auto&) {}), std::nullopt);
  Extent fast = fits;
  fast.options.kind = Kind::fast;
  Extent whole = fits;
  whole.slices = 1;
  Extent few = fits;
  few.tokens = 3;
  for (const Verdict& v :
       {refusal(fast, [](auto&, auto&) {}), refusal(whole, [](auto&, auto&) {}),
        refusal(few, [](auto&, auto&) {}),
        refusal(fits, [](auto& rows, auto&) { rows.ids = rows.ids.first(7); }),
        refusal(fits, [](auto& rows, auto&) { rows.sums = {}; }),
        refusal(fits, [](auto&, auto& where) { where.g2_alphas = where.g2_alphas.first(9); }),
        refusal(fits, [](auto&, auto& where) { where.experts = 0; }),
        refusal(fits, [](auto&, auto& where) { where.column = &where.group; })}) {
    ASSERT_TRUE(v);
    EXPECT_EQ(v->kind, ErrorKind::bug) << v->text;
  }
}

}  // namespace
}  // namespace kerf::tail
