// A step in its two halves: this rank's rows before the tail, and the tail; and the all-reduce apart from
// tails.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "src/bind.h"
#include "src/collected.h"
#include "src/step_inputs.h"

namespace kerf::python {

namespace {

using tensor::Dtype;

// A rank's rows before the tail, in the runtime's own buffers, with the arrays that they refer to.
struct Rows {
  Resident* resident = nullptr;
  nb::object runtime;  // which keeps it
  std::int64_t layer = 0;
  decode::Mode mode = decode::Mode::ep;
  Inputs inputs;
  nb::object given;  // the rows as the caller has them
  op::Unfinalized out;
  std::uint64_t step = 0;
  // On a device, instead of `out`.
  std::optional<decode::DeviceUnfinalized> on_device{};
  decode::StackStep device_step{};

  void require_there() const {
    if (!runtime.is_valid() || step != resident->steps())
      throw Error(
          ErrorKind::usage,
          fmt::format("the rows of layer {} are gone: a later step of this runtime has overwritten them",
                      layer));
  }
  template <typename T>
  [[nodiscard]] Array array(Dtype dtype, const tensor::Shape& shape, const T* values) const {
    require_there();
    const auto bytes = static_cast<std::size_t>(tensor::bytes_of(dtype, shape));
    return Array::of({dtype, shape, {reinterpret_cast<const std::byte*>(values), bytes}}, runtime,
                     on_device ? resident->device_number() : host_memory);
  }
  [[nodiscard]] Array rows() const {
    if (on_device) {
      const tensor::Shape shape{on_device->row_count, on_device->hidden};
      return on_device->sums != nullptr ? array(Dtype::f32, shape, on_device->sums)
                                        : array(Dtype::bf16, shape, on_device->rows);
    }
    const auto values = static_cast<std::int64_t>(out.sums.empty() ? out.rows.size() : out.sums.size());
    const tensor::Shape shape{values / out.hidden, out.hidden};
    return out.sums.empty() ? array(Dtype::bf16, shape, out.rows.data())
                            : array(Dtype::f32, shape, out.sums.data());
  }
  // [T, K] of the routes.
  [[nodiscard]] tensor::Shape routes() const {
    return on_device ? tensor::Shape{on_device->tokens, on_device->top_k}
                     : tensor::Shape{out.tokens, out.top_k};
  }
  // For the collector of cycles.
  int show(visitproc visit, void* arg) const {
    for (const nb::object* object : {&runtime, &given}) Py_VISIT(object->ptr());
    return 0;
  }
  void let_go() {
    for (nb::object* object : {&runtime, &given}) object->reset();
  }
  // [T, H] of the result.
  [[nodiscard]] tensor::Shape result() const {
    return on_device ? tensor::Shape{on_device->tokens, on_device->hidden}
                     : tensor::Shape{out.tokens, out.hidden};
  }
};

Rows routed_experts(Resident& resident, nb::handle layer, nb::handle x, nb::handle a, nb::handle a_sf,
                    nb::handle ids, nb::handle weights, nb::handle logits, nb::handle bias,
                    const std::optional<StepPlan>& plan, const std::optional<std::string>& mode_name,
                    const std::optional<std::string>& tail_name, std::uintptr_t stream) {
  const std::int64_t index = resident.index_of(layer);
  const std::size_t position = resident.position(index);
  Rows rows{&resident,
            nb::find(resident),
            index,
            resident.mode(mode_name),
            inputs_of(resident, position, {x, a, a_sf, ids, weights, logits, bias, nb::none()}, true),
            nb::borrow(x.is_none() ? a : x),
            {},
            0};
  const decode::Runtime& runtime = resident.get();
  const decode::Layer& bound = runtime.layers()[position];
  if (plan && mode_name && plan->mode != rows.mode)
    throw Error(ErrorKind::usage,
                fmt::format("mode is '{}', the plan is for {} steps", *mode_name, decode::name(plan->mode)));
  if (plan) {
    rows.mode = plan->mode;
    if (plan->layer != index || plan->tokens != rows.inputs.step.tokens)
      throw Error(ErrorKind::usage,
                  fmt::format("the plan is for {} tokens of layer {}, the step has {} of layer {}",
                              plan->tokens, plan->layer, rows.inputs.step.tokens, index));
  }
  const std::optional<tail::Kind> tail = tail_of(tail_name);
  if (rows.inputs.device) {
    const Unlocked released;
    const InUse use(resident);
    rows.device_step = device_step(resident, position, rows.mode, tail, rows.inputs.step.tokens);
    rows.step = resident.next();
    rows.on_device = resident.device_steps().enqueue_experts(position, rows.device_step, *rows.inputs.device,
                                                             stream_at(stream));
  } else {
    const Unlocked released;
    const InUse use(resident);
    if (!bound.runs(rows.mode))
      throw Error(ErrorKind::usage,
                  fmt::format("layer {} has no experts for {} steps", index, decode::name(rows.mode)));
    require(decode::refused(bound, runtime.plan(), rows.inputs.step));
    rows.step = resident.next();
    const Workers& workers = resident.rank().workers;
    rows.out = plan
                   ? decode::run_experts(bound, rows.mode, rows.inputs.step, runtime.plan(), workers, tail)
                   : decode::run_public_op(bound, rows.mode, rows.inputs.step, runtime.plan(), workers, tail);
  }
  return rows;
}

nb::object tail_step(Resident& resident, const Rows& rows, nb::handle out, std::uintptr_t stream) {
  rows.require_there();
  if (rows.resident != &resident) throw Error(ErrorKind::usage, "these rows are another runtime's");
  const std::size_t position = resident.position(rows.layer);
  const decode::Layer& layer = resident.get().layers()[position];
  const tensor::Shape shape = rows.result();
  const Argument to = optional_argument(out,
                                        {.name = "out",
                                         .dtype = Dtype::bf16,
                                         .shape = {shape[0], shape[1]},
                                         .device = rows.on_device.has_value()},
                                        true);
  if (rows.on_device) {
    if (to.device() != resident.device_number())
      wants(rows.layer,
            fmt::format("its rows lie on CUDA device {}: out wanted there, too", resident.device_number()));
    {
      const Unlocked released;
      const InUse use(resident);
      resident.device_steps().enqueue_tail(position, rows.device_step, to.writable<std::uint16_t>().data(),
                                           stream_at(stream));
    }
    return nb::borrow(out);
  }
  std::span<const std::uint16_t> ended;
  {
    const Unlocked released;
    const InUse use(resident);
    const bool exact = !rows.out.sums.empty() || resident.get().plan().tail.kind == tail::Kind::exact;
    ended = decode::run_tail(layer, rows.mode, rows.out, resident.get().plan(), resident.rank(),
                             exact ? tail::Kind::exact : tail::Kind::fast,
                             to.given() ? to.writable<std::uint16_t>() : std::span<std::uint16_t>());
  }
  if (!out.is_none()) return nb::borrow(out);
  return nb::cast(Array::of({Dtype::bf16, shape, std::as_bytes(ended)}, nb::find(resident), host_memory));
}

// The sum of arrays on a device: the engine's own call is handed them as they are; else the device's stack
// adds up.
void sum_on_device(Resident& resident, const Argument& mine, const Argument& sum, std::uintptr_t stream) {
  const std::size_t values = mine.as<std::uint16_t>().size();
  if (sum.device() != mine.device())
    throw Error(ErrorKind::usage, "x lies on a device: out wanted there, too");
  const nb::object* engine = resident.engine_sum();
  {
    const Unlocked released;
    const InUse use(resident);
    const comm::SumOrder order = resident.get().sum_order(values);
    if (engine == nullptr)
      return resident.device_steps().enqueue_sum(order, mine.as<std::uint16_t>().data(),
                                                 sum.writable<std::uint16_t>().data(),
                                                 static_cast<std::int64_t>(values), stream_at(stream));
  }
  (*engine)(Array(mine.view(), nullptr, false, mine.device()),
            Array(sum.view(), nullptr, true, sum.device()));
}

nb::object all_reduce(Resident& resident, nb::handle x, nb::handle out, std::uintptr_t stream) {
  const bool device = resident.has_device_steps() || resident.engine_sum() != nullptr;
  const Argument mine(x,
                      {.name = "x", .dtype = Dtype::bf16, .shape = {any_size, any_size}, .device = device});
  nb::object to = nb::borrow(out);
  if (to.is_none() && !mine.on_device()) to = nb::cast(Array(Dtype::bf16, mine.view().shape));
  const Argument sum(
      to, {.name = "out", .dtype = Dtype::bf16, .shape = {mine.size(0), mine.size(1)}, .device = device},
      true);
  if (mine.on_device()) {
    sum_on_device(resident, mine, sum, stream);
    return to;
  }
  if (sum.on_device()) throw Error(ErrorKind::usage, "out lies on a device: x wanted there, too");
  {
    const Unlocked released;
    const InUse use(resident);
    resident.get().all_reduce(mine.as<std::uint16_t>(), sum.writable<std::uint16_t>());
  }
  return to;
}

}  // namespace

void bind_rows(nb::module_& m, nb::class_<Resident>& runtime) {
  nb::class_<Rows>(
      m, "Unfinalized", nb::type_slots(collected<Rows>().data()),
      "One rank's rows before the tail, in the runtime's buffers: gone with the next step, after which "
      "reading them is a UsageError.")
      .def_prop_ro(
          "rows", [](const Rows& r) { return r.rows(); },
          "[R, H] bf16; of sliced experts with an exact tail f32 sums before g2_alpha. Rows that the map "
          "does not "
          "name are undefined.")
      .def_prop_ro(
          "weights",
          [](const Rows& r) {
            return r.array(Dtype::f32, r.routes(), r.on_device ? r.on_device->weights : r.out.weights.data());
          },
          "[T, K] f32, the routes' weights.")
      .def_prop_ro(
          "map",
          [](const Rows& r) {
            return r.array(Dtype::i32, r.routes(), r.on_device ? r.on_device->map : r.out.map.data());
          },
          "[T, K] i32, the row of route t * K + k; -1: not on this rank.")
      .def_prop_ro(
          "on_device", [](const Rows& r) { return r.on_device.has_value(); },
          "Whether they lie on a CUDA device, written in the order of the stream that they were made on.")
      .def_prop_ro(
          "shape", [](const Rows& r) { return std::pair(r.result()[0], r.result()[1]); },
          "(T, H): of what the tail makes of them.")
      .def_ro("given", &Rows::given, "The step's x or a, as it was handed in.")
      .def_prop_ro(
          "layer", [](const Rows& r) { return r.layer; }, "The layer's index.")
      .def_prop_ro(
          "mode", [](const Rows& r) { return std::string(decode::name(r.mode)); }, "\"ep\" or \"tp\".");
  const auto none = [](const char* name) { return nb::arg(name).none(); };
  runtime
      .def("routed_experts", &routed_experts, nb::arg("layer"), none("x"), none("a"), none("a_sf"),
           none("ids"), none("weights"), none("logits"), none("bias"), none("plan"), none("mode"),
           none("tail"), nb::arg("stream") = 0)
      .def("tail", &tail_step, nb::arg("rows"), none("out"), nb::arg("stream") = 0)
      .def("all_reduce", &all_reduce, none("x"), none("out"), nb::arg("stream") = 0);
}

}  // namespace kerf::python
