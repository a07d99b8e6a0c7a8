// The tails on a device, bit for bit the host's.
#include "kerf/tail/device.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <limits>
#include <random>

#include "kerf/comm/local.h"
#include "tests/support/gpu.h"
#include "tests/tail/exact_cases.h"

namespace kerf::tail {
namespace {

using test::all_norms;
using test::make_ranks;
using test::OnDevice;
using test::Placed;
using test::RankRows;
using test::Rows;

using DeviceTails = test::OnGpu;

constexpr std::uint16_t poison = 0xABCD;
constexpr std::size_t guard = 64;  // values before and behind an output that nobody may touch

// Routes of a step that a device has, and the norm, as device_tail() wants them.
class Given {
 public:
  Given(std::int64_t tokens, std::int64_t top_k, std::int64_t hidden, const std::vector<float>& weights,
        const std::optional<RouteNorm>& norm)
      : weights_(weights), gain_(norm ? norm->gain : Rows()) {
    tail_.tokens = tail_.count = tokens;
    tail_.top_k = top_k;
    tail_.hidden = hidden;
    tail_.weights = weights_.get();
    tail_.parts = 0;
    if (norm)
      tail_.norm = {true, norm->gain.empty() ? nullptr : gain_.get(), norm->gain_before_norm, norm->eps};
  }
  void add(const Rows& rows, const std::vector<float>& sums, const std::vector<std::int32_t>& map) {
    rows_.emplace_back(rows);
    sums_.emplace_back(sums);
    maps_.emplace_back(map);
    tail_.part[static_cast<std::size_t>(tail_.parts++)] = {rows_.back().get(), sums_.back().get(),
                                                           maps_.back().get()};
  }
  void add(const RankRows& rank) { add(rank.rows, {}, rank.map); }
  void set_ids(const std::vector<std::int32_t>& ids, const std::vector<float>& g2_alphas) {
    ids_.emplace_back(ids);
    alphas_.emplace_back(g2_alphas);
    tail_.ids = ids_.back().get();
    tail_.g2_alphas = alphas_.back().get();
  }
  DeviceTail& tail() { return tail_; }
  [[nodiscard]] const OnDevice<std::uint16_t>& rows(std::size_t part) const { return rows_[part]; }

  // Outputs poisoned before; what is not to be written must be as it was.
  Rows run(int outs = 1) {
    const auto size = static_cast<std::size_t>(tail_.tokens * tail_.hidden);
    std::vector<OnDevice<std::uint16_t>> out;
    tail_.outs = outs;
    for (int o = 0; o < outs; ++o) {
      out.emplace_back(size + 2 * guard, poison);
      tail_.out[static_cast<std::size_t>(o)] = out.back().get() + guard;
    }
    const cuda::Stream stream;
    device_tail(tail_, stream.handle());
    stream.synchronize();
    const Rows first = out[0].host();
    for (const auto& other : out) EXPECT_EQ(other.host(), first);
    const auto begin = first.begin() + guard;
    EXPECT_EQ(Rows(first.begin(), begin), Rows(guard, poison));
    EXPECT_EQ(Rows(first.end() - guard, first.end()), Rows(guard, poison));
    return {begin, first.end() - guard};
  }

