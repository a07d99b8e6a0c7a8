// What the routing methods differ in, as one table: how an expert is scored and how a chosen one is weighted.
// Selection, the checks and the names are all driven by it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "kerf/routing/router.h"

namespace kerf::routing::rules {

enum class Score : std::uint8_t { logit, softmax, sigmoid };
enum class Weight : std::uint8_t {
  logit,
  sigmoid,
  softmax_all,
  softmax_chosen,
  sigmoid_share,
  sigmoid_scaled
};

inline constexpr unsigned takes_bias = 1;     // the key is score + bias
inline constexpr unsigned takes_groups = 2;   // may restrict itself to the best groups
inline constexpr unsigned takes_scaling = 4;  // routed_scaling takes part
inline constexpr unsigned takes_raw = 8;      // norm_topk_prob = false has a meaning, or changes nothing

// What the methods differ in. Everything else is common to them.
struct Traits {
  Method method;
  std::string_view name;
  std::string_view op_name;  // as the trtllm-gen op calls it
  Score score;               // what the key is made of
  Weight weight;
  unsigned options;

  [[nodiscard]] constexpr bool has(unsigned option) const { return (options & option) != 0; }
};

inline constexpr std::array<Traits, 10> table = {{
    {Method::softmax, "softmax", "Default", Score::softmax, Weight::softmax_all, takes_raw},
    {Method::renormalize, "renormalize", "Renormalize", Score::logit, Weight::softmax_chosen, 0},
    {Method::deepseek_v3, "deepseek_v3", "DeepSeekV3", Score::sigmoid, Weight::sigmoid_scaled,
     takes_bias | takes_groups | takes_scaling},
    {Method::llama4, "llama4", "Llama4", Score::logit, Weight::sigmoid, takes_raw},
    {Method::renormalize_naive, "renormalize_naive", "RenormalizeNaive", Score::logit, Weight::softmax_chosen,
     0},
    {Method::top_k, "top_k", "TopK", Score::logit, Weight::logit, takes_raw},
    {Method::sigmoid_renorm, "sigmoid_renorm", "SigmoidRenorm", Score::sigmoid, Weight::sigmoid_share,
     takes_raw},
    {Method::minimax2, "minimax2", "MiniMax2", Score::sigmoid, Weight::sigmoid_scaled,
     takes_bias | takes_scaling},
    {Method::sigmoid, "sigmoid", "Sigmoid", Score::sigmoid, Weight::sigmoid, takes_raw},
    {Method::top_k_sigmoid, "top_k_sigmoid", "TopKSigmoid", Score::logit, Weight::sigmoid, takes_raw},
}};

// Null for a number that is no method.
inline const Traits* traits_of(Method method) {
  const auto* const found = std::ranges::find(table, method, &Traits::method);
  return found == table.end() ? nullptr : found;
}

// Groups that a router may have: their ranks live on the stack, so that selection allocates nothing.
inline constexpr std::int64_t max_groups = 256;

}  // namespace kerf::routing::rules
