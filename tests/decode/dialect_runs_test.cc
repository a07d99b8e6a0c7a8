// Checkpoints in every dialect, from files to output rows: the one-hot one's rows are known exactly, and a
// synthetic one's are those of its own dialect, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kerf/checkpoint/dialect.h"
#include "kerf/decode/gated.h"
#include "kerf/tools/synth.h"
#include "kerf/tools/verify.h"
#include "tests/decode/support.h"
#include "tests/support/dialects.h"
#include "tests/support/test_env.h"

namespace kerf::test {
namespace {

using checkpoint::Checkpoint;
using checkpoint::ExpertKind;

// All but gpt-oss's, which is a model with another activation: below.
std::vector<std::string> with_plain_swiglu() {
  std::vector<std::string> names = restated_names();
  std::erase(names, "gpt-oss");
  return names;
}

class DialectRuns : public testing::TestWithParam<std::string> {};

TEST_P(DialectRuns, RowsAreExactEverywhere) {
  const Onehot onehot = restated(Onehot(), GetParam());
  const TempDir dir;
  onehot.write(dir.path());
  const decode::LayerInputs in = onehot_tokens({0, 1, 2, 3, 3, -1}, {0.5F, 0.5F, 0.5F, 0.25F, 1, 9});
  for (const Placement& p : placements())
    for (const char* backend : {"reference", "cpu"}) {
      decode::LayerOptions options;
      options.backend = backend;
      EXPECT_EQ(widened(run_on(p, Checkpoint::open(dir.path()), in, options).y), onehot_rows(in))
          << p.label << " on " << backend;
    }
}

INSTANTIATE_TEST_SUITE_P(All, DialectRuns, testing::ValuesIn(with_plain_swiglu()), [](const auto& param) {
  std::string name = param.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

struct Synthesised {
  explicit Synthesised(const tools::SynthOptions& options) { tools::synth(dir.path(), options, Workers(2)); }
  TempDir dir;
};

tools::SynthOptions tiny(const std::string& dialect) {
  tools::SynthOptions o = tools::synth_defaults(tools::SynthModel::tiny);
  o.bf16_layers = {1};
  o.dialect = dialect;
  return o;
}

decode::LayerInputs some_tokens() {
  decode::LayerInputs in;
  in.rows_name = "x";
  in.routes_name = "topk_ids";
  in.tokens = 5;
  for (std::size_t i = 0; i < 5 * 256; ++i)
    in.x.push_back(numeric::f32_to_bf16(static_cast<float>((i * 37) % 101) / 50.0F - 1.0F));
  in.ids = {0, 7, 1, 6, 2, 5, 3, 4, 7, 0};
  in.weights = {0.5F, 0.5F, 0.7F, 0.3F, 1, 0.25F, 0.125F, 2, 0.9F, 0.1F};
  return in;
}

// What the op makes of each layer of a checkpoint.
std::vector<std::vector<std::uint16_t>> rows_of(const std::filesystem::path& path) {
  const Checkpoint from = Checkpoint::open(path);
  std::vector<std::vector<std::uint16_t>> out;
  for (const std::int64_t layer : from.moe_layers()) {
    decode::LayerOptions options;
    options.layer = layer;
    out.push_back(run_on(placements()[1], from, some_tokens(), options).y);
  }
  return out;
}

TEST(DialectSynth, RowsAreTheSameInEveryDialect) {
  const Synthesised own(tiny(""));
  const auto wanted = rows_of(own.dir.path());
  ASSERT_EQ(wanted.size(), 2U);
  EXPECT_NE(wanted[0], wanted[1]);
  for (const checkpoint::Dialect& d : checkpoint::dialects()) {
    const Synthesised other(tiny(std::string(d.name)));
    EXPECT_TRUE(tools::verify(Checkpoint::open(other.dir.path()), Workers(1)).faults.empty()) << d.name;
    if (d.alternating) continue;  // a model with another activation
    EXPECT_EQ(rows_of(other.dir.path()), wanted) << d.name;
  }
  tools::SynthOptions f4 = tiny("");
  f4.f4 = true;
  EXPECT_EQ(rows_of(Synthesised(f4).dir.path()), wanted);
}

// The experts of gpt-oss's dialect, too: all bytes and scales are those of the others.
TEST(DialectSynth, ExpertsAreTheSameInEveryDialect) {
  const Synthesised own(tiny(""));
  const Checkpoint a = Checkpoint::open(own.dir.path());
  for (const checkpoint::Dialect& d : checkpoint::dialects()) {
    const Synthesised other(tiny(std::string(d.name)));
    const Checkpoint b = Checkpoint::open(other.dir.path());
    for (const std::int64_t l : {0, 1}) {
      EXPECT_EQ(b.layer(l).kind(), l == 1 ? ExpertKind::bf16 : ExpertKind::nvfp4);
      for (std::int64_t e = 0; e < a.config().experts; ++e) {
        const checkpoint::ExpertViews u = a.layer(l).expert(e);
        const checkpoint::ExpertViews v = b.layer(l).expert(e);
        for (const auto& [x, y] : {std::pair{u.gate, v.gate},
                                   {u.gate_sf, v.gate_sf},
                                   {u.up, v.up},
                                   {u.up_sf, v.up_sf},
                                   {u.down, v.down},
                                   {u.down_sf, v.down_sf}})
          EXPECT_TRUE(std::ranges::equal(x.bytes, y.bytes)) << d.name << " " << l << " " << e;
      }
    }
    checkpoint::Faults faults;
    const checkpoint::LayerScales s = a.layer(0).scales(faults);
    const checkpoint::LayerScales t = b.layer(0).scales(faults);
    EXPECT_EQ(s.ws2_gate, t.ws2_gate) << d.name;
    EXPECT_EQ(s.ws2_up, t.ws2_up) << d.name;
    EXPECT_EQ(s.ws2_down, t.ws2_down) << d.name;
    EXPECT_EQ(s.in13, t.in13) << d.name;
    EXPECT_EQ(s.in2, t.in2) << d.name;
  }
}

TEST(DialectSynth, WeightOnlyHasNoInputScales) {
  for (const char* dialect : {"per-expert", "fused", "compressed-tensors"}) {
    tools::SynthOptions o = tiny(dialect);
    o.weight_only = true;
    const Synthesised made(o);
    checkpoint::Faults faults;
    EXPECT_TRUE(Checkpoint::open(made.dir.path()).layer(0).scales(faults).weight_only) << dialect;
    EXPECT_TRUE(faults.empty()) << faults.text();
  }
}

TEST(DialectSynth, WhatCannotBeWrittenIsRefused) {
  tools::SynthOptions muse = tools::synth_defaults(tools::SynthModel::muse_spark);
  for (const char* dialect : {"llama4", "gpt-oss", "w1-w3-w2", "gguf"}) {
    muse.dialect = dialect;
    EXPECT_TRUE(tools::unsupported(muse)) << dialect;
  }
  muse.dialect = "per-expert";
  EXPECT_FALSE(tools::unsupported(muse));
  tools::SynthOptions turned = tiny("llama4");
  turned.f4 = true;
  EXPECT_TRUE(tools::unsupported(turned));
}

// gpt-oss's activation. BF16 experts of the one-hot checkpoint: gate is 36 and up 6 * U on real values, so h
// = (min(6U, 7) + 1) * 7 * sigmoid(1.702 * 7), and a row holds half of it.
TEST(Swiglu, TheModelsLimitAlphaAndBetaReachTheOp) {
  const Onehot onehot = restated(Onehot({.layers = {ExpertKind::bf16}, .shards = 1}), "gpt-oss");
  const TempDir dir;
  onehot.write(dir.path());
  const Checkpoint from = Checkpoint::open(dir.path());
  EXPECT_EQ(from.config().swiglu.limit, 7.0);
  const decode::LayerInputs in = onehot_tokens({1, -1}, {1, 0});
  const double glu = 7.0 / (1.0 + std::exp(-1.702 * 7.0));
  for (const char* backend : {"reference", "cpu"}) {
    decode::LayerOptions options;
    options.backend = backend;
    const std::vector<float> y = widened(run_on(placements()[1], from, in, options).y);
    for (std::size_t h = 0; h < 256; ++h) {
      // onehot_output is 108 U: what it has there tells U.
      const double u = onehot_output(1)[h] / 108.0;
      const double wanted = 0.5 * (std::min(6.0 * u, 7.0) + 1.0) * glu;
      // h and the row are rounded to bf16: 2^-9 each.
      EXPECT_NEAR(y[h], wanted, wanted * 0x1p-7) << backend << " " << h;
    }
  }
}

// NVFP4: on raw accumulators. Whatever the scales, what the op computes on them is the same on real values.
TEST(Swiglu, LimitsAndBetaAreDividedByWhatMakesRealValues) {
  checkpoint::LayerScales scales;
  scales.ws2_gate = {0.5F, 2.0F, 3.0F};
  scales.ws2_up = {0.25F, 4.0F, 5.0F};
  scales.ws2_down = {1, 1, 1};
  scales.in13 = 0.125F;
  scales.in2 = 7.0F;
  const checkpoint::SwigluConfig model{1.702, 1.0, 7.0};
  const decode::SwigluValues quantised(model, scales, op::Input::nvfp4, 1, 2);
  EXPECT_THAT(quantised.all().alpha, testing::ElementsAre(1.702F, 1.702F));
  EXPECT_THAT(quantised.all().limit_gate, testing::ElementsAre(7.0F / 0.25F, 7.0F / 0.375F));
  EXPECT_THAT(quantised.all().limit_up, testing::ElementsAre(7.0F / 0.5F, 7.0F / 0.625F));
  EXPECT_THAT(quantised.all().beta, testing::ElementsAre(1.0F / 0.5F, 1.0F / 0.625F));
  const decode::SwigluValues weight_only(model, scales, op::Input::bf16, 0, 1);
  EXPECT_THAT(weight_only.all().limit_gate, testing::ElementsAre(14.0F));
  EXPECT_THAT(weight_only.all().beta, testing::ElementsAre(4.0F));
  const decode::SwigluValues plain({}, scales, op::Input::nvfp4, 0, 3);
  EXPECT_TRUE(plain.all().alpha.empty() && plain.all().beta.empty() && plain.all().limit_gate.empty() &&
              plain.all().limit_up.empty());
  scales.ws2_up[0] = 1e-45F;
  EXPECT_THROW(decode::SwigluValues(model, scales, op::Input::bf16, 0, 1), Error);
}

// Real values are the same in EP and TP, and the same as BF16 experts' within what NVFP4 rounds.
TEST(Swiglu, Nvfp4ExpertsHaveItToo) {
  Onehot bf16 = restated(Onehot({.layers = {ExpertKind::bf16}, .shards = 1}), "gpt-oss");
  Onehot nvfp4 = restated(Onehot(), "gpt-oss");
  // Intermediates are at most 56 now, not 1296.
  nvfp4.set_f32(nvfp4.layer_name("mlp.experts.down_proj_input_scale"), 56.0F / 2688.0F);
  const TempDir a;
  const TempDir b;
  bf16.write(a.path());
  nvfp4.write(b.path());
  const decode::LayerInputs in = onehot_tokens({0, -1, 2, 3}, {1, 0, 0.5F, 0.5F});
  const std::vector<float> wanted = widened(run_on(placements()[0], Checkpoint::open(a.path()), in).y);
  for (const Placement& p : placements()) {
    const std::vector<float> y = widened(run_on(p, Checkpoint::open(b.path()), in).y);
    // An intermediate is rounded to e2m1 under a block scale of e4m3: at most a sixth and a sixteenth off.
    for (std::size_t i = 0; i < y.size(); ++i)
      EXPECT_NEAR(y[i], wanted[i], std::abs(wanted[i]) * 0.25) << p.label;
  }
}

// Llama-4 multiplies the experts' input by the weights; kerf multiplies the output, which is another model.
TEST(Llama4, WeightsOnTheInputAreRefusedUnlessTheyAreOne) {
  Onehot onehot = restated(Onehot(), "llama4");
  onehot.config["model_type"] = R"("llama4_text")";
  onehot.config["norm_topk_prob"] = "false";
  const TempDir dir;
  onehot.write(dir.path());
  const Checkpoint from = Checkpoint::open(dir.path());
  EXPECT_THAT(from.notes(), testing::Contains(testing::HasSubstr("multiply the experts' input")));
  const decode::LayerInputs scaled = onehot_tokens({0, 1}, {1, 1});
  EXPECT_EQ(widened(run_on(placements()[0], from, scaled).y), onehot_rows(scaled));
  const auto refused = [&](const decode::LayerInputs& in) {
    return thrown_on({2, 1, {}},
                     [&](const decode::Rank& rank) { (void)decode::run_layer(from, {}, in, rank); });
  };
  expect_all_refuse(refused(onehot_tokens({0, 1}, {0.5F, 1})), ErrorKind::unsupported, {"topk_weights of 1"});
  decode::LayerInputs logits = scaled;
  logits.routes_name = "router_logits";
  logits.ids.clear();
  logits.weights.clear();
  logits.logits = {1, 2, 3, 4};
  expect_all_refuse(refused(logits), ErrorKind::unsupported, {"llama-4", "input", "top 2"});
}

}  // namespace
}  // namespace kerf::test
