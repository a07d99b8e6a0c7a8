// Routing: selection from logits, and the nine metadata tensors of the op.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <vector>

#include "src/arrays.h"
#include "src/bind.h"
#include "src/runtime.h"

namespace kerf::python {

namespace {

using tensor::Dtype;

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (int m = 0; m < 10; ++m) names.emplace_back(routing::name(static_cast<routing::Method>(m)));
  return names;
}

routing::Router made(const std::string& method, std::int64_t experts, std::int64_t top_k,
                     std::int64_t n_group, std::int64_t topk_group, float routed_scaling, bool norm_topk_prob,
                     float logit_multiplier, float sum_epsilon) {
  const auto found = routing::method_named(method);
  if (!found)
    throw Error(ErrorKind::usage,
                fmt::format("method is '{}', wanted one of {}", method, fmt::join(method_names(), ", ")));
  routing::Router router{*found,         experts,          top_k,      n_group, topk_group, routed_scaling,
                         norm_topk_prob, logit_multiplier, sum_epsilon};
  require(routing::unsupported(router));
  return router;
}

nb::tuple select(const routing::Router& router, nb::handle logits, nb::handle bias, nb::handle ids,
                 nb::handle weights) {
  const Argument l(logits, {"logits", Dtype::f32, {any_size, router.experts}});
  const Argument b = optional_argument(bias, {"bias", Dtype::f32, {router.experts}});
  const std::int64_t tokens = l.size(0);
  nb::object ids_to = nb::borrow(ids);
  nb::object weights_to = nb::borrow(weights);
  if (ids_to.is_none()) ids_to = nb::cast(Array(Dtype::i32, {tokens, router.top_k}));
  if (weights_to.is_none()) weights_to = nb::cast(Array(Dtype::f32, {tokens, router.top_k}));
  const Argument i(ids_to, {"ids", Dtype::i32, {tokens, router.top_k}}, true);
  const Argument w(weights_to, {"weights", Dtype::f32, {tokens, router.top_k}}, true);
  {
    const nb::gil_scoped_release released;
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
nb::dict metadata(nb::handle ids_object, nb::handle weights_object, std::int64_t experts, std::int64_t offset,
                  std::int64_t local, std::int64_t tile) {
  const Argument ids(ids_object, {"ids", Dtype::i32, {any_size, any_size}});
  const Argument weights(weights_object, {"weights", Dtype::f32, {ids.size(0), ids.size(1)}});
  const routing::MetadataShape shape{ids.size(0), ids.size(1), experts, offset, local, tile};
  if (experts < 1 || offset < 0 || local < 1 || offset + local > experts || tile < 1)
    throw Error(ErrorKind::usage,
                fmt::format("experts {}, offset {}, local {}, tile {}: wanted experts [offset, offset "
                            "+ local) of the model's, and a tile of at least 1 row",
                            experts, offset, local, tile));
  require(routing::check_ids(ids.as<std::int32_t>(), ids.size(1), experts));
  struct Kept {
    tensor::HostMemory memory;
    std::optional<routing::MetadataBuffer> buffer;
  };
  const auto kept = std::make_shared<Kept>();
  kept->buffer.emplace(kept->memory, routing::metadata_words(shape));
  const routing::Metadata m = kept->buffer->view(shape);
  routing::write_metadata(shape, ids.as<std::int32_t>(), weights.as<float>(), m);
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
  nb::class_<Router>(m, "Router", "How experts are chosen from logits and weighed: one of ten methods.")
      .def(
          "__init__",
          [](Router* self, const std::string& method, std::int64_t experts, std::int64_t top_k,
             std::int64_t n_group, std::int64_t topk_group, float routed_scaling, bool norm_topk_prob,
             float logit_multiplier, float sum_epsilon) {
            new (self) Router(made(method, experts, top_k, n_group, topk_group, routed_scaling,
                                   norm_topk_prob, logit_multiplier, sum_epsilon));
          },
          nb::arg("method"), nb::kw_only(), nb::arg("experts"), nb::arg("top_k"), nb::arg("n_group") = 0,
          nb::arg("topk_group") = 0, nb::arg("routed_scaling") = 1.0F, nb::arg("norm_topk_prob") = true,
          nb::arg("logit_multiplier") = 1.0F, nb::arg("sum_epsilon") = 1e-20F,
          "UsageError for an unknown method, UnsupportedError for numbers that it does not take.")
      .def_prop_ro(
          "method", [](const Router& r) { return std::string(routing::name(r.method)); }, "Its name.")
      .def_ro("experts", &Router::experts, "E.")
      .def_ro("top_k", &Router::top_k, "K.")
      .def("select", &select, nb::arg("logits"), nb::arg("bias") = nb::none(), nb::arg("ids") = nb::none(),
           nb::arg("weights") = nb::none(),
           "logits [T, E] f32, bias [E] f32 or None -> ids [T, K] i32 in descending order of their keys "
           "(ties to the "
           "lower id), weights [T, K] f32; into `ids` and `weights` where they are given.");
  m.attr("routing_methods") = nb::cast(method_names());
  m.def("routing_metadata", &metadata, nb::arg("ids"), nb::arg("weights"), nb::arg("experts"),
        nb::arg("offset"), nb::arg("local"), nb::arg("tile"));
  runtime.def_prop_rw(
      "router", [](const Resident& r) { return r.router(); },
      [](Resident& r, const Router& router) { r.set_router(router); });
}

}  // namespace kerf::python
