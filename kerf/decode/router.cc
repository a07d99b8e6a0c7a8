#include "kerf/decode/router.h"

#include "kerf/base/format.h"

namespace kerf::decode {

namespace {

routing::Method softmax_method(const checkpoint::RouterConfig& from) {
  if (from.routed_scaling != 1.0)
    fail(ErrorKind::unsupported, "softmax routing with routed_scaling_factor {}, wanted 1",
         from.routed_scaling);
  if (from.selection_bias)
    fail(ErrorKind::unsupported,
         "softmax routing with a selection bias; kerf knows a bias with sigmoid only");
  if (from.n_group > 1)
    fail(ErrorKind::unsupported, "softmax routing in {} groups; kerf knows groups with sigmoid only",
         from.n_group);
  return from.norm_topk_prob ? routing::Method::renormalize : routing::Method::softmax;
}

routing::Method sigmoid_method(const checkpoint::RouterConfig& from) {
  if (!from.norm_topk_prob) {
    if (from.selection_bias || from.n_group > 1 || from.routed_scaling != 1.0)
      fail(ErrorKind::unsupported,
           "sigmoid routing without norm_topk_prob but with a selection bias ({}), {} groups or "
           "routed_scaling_factor {}",
           from.selection_bias, from.n_group, from.routed_scaling);
    return routing::Method::sigmoid_renorm;
  }
  return from.n_group > 1 ? routing::Method::deepseek_v3 : routing::Method::minimax2;
}

}  // namespace

routing::Router router_of(const checkpoint::ModelConfig& config) {
  const checkpoint::RouterConfig& from = config.router;
  if (from.weights_on_input)
    fail(ErrorKind::unsupported,
         "{} multiplies the experts' input by the routing weights (top {}); kerf multiplies their output",
         config.family.empty() ? "a model whose moe_apply_router_weight_on_input is true" : config.family,
         config.top_k);
  if (!from.not_computed.empty()) fail(ErrorKind::unsupported, "{}", from.not_computed);
  routing::Router router;
  router.experts = config.experts;
  router.top_k = config.top_k;
  if (from.scoring == "softmax")
    router.method = softmax_method(from);
  else if (from.scoring == "sigmoid")
    router.method = sigmoid_method(from);
  else
    fail(ErrorKind::unsupported, "routing by '{}', wanted softmax or sigmoid", from.scoring);
  router.n_group = from.n_group;
  router.topk_group = from.topk_group;
  router.routed_scaling = static_cast<float>(from.routed_scaling);
  router.norm_topk_prob = from.norm_topk_prob;
  router.logit_multiplier = static_cast<float>(from.logit_multiplier);
  router.sum_epsilon = static_cast<float>(from.sum_epsilon);
  require(routing::unsupported(router));
  return router;
}

}  // namespace kerf::decode
