// The probe of a layer against one that is put together here: its input, its value, and every figure of the
// text in which it refuses.
#include "kerf/decode/probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/decode/inputs.h"
#include "kerf/decode/shard.h"
#include "kerf/expert_tp/expert_tp.h"
#include "kerf/numeric/nvfp4.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"
#include "tests/support/experts.h"

namespace kerf::test {
namespace {

// The probe's step at 8 tokens: unit-RMS rows of the documented seed, quantised with the layer's own input
// scale, routes spread over all 16 experts.
StepData probe_step(const decode::Layer& layer) {
  StepData step;
  step.tokens = 8;
  step.x = decode::unit_rows(20261023, 8, 256);
  step.a.resize(8 * 256 / 2);
  step.a_sf.resize(8 * 256 / 16);
  numeric::quantise_rows(step.x, 256, layer.nvfp4().a1_gscale.as<float>()[0], step.a, step.a_sf);
  for (int route = 0; route < 32; ++route) step.ids.push_back(route % 16);  // 32 routes, 16 experts
  step.weights.assign(32, 0.25F);
  return step;
}

// Rows of one op in route order, as an unfinalised output: map[i] is i, or -1 where the route is elsewhere.
struct Rows {
  OpResult result;
  std::vector<std::int32_t> map;
  std::vector<float> weights;
  [[nodiscard]] op::Unfinalized view() const { return {8, 4, 256, result.rows, weights, map}; }
};
Rows rows_of(const op::RoutedExperts& experts, const StepData& step) {
  Rows out{run_op(experts, step), {}, step.weights};
  for (std::size_t i = 0; i < out.result.map.size(); ++i)
    out.map.push_back(out.result.map[i] < 0 ? -1 : static_cast<std::int32_t>(i));
  return out;
}

std::string in_words(const char* which, const Rows& rows) {
  const auto local = std::count_if(rows.map.begin(), rows.map.end(), [](auto row) { return row >= 0; });
  float largest = 0;
  for (const float v : widened(rows.result.rows)) largest = std::max(largest, std::fabs(v));
  return fmt::format("{} of {} {} rows finite, largest magnitude {:g}", local, local, which, largest);
}

TEST(LayerProbe, IsThatOfThePublicOpOnTheDocumentedInput) {
  const checkpoint::Checkpoint from = small_model().open();
  std::vector<std::string> texts(4);
  double wanted = 0;
  decode::ProbeOptions strict;
  strict.limit = 1e-9;
  const auto verdicts = thrown_on({4, 1, {}}, [&](const decode::Rank& rank) {
    decode::BuildOptions options;
    options.layers = {3};
    std::vector<decode::Layer> layers = decode::build(from, options, rank);
    EXPECT_NE(layers[0].nvfp4().a1_gscale.as<float>()[0], 1.0F);  // or the scale would not show
    decode::cut(layers[0], "cpu", rank);
    const StepData step = probe_step(layers[0]);
    const Rows ep = rows_of(*layers[0].ep, step);
    const Rows tp = rows_of(*layers[0].tp, step);
    const double value = expert_tp::probe_rel_l2(ep.view(), tp.view(), rank.group);
    EXPECT_GT(value, 0);
    EXPECT_EQ(decode::probe(layers[0], {}, rank), value);
    texts[static_cast<std::size_t>(rank.group.rank())] = in_words("EP", ep) + "; " + in_words("TP", tp);
    if (rank.group.rank() == 0) wanted = value;
    (void)decode::probe(layers[0], strict, rank);
  });
  expect_all_refuse(verdicts, ErrorKind::probe, {});
  ASSERT_TRUE(verdicts[0]);
  std::string text =
      fmt::format("layer 3: the probe found rel L2 {:g} between TP and EP rows, limit 1e-09", wanted);
  for (std::size_t r = 0; r < 4; ++r) text += fmt::format("; rank {}: {}", r, texts[r]);
  EXPECT_EQ(verdicts[0]->text, text);
}

TEST(LayerProbe, OptionsThatMakeNoSense) {
  const checkpoint::Checkpoint from = small_model().open();
  const auto refused = [&](const decode::ProbeOptions& options) {
    return thrown_on({2, 1, {}}, [&](const decode::Rank& rank) {
      decode::BuildOptions building;
      building.layers = {3};
      std::vector<decode::Layer> layers = decode::build(from, building, rank);
      decode::cut(layers[0], "cpu", rank);
      (void)decode::probe(layers[0], options, rank);
    });
  };
  expect_all_refuse(refused({.tokens = -1}), ErrorKind::usage, {"a probe of -1 tokens, wanted 1 to 65536"});
  expect_all_refuse(refused({.tokens = 65'537}), ErrorKind::usage, {"65537 tokens"});
  expect_all_refuse(refused({.limit = -1}), ErrorKind::usage, {"limit is -1"});
  expect_all_refuse(refused({.limit = std::nan("")}), ErrorKind::usage, {"limit is nan"});
}

// One value a layer, those of the layers that were cut, and their range.
TEST(LayerProbe, ValuesAreKeptPerLayer) {
  const checkpoint::Checkpoint from = small_model().open();
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    std::vector<decode::Layer> layers = decode::build(from, {}, rank);
    const decode::ShardReport report = decode::shard(layers, {}, rank);
    ASSERT_EQ(report.probes.size(), 3U);
    std::vector<double> values;
    for (std::size_t i = 0; i < 3; ++i) {
      const std::int64_t index = std::vector<std::int64_t>{0, 2, 3}[i];
      EXPECT_EQ(report.probes[i].layer, index);
      EXPECT_EQ(report.probes[i].rel_l2, decode::probe(layers[static_cast<std::size_t>(index)], {}, rank));
      values.push_back(report.probes[i].rel_l2);
    }
    EXPECT_EQ(report.min_rel_l2, std::ranges::min(values));
    EXPECT_EQ(report.max_rel_l2, std::ranges::max(values));
    EXPECT_LT(report.min_rel_l2, report.max_rel_l2);
  });
}

}  // namespace
}  // namespace kerf::test
