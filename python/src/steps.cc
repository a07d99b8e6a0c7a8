// Steps: inputs by DLPack, outputs into the caller's arrays or the runtime's own buffers, the interpreter's
// lock released.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "src/bind.h"
#include "src/runtime.h"

namespace kerf::python {

namespace {

using tensor::Dtype;
using SharedRuntime = std::shared_ptr<Resident>;

struct Sizes {
  std::int64_t hidden, top_k, experts;
};

Sizes sizes_of(const decode::Layer& layer) {
  return {layer.bound().shape().hidden, layer.bound().top_k(), layer.bound().num_experts()};
}

// A step's arrays, held, and as the library takes them: all in the host's memory, or all in a device's.
struct Inputs {
  Argument x, a, a_sf, ids, weights, logits, bias, out;
  decode::StepInputs step;
  std::optional<decode::DeviceStepTensors> device{};
};

// Arrays as Python hands them over; None where there is none.
struct Handed {
  nb::handle x, a, a_sf, ids, weights, logits, bias, out;
};

[[noreturn]] void wants(std::int64_t layer, const char* words) {
  throw Error(ErrorKind::usage, fmt::format("a step of layer {}: {}", layer, words));
}

template <typename T>
const T* address(const Argument& argument) {
  return argument.given() ? argument.as<T>().data() : nullptr;
}

// The same arrays where they lie on a device: all of them do.
std::optional<decode::DeviceStepTensors> on_device(const Resident& resident, std::size_t position,
                                                   const Inputs& in) {
  bool any = false;
  bool all = true;
  for (const Argument* argument :
       {&in.x, &in.a, &in.a_sf, &in.ids, &in.weights, &in.logits, &in.bias, &in.out}) {
    if (!argument->given()) continue;
    any = any || argument->on_device();
    all = all && argument->on_device();
  }
  if (!any) return std::nullopt;
  if (!all)
    wants(resident.get().layers()[position].index,
          "its arrays lie on a device and in the host's memory, wanted all of them in one");
  decode::DeviceStepTensors out;
  out.x = address<std::uint16_t>(in.x);
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

// `here`: whether the step can be a device's.
Inputs inputs_of(const Resident& resident, std::size_t position, const Handed& handed, bool here = false) {
  const bool device = here && resident.has_device_steps();
  const decode::Layer& layer = resident.get().layers()[position];
  const Sizes sizes = sizes_of(layer);
  Inputs in;
  std::int64_t tokens = any_size;
  if (handed.x.is_none() == handed.a.is_none())
    wants(layer.index, "x, or a and a_sf, wanted: one of the two");
  if (!handed.x.is_none()) {
    in.x = Argument(handed.x,
                    {.name = "x", .dtype = Dtype::bf16, .shape = {any_size, sizes.hidden}, .device = device});
    tokens = in.x.size(0);
  } else {
    in.a = Argument(handed.a, {"a", Dtype::u8, {any_size, sizes.hidden / 2}});
    tokens = in.a.size(0);
    in.a_sf = Argument(handed.a_sf, {"a_sf", Dtype::f8_e4m3, {tokens, sizes.hidden / 16}});
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

// The array that the caller gave, or a view of the runtime's own buffer.
nb::object result(const SharedRuntime& resident, nb::handle out, std::span<const std::uint16_t> rows,
                  std::int64_t tokens, std::int64_t width) {
  if (!out.is_none()) return nb::borrow(out);
  return nb::cast(Array({Dtype::bf16, {tokens, width}, std::as_bytes(rows)}, resident));
}

// A CUDA stream's handle, as Python's libraries pass it: a number.
cuda::StreamHandle stream_at(std::uintptr_t number) { return reinterpret_cast<cuda::StreamHandle>(number); }

// Enqueued on the caller's stream; the interpreter's lock is not held.
void run_on_device(Resident& resident, std::size_t position, decode::Mode mode,
                   std::optional<tail::Kind> tail, const Inputs& in, std::uintptr_t stream) {
  const decode::Layer& layer = resident.get().layers()[position];
  if (!layer.runs(mode))
    throw Error(ErrorKind::usage,
                fmt::format("layer {} has no experts for {} steps", layer.index, decode::name(mode)));
  resident.device_steps().enqueue(position,
                                  {mode, in.step.tokens, tail.value_or(resident.get().plan().tail.kind)},
                                  *in.device, stream_at(stream));
}

nb::object execute(const SharedRuntime& resident, std::int64_t index, nb::handle x, nb::handle a,
                   nb::handle a_sf, nb::handle ids, nb::handle weights, nb::handle logits, nb::handle bias,
                   const std::optional<std::string>& mode_name, const std::optional<std::string>& tail_name,
                   nb::handle out, std::uintptr_t stream) {
  const std::size_t position = resident->position(index);
  const Inputs in = inputs_of(*resident, position, {x, a, a_sf, ids, weights, logits, bias, out}, true);
  const decode::Mode mode = resident->mode(mode_name);
  const std::optional<tail::Kind> tail = tail_of(tail_name);
  if (in.device) {
    if (out.is_none()) wants(index, "its arrays lie on a device: out wanted there, too");
    const nb::gil_scoped_release released;
    const InUse use(*resident);
    resident->next();
    run_on_device(*resident, position, mode, tail, in, stream);
  }
  if (in.device) return nb::borrow(out);
  std::span<const std::uint16_t> rows;
  {
    const nb::gil_scoped_release released;
    const InUse use(*resident);
    resident->next();
    rows = resident->get().execute(position, mode, in.step, tail);
  }
  return result(resident, out, rows, in.step.tokens, sizes_of(resident->get().layers()[position]).hidden);
}

nb::object execute_unprepared(const SharedRuntime& resident, std::int64_t index, nb::handle x, nb::handle a,
                              nb::handle a_sf, nb::handle ids, nb::handle weights, nb::handle logits,
                              nb::handle bias, nb::handle out) {
  const std::size_t position = resident->position(index);
  Inputs in = inputs_of(*resident, position, {x, a, a_sf, ids, weights, logits, bias, out});
  in.step.out = {};
  const std::int64_t hidden = sizes_of(resident->get().layers()[position]).hidden;
  const Array fresh(Dtype::bf16, {out.is_none() ? in.step.tokens : 0, hidden});
  {
    const nb::gil_scoped_release released;
    const InUse use(*resident);
    const std::vector<std::uint16_t> rows = resident->get().execute_unprepared(position, in.step);
    std::copy(rows.begin(), rows.end(),
              (out.is_none() ? fresh.writable<std::uint16_t>() : in.out.writable<std::uint16_t>()).begin());
  }
  return out.is_none() ? nb::cast(fresh) : nb::borrow(out);
}

nb::object execute_block(const SharedRuntime& resident, std::int64_t index, nb::handle x,
                         const std::optional<std::string>& mode_name,
                         const std::optional<std::string>& tail_name, nb::handle out) {
  const std::size_t position = resident->position(index);
  if (resident->get().blocks().empty())
    throw Error(ErrorKind::usage, "a runtime that was built without blocks around the experts");
  const std::int64_t width = resident->get().blocks()[position].weights.model_hidden();
  const Argument rows_in(x, {"x", Dtype::bf16, {any_size, width}});
  const Argument to = optional_argument(out, {"out", Dtype::bf16, {rows_in.size(0), width}}, true);
  const decode::Mode mode = resident->mode(mode_name);
  const std::optional<tail::Kind> tail = tail_of(tail_name);
  std::span<const std::uint16_t> rows;
  {
    const nb::gil_scoped_release released;
    const InUse use(*resident);
    resident->next();
    rows = resident->get().execute_block(position, mode, rows_in.size(0), rows_in.as<std::uint16_t>(), tail);
    if (to.given()) std::copy(rows.begin(), rows.end(), to.writable<std::uint16_t>().begin());
  }
  return result(resident, out, rows, rows_in.size(0), width);
}

// What a step resolves to, before anything is routed.
struct StepPlan {
  std::int64_t layer = 0;
  std::int64_t tokens = 0;
  decode::Mode mode = decode::Mode::ep;
  op::Tactic tactic;
};

std::optional<StepPlan> plan(const Resident& resident, std::int64_t index, std::int64_t tokens,
                             const std::optional<std::string>& mode_name) {
  const std::size_t position = resident.position(index);
  const decode::Mode mode = resident.mode(mode_name);
  const decode::Layer& layer = resident.get().layers()[position];
  const decode::Plan& plan = resident.get().plan();
  if (tokens < 0 || tokens > plan.max_tokens)
    throw Error(ErrorKind::usage,
                fmt::format("a step of {} tokens, prepared for at most {}", tokens, plan.max_tokens));
  if (!layer.runs(mode))
    throw Error(ErrorKind::usage,
                fmt::format("layer {} has no experts for {} steps", index, decode::name(mode)));
  const std::optional<op::Tactic> tactic = plan.body_tactic(layer, mode, tokens);
  if (!tactic) return std::nullopt;
  return StepPlan{index, tokens, mode, *tactic};
}

// A rank's rows before the tail, in the runtime's own buffers, with the arrays that they refer to.
struct Rows {
  SharedRuntime resident;
  std::int64_t layer = 0;
  decode::Mode mode = decode::Mode::ep;
  Inputs inputs;
  op::Unfinalized out;
  std::uint64_t step = 0;

  void require_there() const {
    if (step != resident->steps())
      throw Error(
          ErrorKind::usage,
          fmt::format("the rows of layer {} are gone: a later step of this runtime has overwritten them",
                      layer));
  }
  template <typename T>
  [[nodiscard]] Array array(Dtype dtype, const tensor::Shape& shape, std::span<const T> values) const {
    require_there();
    return {{dtype, shape, std::as_bytes(values)}, resident};
  }
  [[nodiscard]] std::int64_t count() const {
    return static_cast<std::int64_t>(out.sums.empty() ? out.rows.size() : out.sums.size()) / out.hidden;
  }
};

Rows routed_experts(const SharedRuntime& resident, std::int64_t index, nb::handle x, nb::handle a,
                    nb::handle a_sf, nb::handle ids, nb::handle weights, nb::handle logits, nb::handle bias,
                    const std::optional<StepPlan>& plan, const std::optional<std::string>& mode_name,
                    const std::optional<std::string>& tail_name) {
  const std::size_t position = resident->position(index);
  Rows rows{resident,
            index,
            resident->mode(mode_name),
            inputs_of(*resident, position, {x, a, a_sf, ids, weights, logits, bias, nb::none()}),
            {},
            0};
  const decode::Runtime& runtime = resident->get();
  const decode::Layer& layer = runtime.layers()[position];
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
  {
    const nb::gil_scoped_release released;
    const InUse use(*resident);
    if (!layer.runs(rows.mode))
      throw Error(ErrorKind::usage,
                  fmt::format("layer {} has no experts for {} steps", index, decode::name(rows.mode)));
    require(decode::refused(layer, runtime.plan(), rows.inputs.step));
    rows.step = resident->next();
    const Workers& workers = resident->rank().workers;
    rows.out = plan
                   ? decode::run_experts(layer, rows.mode, rows.inputs.step, runtime.plan(), workers, tail)
                   : decode::run_public_op(layer, rows.mode, rows.inputs.step, runtime.plan(), workers, tail);
  }
  return rows;
}

nb::object tail_step(const SharedRuntime& resident, const Rows& rows, nb::handle out) {
  rows.require_there();
  if (rows.resident != resident) throw Error(ErrorKind::usage, "these rows are another runtime's");
  const std::size_t position = resident->position(rows.layer);
  const decode::Layer& layer = resident->get().layers()[position];
  const Argument to = optional_argument(out, {"out", Dtype::bf16, {rows.out.tokens, rows.out.hidden}}, true);
  std::span<const std::uint16_t> ended;
  {
    const nb::gil_scoped_release released;
    const InUse use(*resident);
    const bool exact = !rows.out.sums.empty() || resident->get().plan().tail.kind == tail::Kind::exact;
    ended = decode::run_tail(layer, rows.mode, rows.out, resident->get().plan(), resident->rank(),
                             exact ? tail::Kind::exact : tail::Kind::fast,
                             to.given() ? to.writable<std::uint16_t>() : std::span<std::uint16_t>());
  }
  return result(resident, out, ended, rows.out.tokens, rows.out.hidden);
}

nb::object all_reduce(const SharedRuntime& resident, nb::handle x, nb::handle out) {
  const Argument mine(x, {"x", Dtype::bf16, {any_size, any_size}});
  nb::object to = nb::borrow(out);
  if (to.is_none()) to = nb::cast(Array(Dtype::bf16, mine.view().shape));
  const Argument sum(to, {"out", Dtype::bf16, {mine.size(0), mine.size(1)}}, true);
  {
    const nb::gil_scoped_release released;
    const InUse use(*resident);
    resident->get().all_reduce(mine.as<std::uint16_t>(), sum.writable<std::uint16_t>());
  }
  return to;
}

// A step whose arrays are bound once: a call of it allocates nothing.
class Bound {
 public:
  // `stream`: what says the current stream's handle, for arrays on a device; None otherwise.
  Bound(SharedRuntime resident, std::size_t position, decode::Mode mode, std::optional<tail::Kind> tail,
        Inputs inputs, nb::object out, nb::object stream)
      : resident_(std::move(resident)),
        position_(position),
        mode_(mode),
        tail_(tail),
        inputs_(std::move(inputs)),
        out_(std::move(out)),
        stream_(std::move(stream)) {}

  nb::handle operator()(std::optional<std::uintptr_t> given) const {
    std::uintptr_t stream = given.value_or(0);
    if (!given && inputs_.device && !stream_.is_none()) stream = nb::cast<std::uintptr_t>(stream_());
    {
      const nb::gil_scoped_release released;
      const InUse use(*resident_);
      resident_->next();
      if (inputs_.device)
        run_on_device(*resident_, position_, mode_, tail_, inputs_, stream);
      else
        (void)resident_->get().execute(position_, mode_, inputs_.step, tail_);
    }
    return out_;
  }
  [[nodiscard]] bool on_device() const { return inputs_.device.has_value(); }
  [[nodiscard]] const nb::object& out() const { return out_; }

 private:
  SharedRuntime resident_;
  std::size_t position_;
  decode::Mode mode_;
  std::optional<tail::Kind> tail_;
  Inputs inputs_;
  nb::object out_;
  nb::object stream_;
};

Bound bind(const SharedRuntime& resident, std::int64_t index, nb::handle x, nb::handle a, nb::handle a_sf,
           nb::handle ids, nb::handle weights, nb::handle logits, nb::handle bias,
           const std::optional<std::string>& mode_name, const std::optional<std::string>& tail_name,
           nb::handle out, nb::handle stream) {
  const std::size_t position = resident->position(index);
  Inputs in = inputs_of(*resident, position, {x, a, a_sf, ids, weights, logits, bias, out}, true);
  if (!in.device)
    require(decode::refused(resident->get().layers()[position], resident->get().plan(), in.step));
  return {resident,      position,        resident->mode(mode_name), tail_of(tail_name),
          std::move(in), nb::borrow(out), nb::borrow(stream)};
}

void warm_up(const SharedRuntime& resident) {
  const nb::gil_scoped_release released;
  const InUse use(*resident);
  resident->next();
  resident->get().warm_up();
}

}  // namespace

void bind_steps(nb::module_& m, nb::class_<Resident>& runtime) {
  nb::class_<StepPlan>(m, "StepPlan", "What a step resolves to: its tactic, for which a body is prepared.")
      .def_ro("layer", &StepPlan::layer, "The layer's index.")
      .def_ro("tokens", &StepPlan::tokens, "T.")
      .def_prop_ro(
          "mode", [](const StepPlan& p) { return std::string(decode::name(p.mode)); }, "\"ep\" or \"tp\".")
      .def_prop_ro(
          "tactic", [](const StepPlan& p) { return std::pair(p.tactic.tile, p.tactic.config); },
          "(tile, config): token rows a tile, kernel variant (-1: the op's default).")
      .def("__repr__", [](const StepPlan& p) {
        return fmt::format("kerf.StepPlan(layer {}, {} tokens, {}, tile {}, config {})", p.layer, p.tokens,
                           decode::name(p.mode), p.tactic.tile, p.tactic.config);
      });
  nb::class_<Rows>(
      m, "Unfinalized",
      "One rank's rows before the tail, in the runtime's buffers: gone with the next step, after which "
      "reading them is a UsageError.")
      .def_prop_ro(
          "rows",
          [](const Rows& r) {
            const tensor::Shape shape{r.count(), r.out.hidden};
            return r.out.sums.empty() ? r.array(Dtype::bf16, shape, r.out.rows)
                                      : r.array(Dtype::f32, shape, r.out.sums);
          },
          "[R, H] bf16; of sliced experts with an exact tail f32 sums before g2_alpha. Rows that the map "
          "does not "
          "name are undefined.")
      .def_prop_ro(
          "weights",
          [](const Rows& r) {
            return r.array(Dtype::f32, {r.out.tokens, r.out.top_k}, r.out.weights);
          },
          "[T, K] f32, the routes' weights.")
      .def_prop_ro(
          "map",
          [](const Rows& r) {
            return r.array(Dtype::i32, {r.out.tokens, r.out.top_k}, r.out.map);
          },
          "[T, K] i32, the row of route t * K + k; -1: not on this rank.")
      .def_prop_ro(
          "layer", [](const Rows& r) { return r.layer; }, "The layer's index.")
      .def_prop_ro(
          "mode", [](const Rows& r) { return std::string(decode::name(r.mode)); }, "\"ep\" or \"tp\".");
  nb::class_<Bound>(
      m, "Step",
      "A step whose arrays are bound: a call runs it on what they hold then, and allocates nothing.")
      .def("__call__", &Bound::operator(), nb::arg("stream").none() = nb::none(),
           nb::sig("def __call__(self, stream: int | None = None) -> object"),
           "Collective: runs the step and returns `out`. Arrays on a device: enqueues it on the CUDA stream "
           "with this "
           "handle, and returns before it has run.")
      .def_prop_ro("on_device", &Bound::on_device, "Whether the arrays lie on a device.")
      .def_prop_ro("out", &Bound::out, "Where the output goes, [T, H] bf16.");

  const auto none = [](const char* name) { return nb::arg(name).none(); };
  runtime.def("warm_up", &warm_up)
      .def("execute", &execute, nb::arg("layer"), none("x"), none("a"), none("a_sf"), none("ids"),
           none("weights"), none("logits"), none("bias"), none("mode"), none("tail"), none("out"),
           nb::arg("stream") = 0)
      .def("execute_unprepared", &execute_unprepared, nb::arg("layer"), none("x"), none("a"), none("a_sf"),
           none("ids"), none("weights"), none("logits"), none("bias"), none("out"))
      .def("execute_block", &execute_block, nb::arg("layer"), nb::arg("x"), none("mode"), none("tail"),
           none("out"))
      .def("bind", &bind, nb::arg("layer"), none("x"), none("a"), none("a_sf"), none("ids"), none("weights"),
           none("logits"), none("bias"), none("mode"), none("tail"), nb::arg("out"), none("stream"))
      .def("plan", &plan, nb::arg("layer"), nb::arg("tokens"), none("mode"))
      .def("routed_experts", &routed_experts, nb::arg("layer"), none("x"), none("a"), none("a_sf"),
           none("ids"), none("weights"), none("logits"), none("bias"), none("plan"), none("mode"),
           none("tail"))
      .def("tail", &tail_step, nb::arg("rows"), none("out"))
      .def("all_reduce", &all_reduce, nb::arg("x"), none("out"));
}

}  // namespace kerf::python
