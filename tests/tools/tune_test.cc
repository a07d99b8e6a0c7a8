// Measuring tactics: what is measured, what is listed, and that the order follows the times.
#include "kerf/tools/tune.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kerf/tactics/choose.h"

namespace kerf::tools {
namespace {

TuneRequest small(op::Arithmetic arithmetic) {
  TuneRequest r;
  r.arithmetic = arithmetic;
  r.shape = {4, 256, 128};
  r.num_experts = 8;
  r.top_k = 2;
  r.tokens = {1, 9, 40};
  r.seconds = 0.03;
  return r;
}

const TacticTime& at(const TuneResult& result, op::Tactic tactic, std::int64_t tokens) {
  const auto found = std::ranges::find_if(
      result.times, [&](const TacticTime& t) { return t.tactic == tactic && t.tokens == tokens; });
  EXPECT_NE(found, result.times.end()) << tactic.tile << ", " << tactic.config << " at " << tokens;
  return *found;
}

TEST(Tune, MeasuresEveryTacticOfEveryArithmetic) {
  for (const op::Arithmetic arithmetic :
       {op::Arithmetic::w4a4, op::Arithmetic::w4a16, op::Arithmetic::bf16}) {
    tensor::HostMemory memory;
    std::vector<std::int64_t> progress;
    TuneRequest request = small(arithmetic);
    request.progress = [&](std::int64_t done, std::int64_t of) {
      progress.push_back(done);
      EXPECT_EQ(of, 3);
    };
    const TuneResult result = tune(request, memory, Workers(2));
    EXPECT_EQ(memory.current(), 0);
    EXPECT_EQ(progress, (std::vector<std::int64_t>{1, 2, 3}));
    EXPECT_EQ(result.list.arithmetic, arithmetic);
    EXPECT_EQ(result.list.setting, tactics::setting_of(op::backend("cpu"), {4, 256, 128}, 8, 2));
    // All that are of use at so many tokens, and no others.
    std::size_t expected = 0;
    for (const std::int64_t tokens : request.tokens)
      for (const op::Tactic t : op::backend("cpu").tactics(tokens)) {
        EXPECT_GT(at(result, t, tokens).us, 0);
        ++expected;
      }
    EXPECT_EQ(result.times.size(), expected);
    // Only those of use at every number of tokens can be preferred: tile 8.
    EXPECT_EQ(result.list.tactics.size(), 3U);
    for (const op::Tactic t : result.list.tactics) EXPECT_EQ(t.tile, 8);
  }
}

// The order is that of the geometric mean of time over least time, but for ties; and the list has the times.
TEST(Tune, TheOrderFollowsTheTimes) {
  tensor::HostMemory memory;
  const TuneRequest request = small(op::Arithmetic::w4a4);
  const TuneResult result = tune(request, memory, Workers(1));
  const std::vector<op::Tactic>& list = result.list.tactics;
  std::vector<double> product(list.size(), 1);
  for (std::size_t i = 0; i < list.size(); ++i)
    for (std::size_t j = 0; j < request.tokens.size(); ++j) {
      const double us = at(result, list[i], request.tokens[j]).us;
      product[i] *= us;
      EXPECT_EQ(result.list.measured[j].tokens, request.tokens[j]);
      EXPECT_NEAR(result.list.measured[j].us[i], us, 0.051);
    }
  for (std::size_t i = 1; i < list.size(); ++i) {
    const double slower = std::cbrt(product[i - 1] / product[i]);  // the one before against this one
    EXPECT_LE(slower, 1 + tactics::tie_tolerance + 1e-9) << i;
  }
}

TEST(Tune, RefusesWhatCannotBeMeasured) {
  tensor::HostMemory memory;
  const auto refused = [&](const std::function<void(TuneRequest&)>& edit) {
    TuneRequest request = small(op::Arithmetic::w4a4);
    edit(request);
    const Verdict v = attempt([&] { (void)tune(request, memory, Workers(1)); });
    EXPECT_TRUE(v);
    return v.value_or(Reason{ErrorKind::bug, ""});
  };
  EXPECT_EQ(refused([](TuneRequest& r) { r.tokens = {}; }).kind, ErrorKind::usage);
  EXPECT_EQ(refused([](TuneRequest& r) { r.tokens = {0}; }).kind, ErrorKind::usage);
  EXPECT_EQ(refused([](TuneRequest& r) { r.top_k = 9; }).kind, ErrorKind::usage);
  EXPECT_EQ(refused([](TuneRequest& r) { r.num_experts = 3; }).kind, ErrorKind::usage);
  EXPECT_EQ(refused([](TuneRequest& r) { r.shape.intermediate = 32; }).kind, ErrorKind::unsupported);
  EXPECT_EQ(refused([](TuneRequest& r) { r.backend = "abacus"; }).kind, ErrorKind::usage);
}

}  // namespace
}  // namespace kerf::tools
