#include "kerf/routing/router.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kerf/base/format.h"
#include "kerf/routing/methods.h"

namespace kerf::routing {

using rules::max_groups;
using rules::table;
using rules::Traits;
using rules::traits_of;

namespace {

Verdict bad_numbers(const Router& r) {
  if (!std::isfinite(r.logit_multiplier) || r.logit_multiplier == 0.0F) {
    return because(ErrorKind::usage, "logit multiplier {}: a finite number other than 0 is wanted",
                   r.logit_multiplier);
  }
  if (!std::isfinite(r.routed_scaling)) {
    return because(ErrorKind::usage, "routed scaling {}: a finite number is wanted", r.routed_scaling);
  }
  if (!std::isfinite(r.sum_epsilon) || r.sum_epsilon < 0.0F) {
    return because(ErrorKind::usage, "epsilon {} of the renormalising sum: finite and at least 0 is wanted",
                   r.sum_epsilon);
  }
  return {};
}

Verdict bad_groups(const Router& r, const Traits& traits) {
  if (r.n_group < 0 || r.topk_group < 0) {
    return because(ErrorKind::usage, "the best {} of {} expert groups: wanted is 0 (no groups) or more",
                   r.topk_group, r.n_group);
  }
  if (r.n_group <= 1) {
    if (r.topk_group <= 1) return {};
    return because(ErrorKind::usage, "the best {} of {} expert groups: there are not that many", r.topk_group,
                   std::max<std::int64_t>(r.n_group, 1));
  }
  if (!traits.has(rules::takes_groups)) {
    return because(ErrorKind::unsupported, "routing method {} has no expert groups; got {} of them",
                   traits.name, r.n_group);
  }
  if (r.n_group > max_groups) {
    return because(ErrorKind::unsupported, "{} expert groups; at most {} are possible", r.n_group,
                   max_groups);
  }
  if (r.experts % r.n_group != 0) {
    return because(ErrorKind::usage, "{} experts do not divide into {} groups", r.experts, r.n_group);
  }
  const std::int64_t size = r.experts / r.n_group;
  if (size < 2) {
    return because(ErrorKind::usage,
                   "{} expert groups of {} expert: groups are ranked by their two best, so two are needed",
                   r.n_group, size);
  }
  if (r.topk_group < 1 || r.topk_group > r.n_group) {
    return because(ErrorKind::usage, "the best {} of {} expert groups: wanted is 1 to {}", r.topk_group,
                   r.n_group, r.n_group);
  }
  if (r.top_k > r.topk_group * size) {
    return because(ErrorKind::usage,
                   "top {} of the {} experts that {} of {} groups hold: there are not that many", r.top_k,
                   r.topk_group * size, r.topk_group, r.n_group);
  }
  return {};
}

}  // namespace

std::string_view name(Method method) {
  const Traits* traits = traits_of(method);
  return traits == nullptr ? "unknown" : traits->name;
}

std::optional<Method> method_named(std::string_view name) {
  const auto* const found =
      std::ranges::find_if(table, [&](const Traits& t) { return t.name == name || t.op_name == name; });
  if (found == table.end()) return {};
  return found->method;
}

Router muse_spark_router(std::int64_t experts, std::int64_t top_k) {
  // Any method that biases a sigmoid and renormalises would do; this one has no groups to switch off.
  return {.method = Method::minimax2,
          .experts = experts,
          .top_k = top_k,
          .logit_multiplier = 0x1.6a09e6p-3F,  // 2^-2.5
          .sum_epsilon = 1e-15F};
}

Verdict unsupported(const Router& router) {
  const Traits* traits = traits_of(router.method);
  if (traits == nullptr) {
    return because(ErrorKind::usage, "routing method number {} is unknown; there are 0 to {}",
                   static_cast<int>(router.method), table.size() - 1);
  }
  if (router.experts < 1) {
    return because(ErrorKind::usage, "a router over {} experts: at least 1 is wanted", router.experts);
  }
  if (router.experts > std::numeric_limits<std::int32_t>::max()) {
    return because(ErrorKind::unsupported, "a router over {} experts: ids are 32 bits wide", router.experts);
  }
  if (router.top_k < 1 || router.top_k > router.experts) {
    return because(ErrorKind::usage, "top {} of {} experts: wanted is 1 to {}", router.top_k, router.experts,
                   router.experts);
  }
  if (router.method == Method::llama4 && router.top_k != 1) {
    return because(ErrorKind::unsupported, "routing method {} chooses 1 expert a token; got top {}",
                   traits->name, router.top_k);
  }
  if (Verdict verdict = bad_numbers(router)) return verdict;
  if (!traits->has(rules::takes_scaling) && router.routed_scaling != 1.0F) {
    return because(ErrorKind::unsupported, "routing method {} has no routed scaling; got {}", traits->name,
                   router.routed_scaling);
  }
  if (!traits->has(rules::takes_raw) && !router.norm_topk_prob) {
    return because(ErrorKind::unsupported,
                   "routing method {} always renormalises; got norm_topk_prob = false", traits->name);
  }
  return bad_groups(router, *traits);
}

}  // namespace kerf::routing
