// From router logits to the chosen experts and their weights: the ten methods in use, by one rule for ties.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kerf/base/error.h"

#pragma GCC visibility push(default)
namespace kerf::routing {

// Numbered as in the trtllm-gen op. x: logits, times the multiplier; i: the chosen experts; s:
// routed_scaling; eps: sum_epsilon; sum: of sigmoid(x_i) over the K chosen.
enum class Method : std::uint8_t {
  softmax = 0,      // "Default": key and weight softmax(x) over all E
  renormalize = 1,  // key x; weight softmax over the K chosen
  deepseek_v3 = 2,  // key sigmoid(x) + bias (inside the best groups); weight sigmoid(x_i) * s / (sum + eps)
  llama4 = 3,       // K = 1; key x; weight sigmoid(x_i)
  renormalize_naive = 4,  // as renormalize
  top_k = 5,              // key x; weight x_i
  sigmoid_renorm =
      6,  // key sigmoid(x); weight sigmoid(x_i) / max(sum, 1e-20), or sigmoid(x_i) without norm_topk_prob
  minimax2 = 7,       // key sigmoid(x) + bias; weight sigmoid(x_i) * s / (sum + eps)
  sigmoid = 8,        // key sigmoid(x); weight sigmoid(x_i)
  top_k_sigmoid = 9,  // key x; weight sigmoid(x_i)
};

// A method's name ("deepseek_v3"; "unknown" for a number that is none); the method of a name, kerf's or the
// op's own ("DeepSeekV3"), nothing for an unknown one.
std::string_view name(Method method);
std::optional<Method> method_named(std::string_view name);

// How a model's tokens choose their experts.
struct Router {
  Method method = Method::renormalize;
  std::int64_t experts = 0;       // E
  std::int64_t top_k = 0;         // K
  std::int64_t n_group = 0;       // deepseek_v3 only; <= 1: no groups
  std::int64_t topk_group = 0;    // deepseek_v3 only: how many groups, by the sum of their two best keys
  float routed_scaling = 1.0F;    // deepseek_v3 and minimax2 only; elsewhere 1
  bool norm_topk_prob = true;     // false: the weights are not divided by their sum
  float logit_multiplier = 1.0F;  // applied to every logit first, in f32 (Muse Spark: 2^-2.5)
  float sum_epsilon = 1e-20F;     // added to the sum that renormalises (Muse Spark: 1e-15)
};

// Muse Spark's router: a score is the sigmoid of the multiplied logit; the bias helps to choose and is left
// out of the weights, which are renormalised with epsilon 1e-15. The numbers are not checked (unsupported()).
Router muse_spark_router(std::int64_t experts, std::int64_t top_k);

// Nothing, or why this router cannot run: usage for numbers that make no sense (K > E, groups that do not
// divide E, a multiplier that is 0 or not finite, ...), unsupported for what its method does not have (llama4
// with K != 1, groups, scaling, norm_topk_prob = false) and for more than 256 groups.
Verdict unsupported(const Router& router);

// Selects for T rows of logits [T, E]; bias [E] or empty. ids [T, K] in descending order of the key, ties to
// the lower expert id, equal bits as keys (so +0 ranks above -0); weights [T, K] in f32 (an op that routes
// itself rounds them to bf16). Arithmetic: docs/numerics.md. Error{usage} where sizes do not fit and for a
// bias that the method does not take; unsupported()'s reason. A key that is NaN ranks below -inf, and an
// expert whose logit is NaN below that one: neither is chosen while (inside the best groups) anything else is
// left, and NaN logits take part in no sum that they are not chosen into. Weights are what the formulas give:
// NaN where a NaN was chosen, or where softmax meets +inf or nothing above -inf. Allocates nothing.
void select(const Router& router, std::span<const float> logits, std::span<const float> bias,
            std::span<std::int32_t> ids, std::span<float> weights);

}  // namespace kerf::routing
#pragma GCC visibility pop
