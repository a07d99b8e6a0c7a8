#include "src/step_inputs.h"

#include <fmt/format.h>

#include "src/bind.h"

namespace kerf::python {

namespace {

using tensor::Dtype;

template <typename T>
const T* address(const Argument& argument) {
  return argument.given() ? argument.as<T>().data() : nullptr;
}

// The same arrays where they lie on a device: all of them do, on the experts' own.
std::optional<decode::DeviceStepTensors> on_device(const Resident& resident, std::size_t position,
                                                   const Inputs& in) {
  const std::int64_t layer = resident.get().layers()[position].index;
  std::optional<int> where;
  for (const Argument* argument :
       {&in.x, &in.a, &in.a_sf, &in.ids, &in.weights, &in.logits, &in.bias, &in.out}) {
    if (!argument->given()) continue;
    if (where && (*where == host_memory) != !argument->on_device())
      wants(layer, "its arrays lie on a device and in the host's memory, wanted all of them in one");
    if (argument->on_device() && argument->device() != resident.device_number())
      wants(layer, fmt::format("its arrays lie on CUDA device {}, the experts on {}", argument->device(),
                               resident.device_number()));
    where = argument->device();
  }
  if (!where || *where == host_memory) return std::nullopt;
  decode::DeviceStepTensors out;
  out.x = address<std::uint16_t>(in.x);
  out.a = address<std::uint8_t>(in.a);
  out.a_sf = address<std::uint8_t>(in.a_sf);
  out.ids = address<std::int32_t>(in.ids);
  out.weights = address<float>(in.weights);
  if (in.logits.given()) {
    out.router = &resident.router();
    out.logits = address<float>(in.logits);
    out.bias = in.bias.given() ? address<float>(in.bias) : resident.bias_on_device(position);
  }
  if (in.out.given()) out.out = in.out.writable<std::uint16_t>().data();
  return out;
}

}  // namespace

void wants(std::int64_t layer, const std::string& words) {
  throw Error(ErrorKind::usage, fmt::format("a step of layer {}: {}", layer, words));
}

Sizes sizes_of(const decode::Layer& layer) {
  return {layer.bound().shape().hidden, layer.bound().top_k(), layer.bound().num_experts()};
}

Inputs inputs_of(const Resident& resident, std::size_t position, const Handed& handed, bool here) {
  const bool device = here && resident.has_device_steps();
  const decode::Layer& layer = resident.get().layers()[position];
  const Sizes sizes = sizes_of(layer);
  Inputs in;
  std::int64_t tokens = any_size;
  if (handed.x.is_none() == handed.a.is_none())
    wants(layer.index, "x, or a and a_sf, wanted: one of the two");
  if (!handed.x.is_none() && !handed.a_sf.is_none()) wants(layer.index, "a_sf goes with a, not with x");
  if (!handed.x.is_none()) {
    in.x = Argument(handed.x,
                    {.name = "x", .dtype = Dtype::bf16, .shape = {any_size, sizes.hidden}, .device = device});
    tokens = in.x.size(0);
  } else {
    in.a = Argument(
        handed.a, {.name = "a", .dtype = Dtype::u8, .shape = {any_size, sizes.hidden / 2}, .device = device});
    tokens = in.a.size(0);
    in.a_sf = Argument(
        handed.a_sf,
        {.name = "a_sf", .dtype = Dtype::f8_e4m3, .shape = {tokens, sizes.hidden / 16}, .device = device});
  }
  if (handed.ids.is_none() == handed.logits.is_none())
    wants(layer.index, "ids and weights, or logits, wanted: one of the two");
  if (!handed.ids.is_none() && !handed.bias.is_none())
    wants(layer.index, "bias goes with logits, not with ids and weights");
  if (!handed.logits.is_none() && !handed.weights.is_none())
    wants(layer.index, "weights go with ids, not with logits");
  if (!handed.ids.is_none()) {
    in.ids = Argument(handed.ids,
                      {.name = "ids", .dtype = Dtype::i32, .shape = {tokens, sizes.top_k}, .device = device});
    in.weights =
        Argument(handed.weights,
                 {.name = "weights", .dtype = Dtype::f32, .shape = {tokens, sizes.top_k}, .device = device});
  } else {
    in.logits =
        Argument(handed.logits,
                 {.name = "logits", .dtype = Dtype::f32, .shape = {tokens, sizes.experts}, .device = device});
    in.bias = optional_argument(
        handed.bias, {.name = "bias", .dtype = Dtype::f32, .shape = {sizes.experts}, .device = device});
  }
  in.out = optional_argument(
      handed.out, {.name = "out", .dtype = Dtype::bf16, .shape = {tokens, sizes.hidden}, .device = device},
      true);

  decode::StepInputs& step = in.step;
  step.tokens = tokens;
  in.device = on_device(resident, position, in);
  if (in.device) return in;
  step.x = in.x.as<std::uint16_t>();
  step.a = in.a.as<std::uint8_t>();
  step.a_sf = in.a_sf.as<std::uint8_t>();
  step.ids = in.ids.as<std::int32_t>();
  step.weights = in.weights.as<float>();
  if (in.logits.given()) {
    step.router = &resident.router();
    step.logits = in.logits.as<float>();
    step.bias = in.bias.given() ? in.bias.as<float>() : resident.bias(position);
  }
  if (in.out.given()) step.out = in.out.writable<std::uint16_t>();
  return in;
}

std::optional<tail::Kind> tail_of(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  for (const tail::Kind kind : {tail::Kind::fast, tail::Kind::exact})
    if (*name == tail::name(kind)) return kind;
  throw Error(ErrorKind::usage, fmt::format("tail is '{}', wanted fast or exact", *name));
}

decode::StackStep device_step(const Resident& resident, std::size_t position, decode::Mode mode,
                              std::optional<tail::Kind> tail, std::int64_t tokens) {
  const decode::Layer& layer = resident.get().layers()[position];
  if (!layer.runs(mode))
    throw Error(ErrorKind::usage,
                fmt::format("layer {} has no experts for {} steps", layer.index, decode::name(mode)));
  return {mode, tokens, tail.value_or(resident.get().plan().tail.kind)};
}

nb::object result(nb::handle out, std::span<const std::uint16_t> rows, std::int64_t tokens,
                  std::int64_t width) {
  if (!out.is_none()) return nb::borrow(out);
  const Array fresh(tensor::Dtype::bf16, {tokens, width});
  std::copy(rows.begin(), rows.end(), fresh.writable<std::uint16_t>().begin());
  return nb::cast(fresh);
}

}  // namespace kerf::python
