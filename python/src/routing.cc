// Routing: selection from logits, and the nine metadata tensors of the op.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <vector>

#include "src/arrays.h"
#include "src/bind.h"
#include "src/callers.h"
#include "src/runtime.h"

namespace kerf::python {

namespace {

using tensor::Dtype;

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (int m = 0; m < 10; ++m) names.emplace_back(routing::name(static_cast<routing::Method>(m)));
  return names;
}

constexpr std::int64_t most_tile = 4096;  // rows; the op's launcher has 8 to 64

// Zeros and what is negative are left to the router's own check, which says what the numbers mean together.
std::int64_t count(const char* name, nb::handle value) { return whole(name, value, -most_count, most_count); }

routing::Router made(const std::string& method, nb::handle experts, nb::handle top_k, nb::handle n_group,
                     nb::handle topk_group, float routed_scaling, bool norm_topk_prob, float logit_multiplier,
                     float sum_epsilon) {
  const auto found = routing::method_named(method);
  if (!found)
    throw Error(ErrorKind::usage,
                fmt::format("method is '{}', wanted one of {}", method, fmt::join(method_names(), ", ")));
  routing::Router router{*found,
                         count("experts", experts),
                         count("top_k", top_k),
                         count("n_group", n_group),
                         count("topk_group", topk_group),
                         routed_scaling,
                         norm_topk_prob,
                         logit_multiplier,
                         sum_epsilon};
  require(routing::unsupported(router));
  return router;
}

nb::tuple select(const routing::Router& router, nb::handle logits, nb::handle bias, nb::handle ids,
                 nb::handle weights) {
  const Argument l(logits, {"logits", Dtype::f32, {any_size, router.experts}});
  const Argument b = optional_argument(bias, {"bias", Dtype::f32, {router.experts}});
  const std::int64_t tokens = l.size(0);
  const nb::object ids_to = out_or_like(ids, logits, "int32", {tokens, router.top_k});
  const nb::object weights_to = out_or_like(weights, logits, "float32", {tokens, router.top_k});
  const Argument i(ids_to, {"ids", Dtype::i32, {tokens, router.top_k}}, true);
  const Argument w(weights_to, {"weights", Dtype::f32, {tokens, router.top_k}}, true);
  {
    const Unlocked released;
    routing::select(router, l.as<float>(), b.as<float>(), i.writable<std::int32_t>(), w.writable<float>());
  }
  return nb::make_tuple(ids_to, weights_to);
}

template <typename T>
nb::object view(Dtype dtype, std::span<T> values, const tensor::Shape& shape,
                const std::shared_ptr<const void>& keep) {
  return nb::cast(Array({dtype, shape, std::as_bytes(std::span<const T>(values))}, keep, true));
}

// The nine in the op's order, in one buffer; words that a step does not need are -1.
nb::dict metadata(nb::handle ids_object, nb::handle weights_object, nb::handle num_experts,
                  nb::handle local_expert_offset, nb::handle local_num_experts, nb::handle tile_rows) {
  const Argument ids(ids_object, {"ids", Dtype::i32, {any_size, any_size}});
  const Argument weights(weights_object, {"weights", Dtype::f32, {ids.size(0), ids.size(1)}});
  if (ids.size(1) < 1)
    throw Error(ErrorKind::usage,
                fmt::format("ids is {}, wanted at least one route a token", described(ids.view())));
  const std::int64_t experts = whole("num_experts", num_experts, 1, most_count);
  const std::int64_t offset = whole("local_expert_offset", local_expert_offset, 0, experts - 1);
  const std::int64_t given = whole("local_num_experts", local_num_experts, 0, experts - offset);
  const std::int64_t tile = whole("tile", tile_rows, 1, most_tile);
  const std::int64_t local = given > 0 ? given : experts - offset;
  const routing::MetadataShape shape{ids.size(0), ids.size(1), experts, offset, local, tile};
  struct Kept {
    tensor::HostMemory memory;
    std::optional<routing::MetadataBuffer> buffer;
  };
  const auto kept = std::make_shared<Kept>();
  {
    const Unlocked released;
    require(routing::check_ids(ids.as<std::int32_t>(), ids.size(1), experts));
    kept->buffer.emplace(kept->memory, routing::metadata_words(shape));
    routing::write_metadata(shape, ids.as<std::int32_t>(), weights.as<float>(), kept->buffer->view(shape));
  }
  const routing::Metadata m = kept->buffer->view(shape);
  const auto words = [&](std::span<std::int32_t> values) {
    return view(Dtype::i32, values, {static_cast<std::int64_t>(values.size())}, kept);
  };
  nb::dict out;
  out["total_num_padded_tokens"] = words(m.total_padded);
  out["expanded_idx_to_permuted_idx"] = words(m.expanded_to_permuted);
  out["permuted_idx_to_token_idx"] = words(m.permuted_to_token);
  out["expert_weights"] = view(Dtype::f32, m.expert_weights, {shape.tokens, shape.top_k}, kept);
  out["expert_count_histogram"] = words(m.histogram);
  out["num_tokens_per_expert"] = words(m.tokens_per_expert);
  out["cta_idx_xy_to_batch_idx"] = words(m.tile_to_expert);
  out["cta_idx_xy_to_mn_limit"] = words(m.tile_to_limit);
  out["num_non_exiting_ctas"] = words(m.live_tiles);
  return out;
}

}  // namespace

