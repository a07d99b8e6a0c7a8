// Steps: inputs by DLPack, outputs into the caller's arrays or the runtime's own buffers, the interpreter's
// lock released.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "src/bind.h"
#include "src/callers.h"
#include "src/collected.h"
#include "src/step_inputs.h"

namespace kerf::python {

namespace {

using tensor::Dtype;

// Enqueued on the caller's stream; the interpreter's lock is not held.
void run_on_device(Resident& resident, std::size_t position, decode::Mode mode,
                   std::optional<tail::Kind> tail, const Inputs& in, std::uintptr_t stream) {
  resident.device_steps().enqueue(position, device_step(resident, position, mode, tail, in.step.tokens),
                                  *in.device, stream_at(stream));
}

nb::object execute(Resident& resident, nb::handle layer, nb::handle x, nb::handle a, nb::handle a_sf,
                   nb::handle ids, nb::handle weights, nb::handle logits, nb::handle bias,
                   const std::optional<std::string>& mode_name, const std::optional<std::string>& tail_name,
                   nb::handle out, std::uintptr_t stream) {
  const std::int64_t index = resident.index_of(layer);
  const std::size_t position = resident.position(index);
  const Inputs in = inputs_of(resident, position, {x, a, a_sf, ids, weights, logits, bias, out}, true);
  const decode::Mode mode = resident.mode(mode_name);
  const std::optional<tail::Kind> tail = tail_of(tail_name);
  if (in.device) {
    if (out.is_none()) wants(index, "its arrays lie on a device: out wanted there, too");
    const Unlocked released;
    const InUse use(resident);
    resident.next();
    run_on_device(resident, position, mode, tail, in, stream);
  }
  if (in.device) return nb::borrow(out);
  std::span<const std::uint16_t> rows;
  {
    const Unlocked released;
    const InUse use(resident);
    resident.next();
    rows = resident.get().execute(position, mode, in.step, tail);
  }
  return result(out, rows, in.step.tokens, sizes_of(resident.get().layers()[position]).hidden);
}

nb::object execute_unprepared(Resident& resident, nb::handle layer, nb::handle x, nb::handle a,
                              nb::handle a_sf, nb::handle ids, nb::handle weights, nb::handle logits,
                              nb::handle bias, nb::handle out) {
  const std::int64_t index = resident.index_of(layer);
  const std::size_t position = resident.position(index);
  Inputs in = inputs_of(resident, position, {x, a, a_sf, ids, weights, logits, bias, out});
  in.step.out = {};
  const std::int64_t hidden = sizes_of(resident.get().layers()[position]).hidden;
  const Array fresh(Dtype::bf16, {out.is_none() ? in.step.tokens : 0, hidden});
  {
    const Unlocked released;
    const InUse use(resident);
    const std::vector<std::uint16_t> rows = resident.get().execute_unprepared(position, in.step);
    std::copy(rows.begin(), rows.end(),
              (out.is_none() ? fresh.writable<std::uint16_t>() : in.out.writable<std::uint16_t>()).begin());
  }
  return out.is_none() ? nb::cast(fresh) : nb::borrow(out);
}

nb::object execute_block(Resident& resident, nb::handle layer, nb::handle x,
                         const std::optional<std::string>& mode_name,
                         const std::optional<std::string>& tail_name, nb::handle out) {
  const std::int64_t index = resident.index_of(layer);
  const std::size_t position = resident.position(index);
  if (resident.get().blocks().empty())
    throw Error(ErrorKind::usage, "a runtime that was built without blocks around the experts");
  const std::int64_t width = resident.get().blocks()[position].weights.model_hidden();
  const Argument rows_in(x, {"x", Dtype::bf16, {any_size, width}});
  const Argument to = optional_argument(out, {"out", Dtype::bf16, {rows_in.size(0), width}}, true);
  const decode::Mode mode = resident.mode(mode_name);
  const std::optional<tail::Kind> tail = tail_of(tail_name);
  std::span<const std::uint16_t> rows;
  {
    const Unlocked released;
    const InUse use(resident);
    resident.next();
    rows = resident.get().execute_block(position, mode, rows_in.size(0), rows_in.as<std::uint16_t>(), tail);
    if (to.given()) std::copy(rows.begin(), rows.end(), to.writable<std::uint16_t>().begin());
  }
  return result(out, rows, rows_in.size(0), width);
}

std::optional<StepPlan> plan(const Resident& resident, nb::handle layer, nb::handle tokens,
                             const std::optional<std::string>& mode_name) {
  const std::int64_t index = resident.index_of(layer);
  const std::size_t position = resident.position(index);
  const decode::Mode mode = resident.mode(mode_name);
  const decode::Layer& bound = resident.get().layers()[position];
  const decode::Plan& plan = resident.get().plan();
  const std::int64_t count = whole("tokens", tokens, 0, plan.max_tokens);
  if (!bound.runs(mode))
    throw Error(ErrorKind::usage,
                fmt::format("layer {} has no experts for {} steps", index, decode::name(mode)));
  const std::optional<op::Tactic> tactic = plan.body_tactic(bound, mode, count);
  if (!tactic) return std::nullopt;
  return StepPlan{index, count, mode, *tactic};
}

// A step whose arrays are bound once: a call of it allocates nothing.
class Bound {
 public:
  // `stream`: what says the current stream's handle, for arrays on a device; None otherwise.
  Bound(Resident& resident, std::size_t position, decode::Mode mode, std::optional<tail::Kind> tail,
        Inputs inputs, nb::object out, nb::object stream)
      : resident_(&resident),
        runtime_(nb::find(resident)),
        position_(position),
        mode_(mode),
        tail_(tail),
        inputs_(std::move(inputs)),
        out_(std::move(out)),
        stream_(std::move(stream)) {}

