#include "src/runtime.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

#include "src/bind.h"
#include "src/callers.h"
#include "src/collected.h"
#include "src/step_inputs.h"

namespace kerf::python {

namespace {

using checkpoint::Checkpoint;
using tensor::Dtype;

// Values that the library keeps referring to, one a local expert.
std::span<const float> gated(nb::handle layer, const char* name, std::vector<Argument>& held) {
  const nb::object values = attribute_of(layer, name);
  if (values.is_none()) return {};
  held.emplace_back(values, Wanted{name, Dtype::f32, {any_size}});
  return held.back().as<float>();
}

// An attribute of a layer's; Error{usage} that names it, got and wanted.
template <typename T>
T attribute(nb::handle object, const char* name, const char* wanted) {
  const nb::object value = attribute_of(object, name);
  T out{};
  if (!nb::try_cast<T>(value, out))
    throw Error(ErrorKind::usage,
                fmt::format("{} is {}, wanted {}", name, nb::cast<std::string>(nb::repr(value)), wanted));
  return out;
}
bool flag(nb::handle object, const char* name) { return attribute<bool>(object, name, "True or False"); }
std::int64_t count(nb::handle object, const char* name) {
  return whole_attribute(object, name, -most_count, most_count);
}

std::optional<tail::RouteNorm> norm_of(nb::handle layer) {
  const nb::object norm = attribute_of(layer, "norm");
  if (norm.is_none()) return std::nullopt;
  tail::RouteNorm out;
  const nb::object gain = attribute_of(norm, "gain");
  if (!gain.is_none()) {
    const Argument values(gain, {"gain", Dtype::bf16, {any_size}});
    out.gain.assign(values.as<std::uint16_t>().begin(), values.as<std::uint16_t>().end());
  }
  out.eps = attribute<float>(norm, "eps", "a number");
  out.gain_before_norm = flag(norm, "gain_before_norm");
  return out;
}

EngineLayer engine_layer(nb::handle layer) {
  EngineLayer out;
  decode::StockLayer& stock = out.stock;
  stock.index = count(layer, "index");
  stock.top_k = count(layer, "top_k");
  stock.input = input_named(attribute<std::string>(layer, "act", "nvfp4 or bf16"));
  stock.finalises = flag(layer, "finalises");
  stock.captures_routes = flag(layer, "captures_routes");
  stock.norm = norm_of(layer);
  const nb::object experts = attribute_of(layer, "experts");
  if (!attribute_of(experts, "w13_sf").is_none()) {
    HeldNvfp4 held = held_nvfp4(experts);
    stock.experts = held.view;
    out.held = std::move(held.held);
  } else if (!attribute_of(experts, "w13").is_none()) {
    HeldBf16 held = held_bf16(experts);
    stock.experts = held.view;
    stock.input = op::Input::bf16;
    out.held = std::move(held.held);
  } else if (!experts.is_none()) {
    stock.experts = decode::OtherExperts{nb::cast<std::string>(nb::str(nb::type_name(experts.type())))};
  }
  stock.gated = {gated(layer, "alpha", out.held), gated(layer, "beta", out.held),
                 gated(layer, "limit_gate", out.held), gated(layer, "limit_up", out.held)};
  return out;
}

template <typename T>
void read_word(const nb::dict& words, const char* name, T& to) {
  if (!words.contains(name)) return;
  const nb::object value = words[name];
  try {
    to = nb::cast<T>(value);
  } catch (const std::bad_cast&) {
    throw Error(ErrorKind::usage, fmt::format("{} is {}, which is no value for it", name,
                                              nb::cast<std::string>(nb::repr(value))));
  }
}

BuildWords words_of(const nb::dict& words) {
  BuildWords out;
  read_word(words, "layers", out.layers);
  read_word(words, "expert_tp", out.expert_tp);
  read_word(words, "ep", out.ep);
  read_word(words, "tp", out.tp);
  read_word(words, "act", out.act);
  read_word(words, "backend", out.backend);
  read_word(words, "tail", out.tail);
  read_word(words, "block", out.block);
  read_word(words, "max_tokens", out.max_tokens);
  read_word(words, "threads", out.threads);
  read_word(words, "uneven", out.uneven);
  read_word(words, "pad", out.pad);
  read_word(words, "probe_limit", out.probe_limit);
  read_word(words, "all_reduce_width", out.all_reduce_width);
  read_word(words, "all_reduce_backend", out.all_reduce_backend);
  read_word(words, "all_reduce_tps", out.all_reduce_tps);
  return out;
}

// What `prepare` gives on this rank, read in `take`; what one rank is refused there, or its Python raises,
// all ranks are told, before any of them goes on.
void prepared(comm::Group& group, const char* what, nb::handle prepare,
              const std::function<void(nb::handle)>& take) {
  agreed(group, what, [&] { take(prepare()); });
}

// `prepare`: gives the checkpoint and the words.
std::shared_ptr<Resident> build(const std::shared_ptr<RankGroup>& group, nb::handle prepare, nb::handle log,
                                nb::handle progress, nb::handle all_reduce) {
  const RankGroup::Call inside(*group);
  std::shared_ptr<Resident> out;
  std::optional<Checkpoint> from;
  prepared(*inside, "preparing a runtime", prepare, [&](nb::handle given) {
    nb::dict words;
    std::tie(from, words) = nb::cast<std::pair<Checkpoint, nb::dict>>(given);
    if (!progress.is_none() && PyCallable_Check(progress.ptr()) == 0)
      throw Error(ErrorKind::usage,
                  fmt::format("progress is {}, wanted a callable with three arguments, or None",
                              nb::cast<std::string>(nb::repr(progress))));
    out.reset(new Resident(group, words_of(words), {nb::borrow(log), nb::borrow(all_reduce)}),
              Resident::End());
  });
  out->build(*from, progress);
  return out;
}

// `prepare`: gives the layers, E, K and the words.
std::shared_ptr<Resident> adopt(const std::shared_ptr<RankGroup>& group, nb::handle prepare, nb::handle log,
                                nb::handle all_reduce) {
  const RankGroup::Call inside(*group);
  std::shared_ptr<Resident> out;
  std::vector<EngineLayer> layers;
  decode::ModelSize model;
  prepared(*inside, "preparing a runtime", prepare, [&](nb::handle given) {
    const auto values = nb::cast<nb::tuple>(given);
    std::size_t place = 0;
    for (const nb::handle layer : nb::cast<nb::list>(values[0])) {
      if (attribute_of(layer, "top_k").is_none())
        throw Error(ErrorKind::usage, fmt::format("layers[{}] is {}, wanted a kerf.StockLayer", place,
                                                  nb::cast<std::string>(nb::repr(layer))));
      layers.push_back(engine_layer(layer));
      ++place;
    }
    model = {whole("experts", values[1], 1, most_count), whole("top_k", values[2], 1, most_count)};
    out.reset(new Resident(group, words_of(nb::cast<nb::dict>(values[3])),
                           {nb::borrow(log), nb::borrow(all_reduce)}),
              Resident::End());
  });
  out->adopt(std::move(layers), model);
  return out;
}

// The number of which this is the f32 reciprocal: rows that are quantised with it have the step's codes.
float reciprocal_of(float gs) {
  const float near = 1.0F / gs;
  for (const float s : {near, std::nextafter(near, 0.0F), std::nextafter(near, 2 * near)})
    if (1.0F / s == gs) return s;
  return near;
}

nb::dict layer_facts(const decode::Layer& layer) {
  const layout::ExpertsShape whole = layer.ep != nullptr ? layer.ep->shape() : layout::ExpertsShape{};
  nb::dict out;
  out["layer"] = layer.index;
  out["kind"] = layer.kind == checkpoint::ExpertKind::nvfp4 ? "nvfp4" : "bf16";
  out["act"] = layer.input == op::Input::nvfp4 ? "nvfp4" : "bf16";
  out["experts"] = layer.bound().num_experts();
  out["hidden"] = layer.bound().shape().hidden;
  out["intermediate"] = layer.width();
  out["top_k"] = layer.bound().top_k();
  out["stock_experts"] = whole.experts;
  out["expert_tp"] = layer.tp != nullptr;
  out["slice"] = layer.tp != nullptr ? nb::cast(layer.tp->shape().intermediate) : nb::none();
  out["first_expert"] = layer.bound().first_expert();
  if (layer.kind == checkpoint::ExpertKind::nvfp4) {
    out["a1_gscale"] = layer.input_scale();
    out["input_scale"] = reciprocal_of(layer.input_scale());
  }
  return out;
}

nb::dict facts(const Resident& resident) {
  const decode::Runtime& runtime = resident.get();
  nb::dict out;
  nb::list layers;
  for (const decode::Layer& layer : runtime.layers()) layers.append(layer_facts(layer));
  out["layers"] = layers;
  const decode::Footprint& f = runtime.footprint();
  nb::dict memory;
  memory["stock"] = f.stock;
  memory["sliced"] = f.sliced;
  memory["block"] = f.block;
  memory["steps"] = f.steps;
  out["memory"] = memory;
  const decode::Startup& s = runtime.startup();
  nb::dict startup;
  for (const auto& [name, seconds] :
       {std::pair{"check_s", s.check}, std::pair{"convert_s", s.convert}, std::pair{"read_s", s.read},
        std::pair{"block_s", s.blocks}, std::pair{"reshard_s", s.reshard}, std::pair{"probe_s", s.probe},
        std::pair{"plan_s", s.plan}, std::pair{"tune_s", s.tune}})
    startup[name] = seconds;
  out["startup"] = startup;
  out["max_tokens"] = runtime.plan().max_tokens;
  const decode::TacticChoice& t = runtime.plan().tactic;
  nb::dict tactic;
  tactic["tile"] = t.tactic.tile;
  tactic["config"] = t.tactic.config;
  tactic["pinned"] = t.pinned;
  tactic["preference"] = t.pinned ? nb::cast(t.preference) : nb::none();
  tactic["of"] = t.of;
  out["tactic"] = tactic;
  nb::object probes = nb::none();
  if (const auto& sharding = runtime.sharding()) {
    nb::dict values;
    for (const decode::LayerProbe& probe : sharding->probes) values[nb::cast(probe.layer)] = probe.rel_l2;
    probes = values;
  }
  out["probe_rel_l2"] = probes;
  return out;
}

nb::dict refill_facts(const decode::RefillReport& r) {
  nb::dict out;
  out["layer"] = r.layer;
  out["bytes"] = r.bytes;
  out["rel_l2"] = r.rel_l2 ? nb::cast(*r.rel_l2) : nb::none();
  out["seconds"] = r.seconds;
  out["landing_seconds"] = r.landing_seconds;
  return out;
}

// `prepare`: gives a layer's index and a checkpoint, or None and the engine's layer.
nb::dict refill(Resident& resident, nb::handle prepare) {
  const InUse use(resident);
  std::optional<Checkpoint> from;
  EngineLayer layer;
  std::int64_t index = 0;
  prepared(resident.group().get(), "preparing a refill", prepare, [&](nb::handle given) {
    const auto [number, source] = nb::cast<std::pair<nb::object, nb::object>>(given);
    if (number.is_none()) {
      layer = engine_layer(source);
      index = layer.stock.index;
    } else {
      from = nb::cast<Checkpoint>(source);
      index = resident.index_of(number);
    }
    (void)resident.position(index);
  });
  decode::RefillReport report;
  {
    const Unlocked released;
    report = from ? resident.refill(index, *from) : resident.refill(index, layer.stock);
  }
  if (!from) resident.keep(index, std::move(layer));
  resident.finish();
  return refill_facts(report);
}

// A tensor of the runtime's, or of the engine's that it was made of, where it lies.
nb::object array_of(const tensor::TensorView& view, Resident& keep) {
  const bool on_device = keep.device_number() != host_memory && cuda::on_device(view.bytes.data());
  return nb::cast(Array::of(view, nb::find(keep), on_device ? keep.device_number() : host_memory));
}

nb::dict arrays_of(const layout::Nvfp4View& view, Resident& keep) {
  nb::dict out;
  for (const auto& [name, tensor] :
       {std::pair{"w13", &view.w13}, std::pair{"w13_sf", &view.w13_sf}, std::pair{"w2", &view.w2},
        std::pair{"w2_sf", &view.w2_sf}, std::pair{"g1_alphas", &view.g1_alphas},
        std::pair{"g1_scale_c", &view.g1_scale_c}, std::pair{"g2_alphas", &view.g2_alphas},
        std::pair{"a1_gscale", &view.a1_gscale}, std::pair{"a2_gscale", &view.a2_gscale}})
    out[name] = array_of(*tensor, keep);
  out["first_expert"] = view.first_expert;
  return out;
}

nb::dict sliced(Resident& resident, nb::handle number) {
  const std::int64_t index = resident.index_of(number);
  const decode::Layer& layer = resident.get().layers()[resident.position(index)];
  if (!layer.sliced) throw Error(ErrorKind::usage, fmt::format("layer {} has no sliced experts here", index));
  return arrays_of(layer.sliced->view(), resident);
}

nb::dict stock(Resident& resident, nb::handle number) {
  const std::int64_t index = resident.index_of(number);
  const decode::Layer& layer = resident.get().layers()[resident.position(index)];
  if (layer.ep == nullptr)
    throw Error(ErrorKind::usage, fmt::format("layer {} has no whole experts here", index));
  if (layer.kind == checkpoint::ExpertKind::nvfp4) return arrays_of(layer.nvfp4(), resident);
  const layout::Bf16View view = layer.bf16();
  nb::dict out;
  out["w13"] = array_of(view.w13, resident);
  out["w2"] = array_of(view.w2, resident);
  out["first_expert"] = view.first_expert;
  return out;
}

// Paths are bytes, and need not be UTF-8.
Checkpoint opened(nb::handle path) {
  const nb::object bytes = nb::module_::import_("os").attr("fsencode")(path);
  const std::string name(PyBytes_AS_STRING(bytes.ptr()),
                         static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr())));
  const Unlocked released;
  return Checkpoint::open(name);
}

