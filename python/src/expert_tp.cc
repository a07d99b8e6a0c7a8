// Expert TP out of whole experts on tensors that anybody holds: what kerf.expert_tp calls.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "src/bind.h"
#include "src/callers.h"
#include "src/experts.h"
#include "src/groups.h"
#include "src/runtime.h"

namespace kerf::python {

namespace {

using tensor::Dtype;
using Text = std::optional<std::string>;

Text text_of(const Verdict& why) { return why ? Text(why->text) : std::nullopt; }

Text unsupported(nb::handle stock, std::int64_t tp, bool uneven) {
  try {
    return text_of(expert_tp::unsupported(held_nvfp4(stock).view, tp, uneven));
  } catch (const Error& error) {
    return error.what();
  }
}

nb::tuple shape_tuple(const tensor::Shape& shape) {
  nb::list sizes;
  for (const std::int64_t size : shape.dims()) sizes.append(size);
  return nb::tuple(sizes);
}

nb::list final_shapes(nb::handle stock, std::int64_t tp, nb::handle experts) {
  const HeldNvfp4 held = held_nvfp4(stock);
  const std::int64_t count = whole("num_experts", experts, 1, most_count);
  nb::list out;
  for (const tensor::Shape& shape : expert_tp::final_shapes(layout::shape_of(held.view), tp, count))
    out.append(shape_tuple(shape));
  return out;
}

nb::dict reshard(nb::handle stock, const RankGroup& group, nb::handle num_experts, bool uneven) {
  const RankGroup::Call inside(group);
  std::optional<HeldNvfp4> held;
  std::shared_ptr<ExpertsMemory> memory;
  std::int64_t count = 0;
  agreed(*inside, "taking the stock experts", [&] {
    held = held_nvfp4(stock);
    count = whole("num_experts", num_experts, 1, most_count);
    memory = std::make_shared<ExpertsMemory>(device_of(*held));
    if (memory->device() != host_memory && !group.moves_device_memory())
      throw Error(
          ErrorKind::unsupported,
          fmt::format("the experts lie on CUDA device {}: group '{}' moves data between hosts' memory alone",
                      memory->device(), inside->name()));
  });
  std::optional<layout::Nvfp4Experts> out;
  {
    const Unlocked released;
    out = expert_tp::reshard(held->view, *inside, count, memory->weights(), uneven, &memory->scalars());
  }
  return as_dict(std::move(memory), std::move(*out));
}

nb::dict cut(nb::handle stock, std::int64_t tp, std::int64_t part, bool uneven) {
  const HeldNvfp4 held = held_nvfp4(stock);
  require(expert_tp::unsupported(held.view, tp, uneven));
  if (part < 0 || part >= tp)
    throw Error(ErrorKind::usage, fmt::format("part is {}, wanted 0 to {}", part, tp - 1));
  const layout::ExpertsShape whole = layout::shape_of(held.view);
  auto memory = std::make_shared<ExpertsMemory>(device_of(held));
  std::optional<layout::Nvfp4Experts> out;
  {
    const Unlocked released;
    const tensor::Copier& copier = memory->device() == host_memory ? tensor::host_copier() : cuda::copier();
    const std::int64_t width = layout::slice_of(whole.intermediate, tp, part).width;
    out.emplace(memory->weights(), memory->scalars(),
                layout::ExpertsShape{whole.experts, whole.hidden, width}, held.view.first_expert);
    const auto views = layout::slice_views(held.view, tp, part, uneven);
    const std::array<tensor::Tensor*, 4> to = {&out->w13, &out->w13_sf, &out->w2, &out->w2_sf};
    for (std::size_t kind = 0; kind < to.size(); ++kind) copier.pack(views[kind], to[kind]->bytes().data());
    for (const auto& [from, scalars] :
         {std::pair{&held.view.g1_alphas, &out->g1_alphas},
          std::pair{&held.view.g1_scale_c, &out->g1_scale_c},
          std::pair{&held.view.g2_alphas, &out->g2_alphas}, std::pair{&held.view.a1_gscale, &out->a1_gscale},
          std::pair{&held.view.a2_gscale, &out->a2_gscale}})
      std::copy(from->bytes.begin(), from->bytes.end(), scalars->bytes().begin());
  }
  return as_dict(std::move(memory), std::move(*out));
}

Text misplaced(nb::handle stock, nb::handle rank, nb::handle ranks, nb::handle num_experts) {
  const std::int64_t of = whole("ranks", ranks, 1, std::numeric_limits<int>::max());
  const std::int64_t mine = whole("rank", rank, 0, of - 1);
  return text_of(expert_tp::misplaced(held_nvfp4(stock).view, static_cast<int>(mine), static_cast<int>(of),
                                      whole("num_experts", num_experts, 1, most_count)));
}

Text check_global_scales(nb::handle stock, const RankGroup& group) {
  const RankGroup::Call inside(group);
  std::optional<HeldNvfp4> held;
  agreed(*inside, "taking the stock experts", [&] { held = held_nvfp4(stock); });
  const Unlocked released;
  return text_of(expert_tp::check_global_scales(held->view, *inside));
}

Text agree(const RankGroup& group, const Text& reason, const std::string& what) {
  Verdict mine;
  if (reason) mine = Reason{ErrorKind::unsupported, *reason};
  return text_of(comm::agree(*RankGroup::Call(group), mine, what));
}

// Rows and map as the probe takes them.
struct Routed {
  Argument rows, map;
  op::Unfinalized out;
};

Routed routed(nb::handle rows, nb::handle map, const char* rows_name, const char* map_name) {
  Routed r;
  r.rows = Argument(rows, {rows_name, Dtype::bf16, {any_size, any_size}});
  r.map = Argument(map, {map_name, Dtype::i32, {any_size, any_size}});
  r.out.tokens = r.map.size(0);
  r.out.top_k = r.map.size(1);
  r.out.hidden = r.rows.size(1);
  r.out.rows = r.rows.as<std::uint16_t>();
  r.out.map = r.map.as<std::int32_t>();
  if (r.out.top_k < 1 || r.out.hidden < 1)
    throw Error(ErrorKind::usage,
                fmt::format("{} is {} and {} is {}, wanted at least one route and one column", map_name,
                            described(r.map.view()), rows_name, described(r.rows.view())));
  for (std::size_t i = 0; i < r.out.map.size(); ++i)
    if (const std::int32_t row = r.out.map[i]; row < -1 || row >= r.rows.size(0))
      throw Error(ErrorKind::usage,
                  fmt::format("{} names row {} for token {} route {}, there are {} rows (-1: not here)",
                              map_name, row, static_cast<std::int64_t>(i) / r.out.top_k,
                              static_cast<std::int64_t>(i) % r.out.top_k, r.rows.size(0)));
  return r;
}

nb::tuple route_rows(nb::handle rows, nb::handle map) {
  const Routed r = routed(rows, map, "rows", "permuted_idx");
  const std::int64_t routes = r.out.tokens * r.out.top_k;
  expert_tp::RouteRows in_order;
  {
    const Unlocked released;
    in_order = expert_tp::route_rows(r.out);
  }
  const nb::object out = empty_like(rows, "bfloat16", {routes, r.out.hidden});
  const nb::object local = empty_like(rows, "bool", {routes});
  const Argument out_to(out, {"rows of routes", Dtype::bf16, {routes, r.out.hidden}}, true);
  const Argument local_to(local, {"local routes", Dtype::boolean, {routes}}, true);
  std::copy(in_order.rows.begin(), in_order.rows.end(), out_to.writable<std::uint16_t>().begin());
  std::copy(in_order.local.begin(), in_order.local.end(), local_to.writable<bool>().begin());
  return nb::make_tuple(out, local);
}

double probe_rel_l2(nb::handle ep_rows, nb::handle ep_map, nb::handle tp_rows, nb::handle tp_map,
                    const RankGroup& group) {
  const RankGroup::Call inside(group);
  Routed ep;
  Routed tp;
  agreed(*inside, "taking the rows to compare", [&] {
    ep = routed(ep_rows, ep_map, "ep[0]", "ep[1]");
    tp = routed(tp_rows, tp_map, "tp[0]", "tp[1]");
    if (ep.out.tokens != tp.out.tokens || ep.out.top_k != tp.out.top_k || ep.out.hidden != tp.out.hidden)
      throw Error(ErrorKind::usage,
                  fmt::format("ep has T {}, K {}, H {} and tp T {}, K {}, H {}, wanted the same step of both",
                              ep.out.tokens, ep.out.top_k, ep.out.hidden, tp.out.tokens, tp.out.top_k,
                              tp.out.hidden));
  });
  const Unlocked released;
  return expert_tp::probe_rel_l2(ep.out, tp.out, *inside);
}

double probe(Resident& resident, nb::handle number, nb::handle tokens, nb::handle seed, double limit) {
  const InUse use(resident);
  decode::ProbeOptions options;
  const decode::Layer* layer = nullptr;
  agreed(resident.group().get(), "preparing a probe", [&] {
    options = {whole("tokens", tokens, 1, decode::most_tokens), seed_of(seed), limit};
    if (!(limit >= 0))
      throw Error(ErrorKind::usage, fmt::format("limit is {}, wanted a number of at least 0", limit));
    const std::int64_t index = resident.index_of(number);
    layer = &resident.get().layers()[resident.position(index)];
    if (layer->tp == nullptr || layer->ep == nullptr)
      throw Error(ErrorKind::usage,
                  fmt::format("layer {} has not both whole and sliced experts to compare", index));
  });
  const Unlocked released;
  resident.next();
  return decode::probe(*layer, options, resident.rank());
}

}  // namespace

void bind_expert_tp(nb::module_& m) {
  m.def("tp_unsupported", &unsupported, nb::arg("stock").none(), nb::arg("tp"), nb::arg("uneven"));
  m.def("tp_final_shapes", &final_shapes, nb::arg("stock").none(), nb::arg("tp"), nb::arg("experts"));
  m.def("tp_reshard", &reshard, nb::arg("stock").none(), nb::arg("group"), nb::arg("num_experts"),
        nb::arg("uneven"));
  m.def("tp_cut", &cut, nb::arg("stock").none(), nb::arg("tp"), nb::arg("part"), nb::arg("uneven"));
  m.def("tp_misplaced", &misplaced, nb::arg("stock").none(), nb::arg("rank"), nb::arg("ranks"),
        nb::arg("num_experts"));
  m.def("tp_check_global_scales", &check_global_scales, nb::arg("stock").none(), nb::arg("group"));
  m.def("tp_agree", &agree, nb::arg("group"), nb::arg("reason").none(), nb::arg("what"),
        nb::call_guard<Unlocked>());
  m.def("tp_route_rows", &route_rows, nb::arg("rows").none(), nb::arg("map").none());
  m.def("tp_probe_rel_l2", &probe_rel_l2, nb::arg("ep_rows").none(), nb::arg("ep_map").none(),
        nb::arg("tp_rows").none(), nb::arg("tp_map").none(), nb::arg("group"));
  m.def("tp_probe", &probe, nb::arg("runtime"), nb::arg("layer"), nb::arg("tokens"), nb::arg("seed"),
        nb::arg("limit"));
}

}  // namespace kerf::python