 private:
  OnDevice<float> weights_;
  OnDevice<std::uint16_t> gain_;
  std::vector<OnDevice<std::uint16_t>> rows_;
  std::vector<OnDevice<float>> sums_;
  std::vector<OnDevice<std::int32_t>> maps_;
  std::vector<OnDevice<std::int32_t>> ids_;
  std::vector<OnDevice<float>> alphas_;
  DeviceTail tail_;
};

Rows host_finalize(const RankRows& rows, const std::optional<RouteNorm>& norm) {
  tensor::HostMemory memory;
  const Workers workers(8);
  const Scratch scratch(memory, {rows.tokens, rows.top_k, rows.hidden, 1, 8, 1, {}});
  Rows out(static_cast<std::size_t>(rows.tokens * rows.hidden), poison);
  finalize(rows.view(), norm, workers, scratch, out);
  return out;
}

Rows on_device(const RankRows& rows, const std::optional<RouteNorm>& norm, int outs = 1) {
  Given given(rows.tokens, rows.top_k, rows.hidden, rows.weights, norm);
  given.add(rows);
  return given.run(outs);
}

// Index of the first difference, for a message; -1: none.
std::int64_t differs(const Rows& a, const Rows& b) {
  if (a.size() != b.size()) return 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) return static_cast<std::int64_t>(i);
  return -1;
}

// One rank's rows; a fourth of the routes is not here, and such a route's weight would spoil the token.
RankRows some_rows(std::int64_t tokens, std::int64_t top_k, std::int64_t hidden, unsigned seed,
                   int exponent = 0) {
  auto weights = test::make_weights(static_cast<std::size_t>(tokens * top_k), seed);
  const auto here = [&](std::size_t i) { return i % 4 != 2 && static_cast<std::int64_t>(i) / top_k != 5; };
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (!here(i)) weights[i] = std::numeric_limits<float>::quiet_NaN();
  return test::make_rows(tokens, top_k, hidden, weights, seed + 1, here, exponent);
}

TEST_F(DeviceTails, LocalRowsOverSizes) {
  std::size_t turn = 0;
  for (const std::int64_t hidden : {64, 128, 960, 4096, 7168})
    for (const std::int64_t top_k : {1, 2, 3, 8, 32})
      for (const std::int64_t tokens : {0, 1, 2, 7, 8, 33, 64}) {
        if (hidden == 7168 && top_k == 32 && tokens > 8) continue;
        const RankRows rows = some_rows(tokens, top_k, hidden, static_cast<unsigned>(turn));
        const auto norms = all_norms(hidden);
        for (const auto& norm : {norms[0], norms[1 + turn % 5]})
          ASSERT_EQ(differs(on_device(rows, norm), host_finalize(rows, norm)), -1)
              << tokens << " tokens, top " << top_k << ", " << hidden << " values, norm "
              << (norm ? 1 + turn % 5 : 0);
        ++turn;
      }
}

TEST_F(DeviceTails, EveryNormAndTheLargestSizes) {
  for (const auto& [tokens, top_k, hidden] :
       {std::array<std::int64_t, 3>{3, 8, 4096}, {2, 32, 16384}, {1, 1, 16384}, {300, 2, 128}, {600, 8, 192}})
    for (const int exponent : {0, -130, 127})
      for (const auto& norm : all_norms(hidden)) {
        const RankRows rows = some_rows(tokens, top_k, hidden, 77, exponent);
        ASSERT_EQ(differs(on_device(rows, norm, 2), host_finalize(rows, norm)), -1)
            << tokens << " tokens, top " << top_k << ", " << hidden << " values about 2^" << exponent;
      }
}

// One row of each kind: what is rare among random numbers.
Rows special_row(std::size_t kind, std::size_t hidden, std::mt19937& random) {
  Rows row(hidden);
  const auto bits = [&] { return static_cast<std::uint16_t>(random()); };
  for (std::uint16_t& v : row) {
    const auto sign = static_cast<std::uint16_t>(bits() & 0x8000);
    switch (kind % 8) {
      case 0:
        v = sign;  // zeros
        break;
      case 1:
        v = static_cast<std::uint16_t>(sign | (0x7F00 + bits() % 0x80));  // up to the largest
        break;
      case 2:
      case 3:
        v = static_cast<std::uint16_t>(sign | (0x3F00 + bits() % 0x100));  // around one; see below
        break;
      case 4:
        v = static_cast<std::uint16_t>(sign | bits() % 0x80);  // subnormals
        break;
      case 5:
        v = static_cast<std::uint16_t>(sign | (0x0080 + bits() % 0x300));  // tiny
        break;
      case 6:
        v = static_cast<std::uint16_t>(bits() % 2 == 0 ? sign | bits() % 0x80
                                                       : sign | (0x7F00 + bits() % 0x80));  // both
        break;
      default:
        v = static_cast<std::uint16_t>(bits() % 0x7F80 | sign);  // any finite ones
    }
  }
  if (kind % 8 == 2) row[random() % hidden] = static_cast<std::uint16_t>(0x7F81 + bits() % 0x7F);  // one NaN
  if (kind % 8 == 3) row[random() % hidden] = bits() % 2 == 0 ? 0x7F80 : 0xFF80;
  return row;
}

TEST_F(DeviceTails, SpecialRows) {
  std::mt19937 random(5);
  for (const std::int64_t hidden : {64, 4096})
    for (const std::int64_t top_k : {1, 2})
      for (const auto& norm : all_norms(hidden)) {
        RankRows rows = test::make_rows(64, top_k, hidden, std::vector<float>(64 * top_k, 0.75F), 3,
                                        [](std::size_t) { return true; });
        for (std::size_t i = 0; i < rows.map.size(); ++i) {
          const Rows row =
              special_row(top_k == 1 ? i : i % 2 * 7 + i / 16, static_cast<std::size_t>(hidden), random);
          std::copy(row.begin(), row.end(), rows.rows.begin() + rows.map[i] * hidden);
        }
        ASSERT_EQ(differs(on_device(rows, norm), host_finalize(rows, norm)), -1) << hidden << " " << top_k;
      }
}

TEST_F(DeviceTails, SomeTokensAndSeveralOutputs) {
  const RankRows rows = some_rows(9, 4, 192, 8);
  for (const auto& norm : {all_norms(192)[0], all_norms(192)[3]}) {
    Rows want = host_finalize(rows, norm);
    std::fill(want.begin(), want.begin() + 192 * 3, poison);
    std::fill(want.begin() + 192 * 7, want.end(), poison);
    Given given(9, 4, 192, rows.weights, norm);
    given.add(rows);
    given.tail().first = 3;
    given.tail().count = 4;
    EXPECT_EQ(given.run(16), want);
  }
}

TEST_F(DeviceTails, SumsOfRanksAreTheFastTpTails) {
  std::size_t turn = 0;
  for (const int ranks : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16})
    for (const auto& [tokens, top_k, hidden] :
         {std::array<std::int64_t, 3>{1, 8, 4096}, {7, 2, 128}, {2, 32, 64}, {33, 1, 64}, {8, 8, 512}}) {
      const auto all = make_ranks(Placed::tp, ranks, tokens, top_k, hidden);
      const auto norms = all_norms(hidden);
      for (const auto& norm : {norms[0], norms[1 + turn++ % 5]}) {
        std::vector<Rows> want(static_cast<std::size_t>(ranks));
        comm::run_local(ranks, {}, [&](comm::Group& group) {
          const auto me = static_cast<std::size_t>(group.rank());
          tensor::HostMemory memory;
          const Scratch scratch(memory, {tokens, top_k, hidden, ranks, 1, 1, {}});
          want[me].resize(static_cast<std::size_t>(tokens * hidden));
          tp_tail(all[me].view(), norm, group, Workers(1), scratch, want[me]);
        });
        Given given(tokens, top_k, hidden, all[0].weights, norm);
        given.tail().source = RowSource::bf16_sum;
        for (const RankRows& rank : all) given.add(rank);
        ASSERT_EQ(differs(given.run(), want[0]), -1)
            << ranks << " ranks, " << tokens << " tokens, top " << top_k << ", " << hidden << " values";
      }
    }
}