nb::object path_object(const Checkpoint& c) {
  const std::string name = c.directory().string();
  return nb::module_::import_("os").attr("fsdecode")(nb::bytes(name.data(), name.size()));
}

void bind_checkpoint(nb::module_& m) {
  nb::class_<Checkpoint>(m, "Checkpoint",
                         "An opened checkpoint or export. Ranks of one process may share it.")
      .def_static(
          "open", &opened, nb::arg("path"),
          nb::sig("def open(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> Checkpoint"),
          "Opens a model directory: configs, index and headers. Raises CheckpointError for what is none, "
          "UsageError for a "
          "path that cannot be.")
      .def_prop_ro(
          "directory", [](const Checkpoint& c) { return path_object(c); },
          nb::sig("def directory(self) -> str"), "Where it is.")
      .def_prop_ro(
          "layers",
          [](const Checkpoint& c) {
            return std::vector<std::int64_t>(c.moe_layers().begin(), c.moe_layers().end());
          },
          "Indices of the layers with routed experts.")
      .def_prop_ro(
          "experts", [](const Checkpoint& c) { return c.config().experts; }, "E.")
      .def_prop_ro(
          "hidden", [](const Checkpoint& c) { return c.config().hidden; }, "H, the experts' width.")
      .def_prop_ro(
          "intermediate", [](const Checkpoint& c) { return c.config().intermediate; }, "I.")
      .def_prop_ro(
          "top_k", [](const Checkpoint& c) { return c.config().top_k; }, "K.")
      .def(
          "kind",
          [](const Checkpoint& c, std::int64_t layer) {
            return c.layer(layer).kind() == checkpoint::ExpertKind::nvfp4 ? "nvfp4" : "bf16";
          },
          nb::arg("layer"), "\"nvfp4\" or \"bf16\".")
      .def("__repr__",
           [](const Checkpoint& c) { return nb::str("kerf.Checkpoint({!r})").format(path_object(c)); });
}

}  // namespace

