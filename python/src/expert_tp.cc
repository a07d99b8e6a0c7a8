// Expert TP out of whole experts on tensors that anybody holds: what kerf.expert_tp calls.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "src/bind.h"
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

nb::list final_shapes(nb::handle stock, std::int64_t tp, std::int64_t experts) {
  const HeldNvfp4 held = held_nvfp4(stock);
  nb::list out;
  for (const tensor::Shape& shape : expert_tp::final_shapes(layout::shape_of(held.view), tp, experts))
    out.append(shape_tuple(shape));
  return out;
}

nb::dict reshard(nb::handle stock, const RankGroup& group, std::int64_t num_experts, bool uneven) {
  std::optional<HeldNvfp4> held;
  const Verdict unusable = attempt([&] { held = held_nvfp4(stock); });
  auto memory = std::make_shared<tensor::HostMemory>();
  std::optional<layout::Nvfp4Experts> out;
  {
    const nb::gil_scoped_release released;
    require(comm::agree(group.get(), unusable, "taking the stock experts"));
    out = expert_tp::reshard(held->view, group.get(), num_experts, *memory, uneven);
  }
  return as_dict(std::move(memory), std::move(*out));
}

nb::dict cut(nb::handle stock, std::int64_t tp, std::int64_t part, bool uneven) {
  const HeldNvfp4 held = held_nvfp4(stock);
  require(expert_tp::unsupported(held.view, tp, uneven));
  if (part < 0 || part >= tp)
    throw Error(ErrorKind::usage, fmt::format("part is {}, wanted 0 to {}", part, tp - 1));
  const layout::ExpertsShape whole = layout::shape_of(held.view);
  auto memory = std::make_shared<tensor::HostMemory>();
  std::optional<layout::Nvfp4Experts> out;
  {
    const nb::gil_scoped_release released;
    const std::int64_t width = layout::slice_of(whole.intermediate, tp, part).width;
    out.emplace(*memory, layout::ExpertsShape{whole.experts, whole.hidden, width}, held.view.first_expert);
    const auto views = layout::slice_views(held.view, tp, part, uneven);
    const std::array<tensor::Tensor*, 4> to = {&out->w13, &out->w13_sf, &out->w2, &out->w2_sf};
    for (std::size_t kind = 0; kind < to.size(); ++kind) tensor::pack(views[kind], to[kind]->bytes().data());
    for (const auto& [from, scalars] :
         {std::pair{&held.view.g1_alphas, &out->g1_alphas},
          std::pair{&held.view.g1_scale_c, &out->g1_scale_c},
          std::pair{&held.view.g2_alphas, &out->g2_alphas}, std::pair{&held.view.a1_gscale, &out->a1_gscale},
          std::pair{&held.view.a2_gscale, &out->a2_gscale}})
      std::copy(from->bytes.begin(), from->bytes.end(), scalars->bytes().begin());
  }
  return as_dict(std::move(memory), std::move(*out));
}

Text misplaced(nb::handle stock, int rank, int ranks, std::int64_t num_experts) {
  return text_of(expert_tp::misplaced(held_nvfp4(stock).view, rank, ranks, num_experts));
}

Text check_global_scales(nb::handle stock, const RankGroup& group) {
  const HeldNvfp4 held = held_nvfp4(stock);
  const nb::gil_scoped_release released;
  return text_of(expert_tp::check_global_scales(held.view, group.get()));
}

Text agree(const RankGroup& group, const Text& reason, const std::string& what) {
  Verdict mine;
  if (reason) mine = Reason{ErrorKind::unsupported, *reason};
  return text_of(comm::agree(group.get(), mine, what));
}

// Rows and map as the probe takes them.
struct Routed {
  Argument rows, map;
  op::Unfinalized out;
};

Routed routed(nb::handle rows, nb::handle map) {
  Routed r;
  r.rows = Argument(rows, {"rows", Dtype::bf16, {any_size, any_size}});
  r.map = Argument(map, {"map", Dtype::i32, {any_size, any_size}});
  r.out.tokens = r.map.size(0);
  r.out.top_k = r.map.size(1);
  r.out.hidden = r.rows.size(1);
  r.out.rows = r.rows.as<std::uint16_t>();
  r.out.map = r.map.as<std::int32_t>();
  for (const std::int32_t row : r.out.map)
    if (row >= r.rows.size(0))
      throw Error(ErrorKind::usage, fmt::format("map names row {}, there are {}", row, r.rows.size(0)));
  return r;
}

nb::tuple route_rows(nb::handle rows, nb::handle map) {
  const Routed r = routed(rows, map);
  const expert_tp::RouteRows in_order = expert_tp::route_rows(r.out);
  const Array out(Dtype::bf16, {r.out.tokens * r.out.top_k, r.out.hidden});
  std::copy(in_order.rows.begin(), in_order.rows.end(), out.writable<std::uint16_t>().begin());
  const Array local(Dtype::boolean, {r.out.tokens * r.out.top_k});
  std::copy(in_order.local.begin(), in_order.local.end(), local.writable<bool>().begin());
  return nb::make_tuple(out, local);
}

double probe_rel_l2(nb::handle ep_rows, nb::handle ep_map, nb::handle tp_rows, nb::handle tp_map,
                    const RankGroup& group) {
  const Routed ep = routed(ep_rows, ep_map);
  const Routed tp = routed(tp_rows, tp_map);
  const nb::gil_scoped_release released;
  return expert_tp::probe_rel_l2(ep.out, tp.out, group.get());
}

double probe(Resident& resident, std::int64_t index, std::int64_t tokens, std::uint64_t seed, double limit) {
  const decode::Layer& layer = resident.get().layers()[resident.position(index)];
  if (layer.tp == nullptr || layer.ep == nullptr)
    throw Error(ErrorKind::usage,
                fmt::format("layer {} has not both whole and sliced experts to compare", index));
  const InUse use(resident);
  resident.next();
  return decode::probe(layer, {tokens, seed, limit}, resident.rank());
}

}  // namespace

void bind_expert_tp(nb::module_& m) {
  m.def("tp_unsupported", &unsupported, nb::arg("stock"), nb::arg("tp"), nb::arg("uneven"));
  m.def("tp_final_shapes", &final_shapes, nb::arg("stock"), nb::arg("tp"), nb::arg("experts"));
  m.def("tp_reshard", &reshard, nb::arg("stock"), nb::arg("group"), nb::arg("num_experts"),
        nb::arg("uneven"));
  m.def("tp_cut", &cut, nb::arg("stock"), nb::arg("tp"), nb::arg("part"), nb::arg("uneven"));
  m.def("tp_misplaced", &misplaced, nb::arg("stock"), nb::arg("rank"), nb::arg("ranks"),
        nb::arg("num_experts"));
  m.def("tp_check_global_scales", &check_global_scales, nb::arg("stock"), nb::arg("group"));
  m.def("tp_agree", &agree, nb::arg("group"), nb::arg("reason").none(), nb::arg("what"),
        nb::call_guard<nb::gil_scoped_release>());
  m.def("tp_route_rows", &route_rows, nb::arg("rows"), nb::arg("map"));
  m.def("tp_probe_rel_l2", &probe_rel_l2, nb::arg("ep_rows"), nb::arg("ep_map"), nb::arg("tp_rows"),
        nb::arg("tp_map"), nb::arg("group"));
  m.def("tp_probe", &probe, nb::arg("runtime"), nb::arg("layer"), nb::arg("tokens"), nb::arg("seed"),
        nb::arg("limit"), nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace kerf::python