TEST_F(DeviceTails, LocalTailsAndTheSumOfRanksAreTheFastEpTail) {
  for (const int ranks : {1, 2, 3, 8, 16}) {
    const auto all = make_ranks(Placed::ep, ranks, 7, 8, 192);
    for (const auto& norm : all_norms(192)) {
      std::vector<OnDevice<std::uint16_t>> parts;
      for (const RankRows& rank : all) parts.emplace_back(on_device(rank, norm));
      const OnDevice<std::uint16_t> out(7 * 192, poison);
      DeviceSum sum;
      sum.parts = ranks;
      for (std::size_t r = 0; r < parts.size(); ++r) sum.part[r] = parts[r].get();
      sum.out[0] = out.get();
      sum.count = 7 * 192;
      const cuda::Stream stream;
      device_sum(sum, stream.handle());
      stream.synchronize();
      ASSERT_EQ(out.host(), test::plain_tail(Placed::ep, all, norm)) << ranks << " ranks";
    }
  }
}

TEST_F(DeviceTails, EveryOrderOfTheSumOverRanks) {
  std::mt19937 random(9);
  constexpr std::size_t values = 4096;
  for (int ranks = 1; ranks <= 16; ++ranks) {
    std::vector<Rows> terms(static_cast<std::size_t>(ranks), Rows(values));
    for (std::size_t r = 0; r < terms.size(); ++r)
      for (std::size_t i = 0; i < values; ++i)  // any bits; like values, which round; zeros of both signs
        terms[r][i] = static_cast<std::uint16_t>(i % 4 == 0   ? random()
                                                 : i % 4 == 3 ? random() << 15
                                                              : (random() & 0x83FF) | 0x3C00);
    for (const auto order : {numeric::SumOrder::rank_order, numeric::SumOrder::chunks_of_8,
                             numeric::SumOrder::chunks_of_16, numeric::SumOrder::each_add}) {
      std::vector<OnDevice<std::uint16_t>> parts(terms.begin(), terms.end());
      const OnDevice<std::uint16_t> other(values, poison);
      DeviceSum sum;
      sum.order = order;
      sum.parts = ranks;
      for (std::size_t r = 0; r < parts.size(); ++r) sum.part[r] = parts[r].get();
      sum.outs = 2;
      sum.out[0] = other.get();
      sum.out[1] = parts[0].get();  // in place
      sum.first = 64;
      sum.count = values - 128;
      const cuda::Stream stream;
      device_sum(sum, stream.handle());
      stream.synchronize();
      Rows want(values, poison);
      Rows in_place = terms[0];
      for (std::size_t i = 64; i < values - 64; ++i)
        want[i] = in_place[i] =
            numeric::sum_bf16(order, ranks, [&](int r) { return terms[static_cast<std::size_t>(r)][i]; });
      ASSERT_EQ(other.host(), want) << ranks << " ranks, order " << static_cast<int>(order);
      ASSERT_EQ(parts[0].host(), in_place);
    }
  }
}