void bind_runtime(nb::module_& m) {
  bind_checkpoint(m);
  nb::class_<Resident> runtime(m, "Runtime", nb::type_slots(collected<Resident>().data()),
                               "See kerf.Runtime.");
  runtime
      .def_static("build", &build, nb::arg("group"), nb::arg("prepare"), nb::arg("log").none(),
                  nb::arg("progress").none(), nb::arg("all_reduce").none())
      .def_static("adopt", &adopt, nb::arg("group"), nb::arg("prepare"), nb::arg("log").none(),
                  nb::arg("all_reduce").none())
      .def("facts", &facts)
      .def_prop_ro(
          "on_device", [](const Resident& r) { return r.device_number() != host_memory; },
          "Whether the experts lie on a CUDA device.")
      .def_prop_ro("has_device_steps", &Resident::has_device_steps,
                   "Whether steps are enqueued there, on arrays that lie there.")
      .def_prop_ro(
          "has_engine_sum", [](const Resident& r) { return r.engine_sum() != nullptr; },
          "Whether the all-reduce is the engine's own.")
      .def("sliced", &sliced, nb::arg("layer"))
      .def("stock", &stock, nb::arg("layer"))
      .def("refill", &refill, nb::arg("prepare"));
  bind_steps(m, runtime);
  bind_rows(m, runtime);
  bind_routing(m, runtime);
}

}  // namespace kerf::python
