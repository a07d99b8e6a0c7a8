// Runtimes that are filled anew, for tests: what they give, where their values lie, and weights to fill them
// with.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/decode/inputs.h"
#include "kerf/decode/runtime.h"
#include "kerf/tools/synth.h"
#include "tests/decode/support.h"
#include "tests/support/test_env.h"

namespace kerf::test {

// One model, with weights by number.
class Weights {
 public:
  explicit Weights(tools::SynthOptions options, std::uint64_t number) {
    options.seed = number;
    tools::synth(dir_.path(), options, Workers(1));
  }
  [[nodiscard]] checkpoint::Checkpoint open() const { return checkpoint::Checkpoint::open(dir_.path()); }
  [[nodiscard]] const std::filesystem::path& path() const { return dir_.path(); }

 private:
  TempDir dir_;
};

// A small model with a norm and a block; layer 1 has BF16 experts.
inline tools::SynthOptions spark_options() {
  tools::SynthOptions o = tools::synth_defaults(tools::SynthModel::muse_spark);
  o.experts = 8;
  o.hidden = 128;
  o.intermediate = 256;
  o.layers = 3;
  o.top_k = 4;
  o.bf16_layers = {1};
  return o;
}

inline decode::StepInputs step_of(const decode::Inputs& in, const routing::Router& router) {
  if (in.logits.empty()) return {in.tokens, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
  return {in.tokens, in.x, {}, {}, {}, {}, &router, in.logits, {}};
}

using Bits = std::vector<std::uint16_t>;

// Every kind of step that a layer has, at a few numbers of tokens, one after another.
inline Bits steps_of(const decode::Runtime& runtime, std::size_t position) {
  Bits out;
  const auto add = [&](std::span<const std::uint16_t> rows) {
    out.insert(out.end(), rows.begin(), rows.end());
  };
  const decode::Layer& layer = runtime.layers()[position];
  const op::RoutedExperts& bound = layer.bound();
  for (const std::int64_t tokens : {1, 3, 8}) {
    const decode::Inputs in = decode::make_inputs(1, layer.index, tokens, layer.kind,
                                                  {bound.num_experts(), bound.shape().hidden, bound.top_k()});
    for (const decode::Mode mode : {decode::Mode::ep, decode::Mode::tp}) {
      if (!layer.runs(mode)) continue;
      for (const tail::Kind kind : {tail::Kind::fast, tail::Kind::exact})
        if (kind == tail::Kind::fast || runtime.plan().tail.kind == kind)
          add(runtime.execute(position, mode, step_of(in, runtime.router()), kind));
      if (!runtime.blocks().empty())
        add(runtime.execute_block(
            position, mode, tokens,
            decode::unit_rows(7, tokens, runtime.blocks()[position].weights.model_hidden())));
    }
  }
  return out;
}

inline std::vector<Bits> steps_of(const decode::Runtime& runtime) {
  std::vector<Bits> out;
  for (std::size_t i = 0; i < runtime.layers().size(); ++i) out.push_back(steps_of(runtime, i));
  return out;
}

// Where everything lies that a step, a plan or a captured graph may refer to.
inline std::vector<const void*> addresses_of(const decode::Runtime& runtime) {
  std::vector<const void*> out;
  const auto nvfp4 = [&](const layout::Nvfp4View& v) {
    for (const auto* t : {&v.w13, &v.w13_sf, &v.w2, &v.w2_sf, &v.g1_alphas, &v.g1_scale_c, &v.g2_alphas,
                          &v.a1_gscale, &v.a2_gscale})
      out.push_back(t->bytes.data());
  };
  for (const decode::Layer& layer : runtime.layers()) {
    out.push_back(&layer);
    out.push_back(layer.ep.get());
    out.push_back(layer.tp.get());
    if (layer.ep != nullptr && layer.kind == checkpoint::ExpertKind::nvfp4) nvfp4(layer.nvfp4());
    if (layer.kind == checkpoint::ExpertKind::bf16)
      out.insert(out.end(), {layer.bf16().w13.bytes.data(), layer.bf16().w2.bytes.data()});
    if (layer.sliced) nvfp4(layer.sliced->view());
    if (layer.norm) out.push_back(layer.norm->gain.data());
    const op::GatedParameters own = layer.own_gated.all();
    for (const auto& values : {own.alpha, own.beta, own.limit_gate, own.limit_up})
      out.push_back(values.data());
  }
  for (const decode::LayerBlock& b : runtime.blocks()) {
    for (const auto* t : {&b.gate, &b.bias, &b.pre, &b.post}) out.push_back(t->bytes().data());
    if (b.weights.pool) out.push_back(b.weights.pool->norm.gain.data());
  }
  const decode::Plan& plan = runtime.plan();
  for (const auto* t : {&plan.workspace, &plan.rows, &plan.sums, &plan.codes, &plan.code_scales, &plan.out})
    out.push_back(t->bytes().data());
  return out;
}

// Everything of a layer that a refill writes, byte for byte.
inline std::vector<std::byte> contents_of(const decode::Runtime& runtime, std::size_t position) {
  std::vector<std::byte> out;
  const auto add = [&](std::span<const std::byte> bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
  };
  const auto nvfp4 = [&](const layout::Nvfp4View& v) {
    for (const auto* t : {&v.w13, &v.w13_sf, &v.w2, &v.w2_sf, &v.g1_alphas, &v.g1_scale_c, &v.g2_alphas,
                          &v.a1_gscale, &v.a2_gscale})
      add(t->bytes);
  };
  const decode::Layer& layer = runtime.layers()[position];
  if (layer.ep != nullptr && layer.kind == checkpoint::ExpertKind::nvfp4) nvfp4(layer.nvfp4());
  if (layer.kind == checkpoint::ExpertKind::bf16) {
    add(layer.bf16().w13.bytes);
    add(layer.bf16().w2.bytes);
  }
  if (layer.sliced) nvfp4(layer.sliced->view());
  if (layer.norm) add(std::as_bytes(std::span(layer.norm->gain)));
  return out;
}

}  // namespace kerf::test