// Every placement gives the bits of the oracle, which knows no ranks (and which the host's exact tail has).
TEST_F(DeviceTails, ExactOnEveryPlacement) {
  std::size_t turn = 0;
  for (const test::Placement p : {test::Placement{1, 1},
                                  {2, 1},
                                  {3, 1},
                                  {8, 1},
                                  {16, 1},
                                  {1, 2},
                                  {1, 3},
                                  {1, 4},
                                  {1, 6},
                                  {1, 8},
                                  {1, 12},
                                  {1, 16},
                                  {2, 2},
                                  {4, 2},
                                  {2, 4},
                                  {2, 8}})
    for (const auto& [tokens, top_k, hidden] :
         {std::array<std::int64_t, 3>{1, 8, 256}, {7, 3, 64}, {33, 2, 128}}) {
      const std::int64_t segments = p.tp % 3 == 0 ? p.tp : 16;
      const auto m = test::make_model(tokens, top_k, segments, 11, hidden, 1680);
      const auto norms = all_norms(hidden);
      for (const auto& norm : {norms[0], norms[1 + turn++ % 5]}) {
        Given given(tokens, top_k, hidden, m.weights, norm);
        for (int rank = 0; rank < p.ranks(); ++rank) {
          const test::Held held = test::held_by(m, p, rank);
          given.add(held.rows, held.sums, held.map);
        }
        if (p.tp > 1) given.set_ids(m.ids, m.g2_alphas);
        given.tail().source = p.tp == 1   ? RowSource::any
                              : p.ep == 1 ? RowSource::tree_sum
                                          : RowSource::tree_any;
        given.tail().slices = p.tp;
        ASSERT_EQ(differs(given.run(), test::oracle(m, norm)), -1) << p.ep << " x " << p.tp << ", " << tokens;
      }
    }
}

TEST_F(DeviceTails, AReplayedGraphEndsTheRowsThatAreThereThen) {
  for (const auto& norm : {all_norms(4096)[0], all_norms(4096)[2]}) {
    const RankRows before = some_rows(3, 8, 4096, 21);
    RankRows after = before;
    for (std::uint16_t& v : after.rows)
      if (v != 0xFFFF) v ^= 0x8041;
    Given given(3, 8, 4096, before.weights, norm);
    given.add(before);
    const OnDevice<std::uint16_t> out(3 * 4096, poison);
    given.tail().out[0] = out.get();
    const cuda::Stream stream;
    const auto graph =
        cuda::Graph::capture(stream.handle(), [&] { device_tail(given.tail(), stream.handle()); });
    EXPECT_EQ(out.host(), Rows(3 * 4096, poison));
    for (const RankRows* rows : std::array<const RankRows*, 3>{&before, &after, &before}) {
      cuda::copy(given.rows(0).get(), rows->rows.data(), rows->rows.size() * 2);
      graph.launch(stream.handle());
      stream.synchronize();
      EXPECT_EQ(out.host(), host_finalize(*rows, norm));
    }
  }
}

TEST_F(DeviceTails, WhatDoesNotFitIsABug) {
  const RankRows rows = some_rows(2, 2, 64, 1);
  const auto refusal = [&](const std::function<void(DeviceTail&)>& edit) {
    Given given(2, 2, 64, rows.weights, all_norms(64)[2]);
    given.add(rows);
    const OnDevice<std::uint16_t> out(2 * 64, poison);
    given.tail().out[0] = out.get();
    edit(given.tail());
    const cuda::Stream stream;
    const Verdict v = attempt([&] { device_tail(given.tail(), stream.handle()); });
    stream.synchronize();
    return v;
  };
  EXPECT_EQ(refusal([](DeviceTail&) {}), std::nullopt);
  for (const Verdict& v :
       {refusal([](DeviceTail& t) { t.top_k = 33; }), refusal([](DeviceTail& t) { t.hidden = 72; }),
        refusal([](DeviceTail& t) { t.hidden = 16384 + 64; }), refusal([](DeviceTail& t) { t.first = 1; }),
        refusal([](DeviceTail& t) { t.outs = 2; }), refusal([](DeviceTail& t) { t.out[0] += 1; }),
        refusal([](DeviceTail& t) { t.source = RowSource::tree_sum; }),
        refusal([](DeviceTail& t) { t.part[0].map = nullptr; }),
        refusal([](DeviceTail& t) { t.weights = nullptr; }),
        refusal([](DeviceTail& t) { t.norm.gain += 1; })}) {
    ASSERT_TRUE(v);
    EXPECT_EQ(v->kind, ErrorKind::bug) << v->text;
  }
}

}  // namespace
}  // namespace kerf::tail
