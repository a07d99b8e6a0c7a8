#include "kerf/op/op.h"

#include <algorithm>

#include "kerf/base/format.h"
#include "kerf/numeric/bf16.h"

namespace kerf::op {

std::int64_t gemm2_rows(const routing::MetadataShape& shape, std::int64_t hidden) {
  const std::int64_t least = (std::int64_t{128} * 1024 * 8 + 16 * hidden - 1) / (16 * hidden);
  return std::max(shape.max_padded(), least);
}

std::string_view name(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::w4a4:
      return "w4a4";
    case Arithmetic::w4a16:
      return "w4a16";
    case Arithmetic::bf16:
      return "bf16";
  }
  return "unknown";
}

namespace {

// Rows a tile where the caller leaves it open: the smallest tile, which no decode batch outgrows. Callers
// that want the launcher's choice for a batch resolve it first (tactics::tactic_key).
constexpr std::int64_t kDefaultTile = tiles.front();

// The body, and the rows that it wrote.
Unfinalized run_body(const RoutedExperts& experts, const Tokens& tokens, const routing::MetadataShape& shape,
                     const routing::Metadata& metadata, const Routes& routes, Tactic tactic,
                     const Workers& workers, const Buffers& buffers) {
  const std::int64_t hidden = experts.shape().hidden;
  experts.body(tokens, shape, metadata, tactic, workers, buffers.workspace, buffers.rows);
  const auto used = static_cast<std::size_t>(gemm2_rows(shape, hidden) * hidden);
  // Metadata that a caller wrote may lie in longer arrays.
  const auto count = static_cast<std::size_t>(tokens.count * experts.top_k());
  Unfinalized out{tokens.count,
                  experts.top_k(),
                  hidden,
                  {},
                  routes.weights.first(count),
                  metadata.expanded_to_permuted.first(count),
                  routes.ids};
  if (const auto* sums = std::get_if<std::span<float>>(&buffers.rows))
    out.sums = sums->first(used);
  else
    out.rows = std::get<std::span<std::uint16_t>>(buffers.rows).first(used);
  return out;
}

Unfinalized run(const RoutedExperts& experts, const Tokens& tokens, const Routes& routes, Tactic tactic,
                const Workers& workers, const Buffers& buffers) {
  const std::int64_t tile = tactic.tile > 0 ? tactic.tile : kDefaultTile;
  const routing::MetadataShape shape = experts.metadata_shape(tokens.count, tile);
  const routing::Metadata metadata = buffers.metadata->view(shape);
  routing::write_metadata(shape, routes.ids, routes.weights, metadata);
  return run_body(experts, tokens, shape, metadata, routes, tactic, workers, buffers);
}

void check_routes(std::int64_t routes, std::size_t ids, std::size_t weights) {
  if (static_cast<std::int64_t>(ids) != routes || static_cast<std::int64_t>(weights) != routes)
    fail(ErrorKind::usage, "got {} ids and {} weights, wanted {} of each", ids, weights, routes);
}

}  // namespace

Unfinalized routed_experts(const RoutedExperts& experts, const Tokens& tokens, const Routes& routes,
                           Tactic tactic, const Workers& workers, const Buffers& buffers) {
  record(buffers.calls, Call::routed_experts);
  check_routes(tokens.count * experts.top_k(), routes.ids.size(), routes.weights.size());
  require(routing::check_ids(routes.ids, experts.top_k(), experts.num_experts()));
  return run(experts, tokens, routes, tactic, workers, buffers);
}

Unfinalized routed_experts_from_logits(const RoutedExperts& experts, const Tokens& tokens,
                                       const routing::Router& router, std::span<const float> logits,
                                       std::span<const float> bias, std::span<std::int32_t> ids,
                                       std::span<float> weights, Tactic tactic, const Workers& workers,
                                       const Buffers& buffers) {
  record(buffers.calls, Call::routed_experts_from_logits);
  if (router.experts != experts.num_experts() || router.top_k != experts.top_k())
    fail(ErrorKind::unsupported, "the router has {} experts and top_k {}, the bound op {} and {}",
         router.experts, router.top_k, experts.num_experts(), experts.top_k());
  check_routes(tokens.count * experts.top_k(), ids.size(), weights.size());
  routing::select(router, logits, bias, ids, weights);
  // An op that routes itself hands its weights on as bf16.
  for (float& w : weights) w = numeric::round_to_bf16(w);
  return run(experts, tokens, {ids, weights}, tactic, workers, buffers);
}

Unfinalized routed_experts_from_metadata(const RoutedExperts& experts, const Tokens& tokens,
                                         const routing::MetadataShape& shape,
                                         const routing::Metadata& metadata, Tactic tactic,
                                         const Workers& workers, const Buffers& buffers) {
  record(buffers.calls, Call::routed_experts_from_metadata);
  return run_body(experts, tokens, shape, metadata, {{}, metadata.expert_weights}, tactic, workers, buffers);
}

}  // namespace kerf::op
