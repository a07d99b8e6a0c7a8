#include "kerf/op/sm90/route.h"

#include "kerf/base/format.h"
#include "kerf/numeric/nvfp4.h"
#include "kerf/op/sm90/route_launch.h"
#include "kerf/routing/methods.h"

namespace kerf::op::sm90 {
namespace {

// What a caller of route() cannot get wrong at run time.
void check_route(const routing::MetadataShape& shape, const RouteInputs& in, const RouteOutputs& out) {
  require(unsupported_route(shape, in.router));
  routing::check_metadata(shape, out.metadata);
  const bool routed =
      shape.routes() == 0 || (in.router != nullptr ? in.logits != nullptr && out.ids != nullptr
                                                   : in.ids != nullptr && in.weights != nullptr);
  if (!routed) fail(ErrorKind::bug, "{} routes from nowhere, or to nowhere", shape.routes());
  if (in.router != nullptr && in.bias != nullptr &&
      !routing::rules::traits_of(in.router->method)->has(routing::rules::takes_bias))
    fail(ErrorKind::usage, "routing method {} takes no bias", routing::name(in.router->method));
  if (in.x == nullptr) return;
  if (in.hidden % numeric::nvfp4_block != 0 || in.gs == nullptr || out.a == nullptr || out.a_sf == nullptr)
    fail(ErrorKind::bug, "rows of {} values to quantise: a multiple of {} is wanted, with gs, a and a_sf",
         in.hidden, numeric::nvfp4_block);
}

}  // namespace

Verdict unsupported_route(const routing::MetadataShape& shape, const routing::Router* router) {
  if (shape.tokens > most_route_tokens || shape.experts > most_route_experts ||
      shape.top_k > most_route_top_k) {
    return because(ErrorKind::unsupported,
                   "{} tokens, top {} of {} experts: the device routes up to {} tokens, top {} of {}",
                   shape.tokens, shape.top_k, shape.experts, most_route_tokens, most_route_top_k,
                   most_route_experts);
  }
  if (router == nullptr) return {};
  if (Verdict verdict = routing::unsupported(*router)) return verdict;
  if (router->experts != shape.experts || router->top_k != shape.top_k) {
    return because(ErrorKind::bug, "a router for top {} of {} experts where routes are top {} of {}",
                   router->top_k, router->experts, shape.top_k, shape.experts);
  }
  return {};
}

void route(const routing::MetadataShape& shape, const RouteInputs& in, const RouteOutputs& out,
           cuda::StreamHandle stream) {
  check_route(shape, in, out);
  launch_route(shape, in, out, stream);
}

}  // namespace kerf::op::sm90
