// An engine's numbers: tensors of the right shape that hold what no model computes with are refused by name,
// and what is out of the ordinary but means something is taken.
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "kerf/decode/adopt.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

using decode::StockLayer;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float inf = std::numeric_limits<float>::infinity();
constexpr std::int64_t each = 8;  // of 16 experts on 2 ranks

struct Case {
  const char* name;
  std::string words;  // empty: it is taken
  std::function<void(StockLayer&, std::vector<float>&)> plant;
};

layout::Nvfp4View& nvfp4(StockLayer& layer) { return std::get<layout::Nvfp4View>(layer.experts); }

// `values` in the tensor's place, all `usual` but one.
void one(tensor::TensorView& tensor, std::vector<float>& values, std::size_t at, float value,
         float usual = 1.0F) {
  values.assign(tensor.bytes.size() / sizeof(float), usual);
  values[at] = value;
  tensor.bytes = std::as_bytes(std::span<const float>(values));
}
std::span<const float> one(std::vector<float>& values, std::size_t at, float value) {
  values.assign(each, 1.0F);
  values[at] = value;
  return values;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"g1_alphas", "rank 1: layer 0: g1_alphas of expert 10 is nan, wanted a positive finite number",
       [](auto& l, auto& v) { one(nvfp4(l).g1_alphas, v, 2, nan); }},
      {"g1_scale_c", "layer 0: g1_scale_c of expert 8 is -1, wanted a positive finite number",
       [](auto& l, auto& v) { one(nvfp4(l).g1_scale_c, v, 0, -1); }},
      {"g2_alphas", "layer 0: g2_alphas of expert 15 is inf, wanted a positive finite number",
       [](auto& l, auto& v) { one(nvfp4(l).g2_alphas, v, 7, inf); }},
      {"zero", "layer 0: g2_alphas of expert 8 is 0, wanted a positive finite number",
       [](auto& l, auto& v) { one(nvfp4(l).g2_alphas, v, 0, 0); }},
      {"a1_gscale", "layer 0: a1_gscale is 0, wanted a positive finite number",
       [](auto& l, auto& v) { one(nvfp4(l).a1_gscale, v, 0, 0); }},
      {"a2_gscale", "layer 0: a2_gscale is -2, wanted a positive finite number",
       [](auto& l, auto& v) { one(nvfp4(l).a2_gscale, v, 0, -2); }},
      {"alpha", "layer 0: alpha of expert 9 is nan, wanted a finite number",
       [](auto& l, auto& v) { l.gated.alpha = one(v, 1, nan); }},
      {"beta", "layer 0: beta of expert 9 is -inf, wanted a finite number",
       [](auto& l, auto& v) { l.gated.beta = one(v, 1, -inf); }},
      {"limit_gate", "layer 0: limit_gate of expert 11 is nan, wanted a positive number (inf: no limit)",
       [](auto& l, auto& v) { l.gated.limit_gate = one(v, 3, nan); }},
      {"limit_up", "layer 0: limit_up of expert 11 is -7, wanted a positive number (inf: no limit)",
       [](auto& l, auto& v) { l.gated.limit_up = one(v, 3, -7); }},
      {"eps nan", "layer 0: the norm's eps is nan, wanted a finite number of at least 0",
       [](auto& l, auto& /*v*/) {
         l.norm = tail::RouteNorm{{}, true, nan};
       }},
      {"eps below 0", "layer 0: the norm's eps is -1, wanted a finite number of at least 0",
       [](auto& l, auto& /*v*/) {
         l.norm = tail::RouteNorm{{}, true, -1};
       }},
      {"gain", "layer 0: the norm's gain is inf at 3, wanted finite numbers",
       [](auto& l, auto& /*v*/) {
         l.norm = tail::RouteNorm{std::vector<std::uint16_t>(256, 0x3F80), true, 1e-8F};
         l.norm->gain[3] = 0x7F80;
       }},
      {"two faults",
       "layer 0: a1_gscale is -1, wanted a positive finite number; layer 0: the norm's eps is -1",
       [](auto& l, auto& v) {
         one(nvfp4(l).a1_gscale, v, 0, -1);
         l.norm = tail::RouteNorm{{}, true, -1};
       }},
      {"index", "a layer's index is -1, wanted 0 or more", [](auto& l, auto& /*v*/) { l.index = -1; }},
      // Legitimate.
      {"no limit", "", [](auto& l, auto& v) { l.gated.limit_gate = one(v, 0, inf); }},
      {"any alpha", "", [](auto& l, auto& v) { l.gated.alpha = one(v, 0, -3); }},
      {"no beta", "", [](auto& l, auto& v) { l.gated.beta = one(v, 0, 0); }},
      {"eps 0", "",
       [](auto& l, auto& /*v*/) {
         l.norm = tail::RouteNorm{{}, true, 0};
       }},
      {"tiny", "", [](auto& l, auto& v) { one(nvfp4(l).g2_alphas, v, 0, 1e-40F); }},
  };
  return all;
}

TEST(AdoptValues, WhatNoModelComputesWithIsRefusedByName) {
  const checkpoint::Checkpoint from = small_model().open();
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto verdicts = thrown_on({2, 1, {}}, [&](const decode::Rank& rank) {
      tensor::HostMemory host;
      decode::Meter memory(host);
      decode::BuildOptions options;
      options.layers = {0};
      const auto held = decode::build(from, options, {rank.group, memory, rank.workers, {}});
      StockLayer layer;
      layer.top_k = 4;
      layer.experts = held.front().nvfp4();
      std::vector<float> values;
      // What is refused on one rank is refused on both. What is taken is given to both, which must be alike.
      if (rank.group.rank() == 1 || c.words.empty()) c.plant(layer, values);
      (void)decode::adopt({&layer, 1}, {16, 4}, "cpu", rank);
    });
    for (const Verdict& verdict : verdicts) {
      EXPECT_EQ(verdict.has_value(), !c.words.empty()) << (verdict ? verdict->text : "taken");
      if (!verdict) continue;
      EXPECT_EQ(verdict->kind, ErrorKind::usage);
      EXPECT_NE(verdict->text.find(c.words), std::string::npos) << verdict->text;
    }
  }
}

// BF16 experts have no scales, and the same parameters.
TEST(AdoptValues, OfBf16Layers) {
  const checkpoint::Checkpoint from = small_model().open();
  const auto verdicts = thrown_on({1, 1, {}}, [&](const decode::Rank& rank) {
    tensor::HostMemory host;
    decode::Meter memory(host);
    decode::BuildOptions options;
    options.layers = {1};
    const auto held = decode::build(from, options, {rank.group, memory, rank.workers, {}});
    StockLayer layer;
    layer.index = 1;
    layer.top_k = 4;
    layer.input = op::Input::bf16;
    layer.experts = held.front().bf16();
    std::vector<float> limits(16, 7.0F);
    limits[4] = 0;
    layer.gated.limit_up = limits;
    (void)decode::adopt({&layer, 1}, {16, 4}, "cpu", rank);
  });
  ASSERT_TRUE(verdicts[0]);
  EXPECT_EQ(verdicts[0]->text,
            "layer 1: limit_up of expert 4 is 0, wanted a positive number (inf: no limit)");
}

}  // namespace
}  // namespace kerf::test