void bind_routing(nb::module_& m, nb::class_<Resident>& runtime) {
  using routing::Router;
  nb::class_<Router>(
      m, "Router",
      "How experts are chosen from logits and weighed: one of ten methods (kerf.routing_methods).")
      .def(
          "__init__",
          [](Router* self, const std::string& method, nb::handle experts, nb::handle top_k,
             nb::handle n_group, nb::handle topk_group, float routed_scaling, bool norm_topk_prob,
             float logit_multiplier, float sum_epsilon) {
            new (self) Router(made(method, experts, top_k, n_group, topk_group, routed_scaling,
                                   norm_topk_prob, logit_multiplier, sum_epsilon));
          },
          nb::arg("method"), nb::kw_only(), nb::arg("experts"), nb::arg("top_k"), nb::arg("n_group") = 0,
          nb::arg("topk_group") = 0, nb::arg("routed_scaling") = 1.0F, nb::arg("norm_topk_prob") = true,
          nb::arg("logit_multiplier") = 1.0F, nb::arg("sum_epsilon") = 1e-20F,
          nb::sig("def __init__(self, method: str, *, experts: int, top_k: int, n_group: int = 0, "
                  "topk_group: int = 0, "
                  "routed_scaling: float = 1.0, norm_topk_prob: bool = True, logit_multiplier: float = 1.0, "
                  "sum_epsilon: float = 1e-20) -> None"),
          "`method`: one of kerf.routing_methods, or the op's own name for it. `experts`: E, `top_k`: K. "
          "`n_group`, `topk_group`: groups of experts and how many of them are chosen from (0: no groups). "
          "`routed_scaling`: what weights are multiplied by. `norm_topk_prob`: whether they are divided by "
          "their sum, "
          "to which `sum_epsilon` is added. `logit_multiplier`: what logits are multiplied by first.\n\n"
          "Raises UsageError for an unknown method and numbers that make no sense (K above E, a negative "
          "number of "
          "groups, a multiplier of 0), UnsupportedError for what the method does not have.")
      .def_prop_ro(
          "method", [](const Router& r) { return std::string(routing::name(r.method)); },
          "The method's name, one of kerf.routing_methods.")
      .def_ro("experts", &Router::experts, "E, the model's experts that it chooses from.")
      .def_ro("top_k", &Router::top_k, "K, the experts that it chooses for a token.")
      .def("select", &select, nb::arg("logits").none(), nb::arg("bias") = nb::none(),
           nb::arg("ids") = nb::none(), nb::arg("weights") = nb::none(),
           nb::sig("def select(self, logits: object, bias: object | None = None, ids: object | None = None, "
                   "weights: object | None = None) -> tuple[typing.Any, typing.Any]"),
           "Local: the experts and weights of T tokens.\n\n"
           "logits float32 [T, E]; `bias` float32 [E] or None. Returns ids int32 [T, K], each token's in "
           "descending "
           "order of their keys (ties to the lower id), and weights float32 [T, K]: `ids` and `weights` "
           "where they are "
           "given, otherwise new arrays of the logits' kind (torch tensors, numpy arrays, else "
           "kerf.Array).\n\n"
           "Raises UsageError, with the argument's name, for other dtypes and shapes, arrays that are not "
           "contiguous "
           "or not in the host's memory, and for a bias that the method does not take.");
  m.attr("routing_methods") = nb::cast(method_names());
  m.def("routing_metadata", &metadata, nb::arg("ids").none(), nb::arg("weights").none(),
        nb::arg("num_experts"), nb::arg("local_expert_offset"), nb::arg("local_num_experts"),
        nb::arg("tile"));
  runtime.def_prop_rw(
      "router", [](const Resident& r) { return r.router(); },
      [](Resident& r, const Router& router) { r.set_router(router); });
}

}  // namespace kerf::python
