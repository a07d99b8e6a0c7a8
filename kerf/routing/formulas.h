// The formulas of selection, a value at a time: what ranks an expert and what a chosen one weighs. Host and
// device call these very functions, so that both get the same bits.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kerf/numeric/exp.h"
#include "kerf/routing/methods.h"
#include "kerf/routing/router.h"

namespace kerf::routing::rules {

// The order of keys as one unsigned number: the bits of the key, so that +0 ranks above -0, and every NaN
// below -inf.
inline constexpr std::uint32_t nan_logit = 0;
inline constexpr std::uint32_t nan_key = 1;
constexpr std::uint32_t rank_of(float key) {
  if (key != key) return nan_key;
  const auto bits = std::bit_cast<std::uint32_t>(key);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
static_assert(rank_of(-std::numeric_limits<float>::infinity()) > nan_key);

// The key of a rank, with NaN for both kinds of NaN.
constexpr float key_of(std::uint32_t rank) {
  return std::bit_cast<float>((rank & 0x80000000U) != 0 ? rank & 0x7FFFFFFFU : ~rank);
}
static_assert(key_of(rank_of(-0.5F)) == -0.5F && key_of(rank_of(2.0F)) == 2.0F);
static_assert(key_of(nan_logit) != key_of(nan_logit) && key_of(nan_key) != key_of(nan_key));

// The softmax over all experts adds up in so many partial sums, expert e in partial e % 256; these are halved
// until one is left.
inline constexpr int softmax_partials = 256;

// What a sum of shares is raised to at least.
inline constexpr float least_share_sum = 1e-20F;

// A router's formulas, without its sizes. x is a multiplied logit.
struct Formulas {
  Score score = Score::logit;
  Weight weight = Weight::logit;
  float multiplier = 1.0F;
  float scaling = 1.0F;
  float epsilon = 0.0F;
  bool normalises = true;

  [[nodiscard]] constexpr float x_of(float logit) const { return logit * multiplier; }

  // The key, without its bias. max and sum: of the softmax over all experts, where there is one.
  [[nodiscard]] constexpr float score_of(float x, float max, float sum) const {
    switch (score) {
      case Score::logit:
        return x;
      case Score::softmax:
        return numeric::exp_f32(x - max) / sum;
      case Score::sigmoid:
        break;
    }
    return numeric::sigmoid_f32(x);
  }

  // A chosen expert's weight, as far as it depends on no other weight. max: over all experts, or the x of the
  // first one chosen where the softmax is over the chosen.
  [[nodiscard]] constexpr float term_of(float x, float max, float sum) const {
    switch (weight) {
      case Weight::logit:
        return x;
      case Weight::softmax_all:
        return numeric::exp_f32(x - max) / sum;
      case Weight::softmax_chosen:
        return numeric::exp_f32(x - max);
      case Weight::sigmoid:
      case Weight::sigmoid_share:
      case Weight::sigmoid_scaled:
        break;
    }
    return numeric::sigmoid_f32(x);
  }

  // Whether weights are these terms' shares in their sum, which begins at +0 and goes through k upwards.
  [[nodiscard]] constexpr bool shares() const {
    return weight == Weight::softmax_chosen || weight == Weight::sigmoid_scaled ||
           (weight == Weight::sigmoid_share && normalises);
  }
  [[nodiscard]] constexpr float share_of(float term, float sum) const {
    if (weight == Weight::sigmoid_scaled) return term * scaling / (sum + epsilon);
    if (weight == Weight::sigmoid_share && sum < least_share_sum)
      return term / least_share_sum;  // a NaN stays
    return term / sum;
  }
};

// Those of a router; traits: of its method.
constexpr Formulas formulas_of(const Router& router, const Traits& traits) {
  return {.score = traits.score,
          .weight = traits.weight,
          .multiplier = router.logit_multiplier,
          .scaling = router.routed_scaling,
          .epsilon = router.sum_epsilon,
          .normalises = router.norm_topk_prob};
}

}  // namespace kerf::routing::rules
