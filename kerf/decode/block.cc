#include "kerf/decode/block.h"

#include <algorithm>
#include <array>
#include <span>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/base/text.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/router.h"
#include "kerf/numeric/bf16.h"

namespace kerf::decode {

namespace {

constexpr std::array<std::string_view, 3> names = {"none", "qwen3-moe", "muse-spark"};

// A file's tensor.
tensor::Tensor copied(tensor::Memory& memory, const tensor::StoredTensor& stored) {
  tensor::Tensor out(memory, stored.dtype, stored.shape);
  stored.source.read(0, out.bytes());
  return out;
}

// The same as f32.
tensor::Tensor widened(tensor::Memory& memory, const tensor::StoredTensor& stored) {
  tensor::Tensor as_stored = copied(memory, stored);
  if (stored.dtype == tensor::Dtype::f32) return as_stored;
  tensor::Tensor out(memory, tensor::Dtype::f32, stored.shape);
  const auto from = as_stored.as<const std::uint16_t>();
  std::transform(from.begin(), from.end(), out.as<float>().begin(), numeric::bf16_to_f32);
  return out;
}

block::Matrix matrix_of(const tensor::Tensor& t) {
  block::Matrix m{t.shape()[0], t.shape()[1], t.as<const std::uint16_t>()};
  if (t.view().dtype == tensor::Dtype::f32) m.values = t.as<const float>();
  return m;
}

tail::RouteNorm norm_of(const tensor::StoredTensor& stored, const checkpoint::PoolConfig& pool) {
  std::vector<std::uint16_t> offsets(static_cast<std::size_t>(stored.shape.elements()));
  stored.source.read(0, std::as_writable_bytes(std::span(offsets)));
  return {tail::effective_gain(offsets, static_cast<float>(pool.gain_center)), false,
          static_cast<float>(pool.norm_eps)};
}

LayerBlock build_block(const checkpoint::MoeLayer& from, const checkpoint::ModelConfig& config,
                       tensor::Memory& memory) {
  const checkpoint::BlockFiles files = from.block(config.pool.has_value());
  LayerBlock out;
  out.gate = copied(memory, files.gate);
  out.weights.gate = matrix_of(out.gate);
  out.weights.router = router_of(config);
  if (files.bias) {
    out.bias = widened(memory, *files.bias);
    out.weights.bias = out.bias.as<const float>();
  }
  if (config.pool) {
    out.pre = copied(memory, files.pre_proj);
    out.post = copied(memory, files.post_proj);
    out.weights.pool = {matrix_of(out.pre), norm_of(files.pre_norm, *config.pool), matrix_of(out.post)};
  }
  require(block::unsupported(out.weights));
  return out;
}

// What the config says against a kind.
Verdict other_model(const checkpoint::ModelConfig& config, BlockKind kind) {
  const auto mismatch = [&](const std::string& why) {
    return because(ErrorKind::unsupported, "a {} block around the experts of {}: {}", name(kind),
                   shown(config.architecture), why);
  };
  const bool muse = kind == BlockKind::muse_spark;
  if (muse && !config.pool) return mismatch("its config.json describes no Muse Spark model");
  if (!muse && config.pool) return mismatch("its config.json describes a Muse Spark model");
  if (!muse && config.post_norm) return mismatch("it has a norm after the experts");
  if (!muse && config.model_hidden != config.hidden)
    return mismatch(
        fmt::format("the model's width is {}, the experts' {}, and nothing leads from one to the other",
                    config.model_hidden, config.hidden));
  const std::string_view scoring = muse ? "sigmoid" : "softmax";
  if (config.router.scoring != scoring)
    return mismatch(fmt::format("its router scores by {}, wanted {}", config.router.scoring, scoring));
  if (config.shared_experts > 0)
    return mismatch(
        fmt::format("it has {} shared experts, which kerf does not compute", config.shared_experts));
  return std::nullopt;
}

}  // namespace

std::vector<std::string> block_names() { return {names.begin(), names.end()}; }

std::string_view name(BlockKind kind) { return names[static_cast<std::size_t>(kind)]; }

BlockKind block_kind(std::string_view name) {
  const auto* const found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    fail(ErrorKind::usage, "no block named '{}'; there are {}", name, fmt::join(names, ", "));
  return static_cast<BlockKind>(found - names.begin());
}

Verdict unsupported_block(const checkpoint::Checkpoint& from, std::span<const std::int64_t> layers,
                          BlockKind kind) {
  if (kind == BlockKind::none) return std::nullopt;
  if (Verdict v = other_model(from.config(), kind)) return v;
  return attempt([&] {
    (void)router_of(from.config());
    for (const std::int64_t index : layers) {
      const checkpoint::BlockFiles files = from.layer(index).block(from.config().pool.has_value());
      if (from.config().router.selection_bias && !files.bias)
        fail(ErrorKind::checkpoint, "layer {} lacks the tensor {}, which its router needs", index,
             from.layer(index).full_name(checkpoint::selection_bias_name));
      // Last: a misspelt name is first of all one that is missing.
      if (const std::string& why = from.layer(index).no_block(); !why.empty())
        fail(ErrorKind::unsupported, "layer {}: {}", index, why);
    }
  });
}

std::vector<LayerBlock> build_blocks(const checkpoint::Checkpoint& from, std::span<const std::int64_t> layers,
                                     BlockKind kind, const Rank& rank) {
  if (kind == BlockKind::none) return {};
  const FpGuard guard;  // gains
  std::vector<LayerBlock> out;
  if (checkpoint::Carrier* carrier = from.carrier()) {
    carrier->rehearse([&] {
      checkpoint::Faults dropped;
      for (const std::int64_t index : layers) from.layer(index).scan_block(dropped);
    });
    carrier->bring(false, "the blocks around the experts");
  }
  comm::agreed(rank.group, "building the blocks around the experts", [&] {
    require(unsupported_block(from, layers, kind));
    checkpoint::Faults faults;
    for (const std::string& taken : from.config().router.assumptions)
      rank.info(fmt::format("{}: {}", shown(from.config().architecture), taken));
    for (const std::int64_t index : layers) from.layer(index).scan_block(faults);
    require(faults.verdict());
    for (const std::int64_t index : layers)
      comm::in_context(fmt::format("layer {}", index),
                       [&] { out.push_back(build_block(from.layer(index), from.config(), rank.memory)); });
  });
  return out;
}

}  // namespace kerf::decode
