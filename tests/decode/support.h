// Ranks for tests: bodies that run on each rank of a local group, and what every rank threw.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "kerf/comm/grid.h"
#include "kerf/comm/local.h"
#include "kerf/decode/build.h"
#include "kerf/decode/run_layer.h"
#include "kerf/numeric/bf16.h"
#include "kerf/tensor/storage.h"
#include "tests/support/onehot.h"

namespace kerf::test {

struct RankSetup {
  int ranks = 1;
  int threads = 1;  // workers of each rank
  Log log;
};

// Memory of a rank in which nothing may be left in use when it goes, however the rank ended.
struct Checked {
  explicit Checked(int of) : rank(of) {}
  ~Checked() { EXPECT_EQ(memory.current(), 0) << "rank " << rank << " leaked"; }
  Checked(const Checked&) = delete;
  Checked& operator=(const Checked&) = delete;
  Checked(Checked&&) = delete;
  Checked& operator=(Checked&&) = delete;

  int rank;
  tensor::HostMemory memory;
};

// Runs body(rank) on every rank, each with memory of its own. What a body throws reaches the group as it is.
inline void on_ranks(const RankSetup& setup, const std::function<void(const decode::Rank&)>& body) {
  comm::run_local(setup.ranks, {}, [&](comm::Group& group) {
    Checked checked(group.rank());
    decode::Meter meter(checked.memory);
    body({group, meter, Workers(setup.threads), setup.log});
  });
}

// The same on ep x tp ranks of one worker each, each with the grid.
inline void on_grid(int ep, int tp, const std::function<void(const decode::Rank&)>& body) {
  on_ranks({ep * tp, 1, {}}, [&](const decode::Rank& rank) {
    const comm::Grid grid(rank.group, ep, tp);
    body({rank.group, rank.memory, rank.workers, rank.log, &grid});
  });
}

// What each rank threw, ranks ascending; nothing where a rank did not throw.
inline std::vector<Verdict> thrown_on(const RankSetup& setup,
                                      const std::function<void(const decode::Rank&)>& body) {
  std::vector<Verdict> verdicts(static_cast<std::size_t>(setup.ranks));
  on_ranks(setup, [&](const decode::Rank& rank) {
    verdicts[static_cast<std::size_t>(rank.group.rank())] = attempt([&] { body(rank); });
  });
  return verdicts;
}

// Every rank refused, with one kind and one text that holds all the words.
inline void expect_all_refuse(const std::vector<Verdict>& verdicts, ErrorKind kind,
                              std::initializer_list<std::string> words) {
  ASSERT_FALSE(verdicts.empty());
  for (std::size_t r = 0; r < verdicts.size(); ++r) {
    ASSERT_TRUE(verdicts[r].has_value()) << "rank " << r << " did not refuse";
    EXPECT_EQ(verdicts[r]->kind, kind) << verdicts[r]->text;
    EXPECT_EQ(verdicts[r]->text, verdicts[0]->text) << "rank " << r << " says something else";
  }
  for (const std::string& word : words)
    EXPECT_NE(verdicts[0]->text.find(word), std::string::npos)
        << "no '" << word << "' in: " << verdicts[0]->text;
}

// T tokens with the one-hot row, and routes.
inline decode::LayerInputs onehot_tokens(std::vector<std::int32_t> ids, std::vector<float> weights) {
  decode::LayerInputs in;
  in.rows_name = "x";
  in.routes_name = "topk_ids";
  in.tokens = static_cast<std::int64_t>(ids.size()) / Onehot::top_k;
  const std::vector<float> row = onehot_input();
  for (std::int64_t t = 0; t < in.tokens; ++t)
    for (const float v : row) in.x.push_back(numeric::f32_to_bf16(v));
  in.ids = std::move(ids);
  in.weights = std::move(weights);
  return in;
}

// The exact [T, H] of onehot_tokens() where expert e's row is factors[e] * onehot_output(e): every product
// and every partial sum is exact, so that the one rounding at the end does not depend on where experts live.
inline std::vector<float> onehot_rows(const decode::LayerInputs& in,
                                      const std::vector<float>& factors = {1, 1, 1, 1}) {
  std::vector<float> out;
  for (std::int64_t t = 0; t < in.tokens; ++t) {
    std::vector<float> row(Onehot::hidden, 0.0F);
    for (std::int64_t k = 0; k < Onehot::top_k; ++k) {
      const auto r = static_cast<std::size_t>(t * Onehot::top_k + k);
      if (in.ids[r] < 0) continue;
      const std::vector<float> expert = onehot_output(in.ids[r]);
      for (std::size_t h = 0; h < row.size(); ++h)
        row[h] += in.weights[r] * factors[static_cast<std::size_t>(in.ids[r])] * expert[h];
    }
    for (const float v : row) out.push_back(numeric::round_to_bf16(v));
  }
  return out;
}

inline std::vector<float> widened(const std::vector<std::uint16_t>& bits) {
  std::vector<float> out;
  out.reserve(bits.size());
  for (const std::uint16_t b : bits) out.push_back(numeric::bf16_to_f32(b));
  return out;
}

// Where the one-hot checkpoint's experts may be: 1, 2 and 4 EP ranks, 2 TP ranks; on each backend that
// matters.
struct Placement {
  const char* label;
  int ranks;
  decode::Mode mode;
};
inline const std::vector<Placement>& placements() {
  static const std::vector<Placement> all = {{"EP1", 1, decode::Mode::ep},
                                             {"EP2", 2, decode::Mode::ep},
                                             {"EP4", 4, decode::Mode::ep},
                                             {"TP2", 2, decode::Mode::tp}};
  return all;
}

// Runs one layer on every rank of a placement; all ranks must have the same result, which is returned.
inline decode::LayerResult run_on(const Placement& placement, const checkpoint::Checkpoint& from,
                                  const decode::LayerInputs& inputs, decode::LayerOptions options = {},
                                  const Log& log = {}) {
  options.mode = placement.mode;
  std::vector<decode::LayerResult> results(static_cast<std::size_t>(placement.ranks));
  on_ranks({placement.ranks, 1, log}, [&](const decode::Rank& rank) {
    results[static_cast<std::size_t>(rank.group.rank())] = decode::run_layer(from, options, inputs, rank);
  });
  for (const decode::LayerResult& r : results) EXPECT_EQ(r.y, results[0].y) << placement.label;
  return results[0];
}

}  // namespace kerf::test