  nb::handle operator()(std::optional<std::uintptr_t> given) const {
    if (!runtime_.is_valid()) throw Error(ErrorKind::usage, "this step has been let go of");
    std::uintptr_t stream = given.value_or(0);
    if (!given && inputs_.device && !stream_.is_none()) stream = nb::cast<std::uintptr_t>(stream_());
    {
      const Unlocked released;
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
  // For the collector of cycles.
  int show(visitproc visit, void* arg) const {
    for (const nb::object* object : {&runtime_, &out_, &stream_}) Py_VISIT(object->ptr());
    return 0;
  }
  void let_go() {
    for (nb::object* object : {&runtime_, &out_, &stream_}) object->reset();
  }

 private:
  Resident* resident_;
  nb::object runtime_;  // which keeps it
  std::size_t position_;
  decode::Mode mode_;
  std::optional<tail::Kind> tail_;
  Inputs inputs_;
  nb::object out_;
  nb::object stream_;
};

Bound bind(Resident& resident, nb::handle layer, nb::handle x, nb::handle a, nb::handle a_sf, nb::handle ids,
           nb::handle weights, nb::handle logits, nb::handle bias,
           const std::optional<std::string>& mode_name, const std::optional<std::string>& tail_name,
           nb::handle out, nb::handle stream) {
  const std::int64_t index = resident.index_of(layer);
  const std::size_t position = resident.position(index);
  Inputs in = inputs_of(resident, position, {x, a, a_sf, ids, weights, logits, bias, out}, true);
  if (out.is_none()) wants(index, "out wanted: a bound step allocates nothing");
  if (!in.device) require(decode::refused(resident.get().layers()[position], resident.get().plan(), in.step));
  return {resident,      position,        resident.mode(mode_name), tail_of(tail_name),
          std::move(in), nb::borrow(out), nb::borrow(stream)};
}

void warm_up(Resident& resident) {
  const Unlocked released;
  const InUse use(resident);
  resident.next();
  resident.get().warm_up();
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
  nb::class_<Bound>(
      m, "Step", nb::type_slots(collected<Bound>().data()),
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
      .def("execute_block", &execute_block, nb::arg("layer"), none("x"), none("mode"), none("tail"),
           none("out"))
      .def("bind", &bind, nb::arg("layer"), none("x"), none("a"), none("a_sf"), none("ids"), none("weights"),
           none("logits"), none("bias"), none("mode"), none("tail"), none("out"), none("stream"))
      .def("plan", &plan, nb::arg("layer"), nb::arg("tokens"), none("mode"));
}

}  // namespace kerf::python
