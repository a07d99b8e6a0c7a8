#include <algorithm>

#include "kerf/base/format.h"
#include "kerf/decode/device_sizes.h"
#include "kerf/decode/internal/device_rank.h"

namespace kerf::decode::internal {

namespace {

using tensor::Dtype;
using tensor::Tensor;

template <typename T>
Tensor uploaded(tensor::Memory& memory, Dtype dtype, std::span<const T> values) {
  Tensor out(memory, dtype, {static_cast<std::int64_t>(values.size())});
  cuda::copy(out.bytes().data(), values.data(), values.size_bytes());
  return out;
}

template <typename T>
void put(const Tensor& to, std::span<const T> values, std::string_view what) {
  if (values.size_bytes() > to.bytes().size())
    fail(ErrorKind::usage, "{} of {} bytes for a stack that has room for {}", what, values.size_bytes(),
         to.bytes().size());
  cuda::copy(to.bytes().data(), values.data(), values.size_bytes());
}

DeviceExtent extent_of(const op::RoutedExperts& experts, std::int64_t tokens) {
  return {tokens, experts.num_experts(), experts.shape().hidden, experts.top_k()};
}

DeviceLayer device_layer(const Layer& layer, std::int64_t tokens, tensor::Memory& memory) {
  const DeviceLayerShapes shapes(extent_of(layer.bound(), tokens), layer.input == op::Input::nvfp4,
                                 layer.norm && !layer.norm->gain.empty(), layer.sliced.has_value());
  DeviceLayer out;
  out.layer = &layer;
  out.refills = layer.refills;
  const float scale = layer.input == op::Input::nvfp4 ? layer.input_scale() : 1.0F;
  if (layer.input == op::Input::nvfp4)
    out.gs = uploaded(memory, Dtype::f32, std::span<const float>(&scale, 1));
  if (layer.norm) out.gain = uploaded(memory, Dtype::bf16, std::span<const std::uint16_t>(layer.norm->gain));
  out.x = Tensor(memory, Dtype::bf16, shapes.x);
  out.logits = Tensor(memory, Dtype::f32, shapes.logits);
  out.bias = Tensor(memory, Dtype::f32, shapes.bias);
  out.ids = Tensor(memory, Dtype::i32, shapes.ids);
  out.weights = Tensor(memory, Dtype::f32, shapes.weights);
  out.out = Tensor(memory, Dtype::bf16, shapes.out);
  return out;
}

template <typename T>
T* pointer(const Tensor& t) {
  return t.bytes().empty() ? nullptr : t.as<T>().data();
}

}  // namespace

const op::sm90::DeviceExperts& device_experts(const op::RoutedExperts& experts) {
  const auto* found = dynamic_cast<const op::sm90::DeviceExperts*>(&experts);
  if (found == nullptr) fail(ErrorKind::bug, "experts of a device's stack are bound to another backend");
  return *found;
}

DeviceRank::Shape DeviceRank::shape_of(const Layer& layer, const StackStep& step) const {
  op::Tactic tactic =
      plan_.body_tactic(layer, step.mode, step.tokens).value_or(op::Tactic{op::tiles.front(), -1});
  // Nobody has chosen.
  if (tactic.config < 0) tactic = device_experts(layer.experts(step.mode)).default_tactic(step.tokens);
  return {tactic, layer.experts(step.mode).metadata_shape(step.tokens, tactic.tile)};
}

DeviceRank::DeviceRank(std::span<const Layer* const> layers, const Plan& plan,
                       std::span<const StackStep> steps, const Rank& rank)
    : plan_(plan), memory_(rank.weights()) {
  std::int64_t tokens = 0;
  for (const StackStep& step : steps) tokens = std::max(tokens, step.tokens);
  if (tokens > plan.max_tokens)
    fail(ErrorKind::usage, "a stack of {} tokens, planned for at most {}", tokens, plan.max_tokens);
  // Whatever the steps' tactics: so much can be said beforehand (device_sizes.h).
  std::vector<DeviceKind> kinds;
  bool sums = false;
  for (const Layer* layer : layers) {
    layers_.push_back(device_layer(*layer, tokens, memory_));
    for (const op::RoutedExperts* bound : {layer->ep.get(), layer->tp.get()}) {
      if (bound == nullptr) continue;
      (void)device_experts(*bound);
      const DeviceKind kind{arithmetic_of(layer->kind, bound->input()), bound->shape()};
      if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
    }
    for (const StackStep& step : steps)
      sums = sums || (step.tail == tail::Kind::exact && layer->sliced_in(step.mode));
  }
  const DeviceStepShapes shapes(kinds, extent_of(layers.front()->bound(), tokens), sums);
  metadata_ = Tensor(memory_, Dtype::i32, shapes.metadata);
  codes_ = Tensor(memory_, Dtype::u8, shapes.codes);
  scales_ = Tensor(memory_, Dtype::f8_e4m3, shapes.scales);
  ids_ = Tensor(memory_, Dtype::i32, shapes.ids);
  weights_ = Tensor(memory_, Dtype::f32, shapes.weights);
  scratch_ = Tensor(memory_, Dtype::u8, shapes.scratch);
  counters_ = Tensor(memory_, Dtype::i32, shapes.counters);
  kept_ = Tensor(memory_, Dtype::u8, shapes.kept);
  cuda::zero(kept_.bytes().data(), kept_.bytes().size());
  rows_ = Tensor(memory_, Dtype::bf16, shapes.rows);
  if (sums) sums_ = Tensor(memory_, Dtype::f32, shapes.sums);
  partial_ = Tensor(memory_, Dtype::bf16, shapes.partial);
}

void DeviceRank::set_g2_alphas(std::size_t position, std::span<const float> all) {
  Tensor& to = layers_[position].g2_alphas;
  if (to.bytes().empty())
    to = uploaded(memory_, Dtype::f32, all);
  else
    put(to, all, "g2_alphas");
}

bool DeviceRank::outdated(std::size_t position) const {
  const DeviceLayer& l = layers_[position];
  return l.refills != l.layer->refills;
}

void DeviceRank::take_values(std::size_t position) {
  DeviceLayer& to = layers_[position];
  const Layer& layer = *to.layer;
  if (layer.input == op::Input::nvfp4) {
    const float scale = layer.input_scale();
    put(to.gs, std::span<const float>(&scale, 1), "the input's scale");
  }
  if (layer.norm) put(to.gain, std::span<const std::uint16_t>(layer.norm->gain), "the norm's gain");
  to.refills = layer.refills;
}

void DeviceRank::load(std::size_t position, const StepInputs& inputs) {
  DeviceLayer& to = layers_[position];
  if (!inputs.a.empty())
    fail(ErrorKind::unsupported, "a device's stack quantises its rows itself: give x, not a and a_sf");
  put(to.x, inputs.x, "x");
  to.router.reset();
  to.biased = !inputs.bias.empty();
  if (inputs.router != nullptr) {
    to.router = *inputs.router;
    put(to.logits, inputs.logits, "logits");
    put(to.bias, inputs.bias, "a bias");
  } else {
    put(to.ids, inputs.ids, "ids");
    put(to.weights, inputs.weights, "weights");
  }
}

bool DeviceRank::ends_tokens(std::size_t position, const StackStep& step) const {
  const Layer& layer = *layers_[position].layer;
  const Shape shape = shape_of(layer, step);
  return device_experts(layer.experts(step.mode)).ends_tokens(shape.metadata, shape.tactic);
}

DeviceStepTensors DeviceRank::loaded(std::size_t position) const {
  const DeviceLayer& l = layers_[position];
  DeviceStepTensors out;
  out.x = pointer<std::uint16_t>(l.x);
  if (l.router) {
    out.router = &*l.router;
    out.logits = pointer<float>(l.logits);
    out.bias = l.biased ? pointer<float>(l.bias) : nullptr;
  } else {
    out.ids = pointer<std::int32_t>(l.ids);
    out.weights = pointer<float>(l.weights);
  }
  out.out = pointer<std::uint16_t>(l.out);
  return out;
}

void DeviceRank::run_experts(std::size_t position, const StackStep& step, const DeviceStepTensors& tensors,
                             std::uint16_t* ended, cuda::StreamHandle stream) const {
  const DeviceLayer& l = layers_[position];
  const Layer& layer = *l.layer;
  const Shape shape = shape_of(layer, step);
  const op::sm90::DeviceExperts& experts = device_experts(layer.experts(step.mode));
  const std::int64_t hidden = experts.shape().hidden;
  const auto counters = static_cast<std::size_t>(experts.counter_words(shape.metadata));
  const bool quantised = layer.input == op::Input::nvfp4;

  op::sm90::RouteInputs in;
  in.router = tensors.router;
  in.logits = tensors.logits;
  in.bias = tensors.bias;
  in.bf16_weights = tensors.router != nullptr && layer.kind == checkpoint::ExpertKind::bf16;
  in.ids = tensors.ids;
  in.weights = tensors.weights;
  const bool given = quantised && tensors.a != nullptr;
  in.x = quantised && !given ? tensors.x : nullptr;
  in.gs = pointer<float>(l.gs);
  in.hidden = hidden;
  op::sm90::DeviceTokens tokens{step.tokens};
  if (quantised) {
    tokens.a = given ? tensors.a : pointer<std::uint8_t>(codes_);
    tokens.a_sf = given ? tensors.a_sf : pointer<std::uint8_t>(scales_);
  } else {
    tokens.x = tensors.x;
  }
  tokens.known_ids = in.ids;
  in.ahead = experts.ahead(tokens);
  op::sm90::RouteOutputs out;
  out.ids = pointer<std::int32_t>(ids_);
  out.weights = pointer<float>(weights_);
  out.metadata = metadata(shape.metadata);
  out.a = pointer<std::uint8_t>(codes_);
  out.a_sf = pointer<std::uint8_t>(scales_);
  out.counters = counters_.as<std::uint32_t>().first(counters);
  op::sm90::route(shape.metadata, in, out, stream);

  op::sm90::DeviceRows to{.tokens = ended};
  if (ended == nullptr) {
    const tail::DevicePart rows = part(position, step);
    if (rows.rows != nullptr) to.rows = pointer<std::uint16_t>(rows_);
    if (rows.sums != nullptr) to.sums = pointer<float>(sums_);
  }
  experts.run(tokens, shape.metadata, out.metadata, shape.tactic,
              {scratch_.bytes(), out.counters, kept_.bytes()}, to, stream);
}

DeviceUnfinalized DeviceRank::unfinalized(std::size_t position, const StackStep& step) const {
  const op::RoutedExperts& experts = layers_[position].layer->experts(step.mode);
  const tail::DevicePart rows = part(position, step);
  return {
      .tokens = step.tokens,
      .top_k = experts.top_k(),
      .hidden = experts.shape().hidden,
      .row_count = op::gemm2_rows(shape_of(*layers_[position].layer, step).metadata, experts.shape().hidden),
      .rows = rows.rows,
      .sums = rows.sums,
      .weights = weights(),
      .map = rows.map};
}

routing::Metadata DeviceRank::metadata(const routing::MetadataShape& shape) const {
  return routing::metadata_in(metadata_.as<std::int32_t>(), shape);
}

tail::DevicePart DeviceRank::part(std::size_t position, const StackStep& step) const {
  const Layer& layer = *layers_[position].layer;
  const routing::Metadata m = metadata(shape_of(layer, step).metadata);
  const bool sums = step.tail == tail::Kind::exact && layer.sliced_in(step.mode);
  return {sums ? nullptr : pointer<std::uint16_t>(rows_), sums ? pointer<float>(sums_) : nullptr,
          m.expanded_to_permuted.data()};
}

}  // namespace kerf::decode::internal
