// Selection: ranks, the sorted list of the best, and the weights. One pass over the experts a token, no
// memory but the caller's.
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/numeric/exp.h"
#include "kerf/routing/formulas.h"
#include "kerf/routing/methods.h"
#include "kerf/routing/router.h"

namespace kerf::routing {

using rules::Formulas;
using rules::formulas_of;
using rules::max_groups;
using rules::rank_of;
using rules::Score;
using rules::Traits;
using rules::traits_of;
using rules::Weight;

namespace {

// One token: its logits [E] and what selection needs to know of all of them.
class Token {
 public:
  Token(const Router& router, const Traits& traits, std::span<const float> logits,
        std::span<const float> bias)
      : router_(router), formulas_(formulas_of(router, traits)), logits_(logits), bias_(bias) {
    if (traits.score == Score::softmax) prepare_softmax();
  }

  // ids [K] and weights [K] of this token.
  void select(std::span<std::int32_t> ids, std::span<float> weights) const {
    choose(ids, weights);
    weigh(ids, weights);
  }

 private:
  [[nodiscard]] float logit(std::size_t e) const { return formulas_.x_of(logits_[e]); }

  // softmax(x)_e = E(x_e - max) / sum, with max and sum over all experts. A NaN logit takes part in neither.
  void prepare_softmax() {
    for (std::size_t e = 0; e < logits_.size(); ++e) {
      const float x = logit(e);
      if (x > max_) max_ = x;
    }
    std::array<float, rules::softmax_partials> partial{};
    for (std::size_t e = 0; e < logits_.size(); ++e) {
      const float x = logit(e);
      if (!std::isnan(x)) partial[e % partial.size()] += numeric::exp_f32(x - max_);
    }
    for (std::size_t half = partial.size() / 2; half > 0; half /= 2) {
      for (std::size_t m = 0; m < half; ++m) partial[m] += partial[m + half];
    }
    sum_ = partial[0];
  }

  [[nodiscard]] float key(std::size_t e) const {
    const float score = formulas_.score_of(logit(e), max_, sum_);
    return bias_.empty() ? score : score + bias_[e];
  }
  [[nodiscard]] std::uint32_t rank(std::size_t e) const {
    return std::isnan(logits_[e]) ? rules::nan_logit : rank_of(key(e));
  }

  // The sum of a group's two largest keys, ranked. A group has two experts at least.
  [[nodiscard]] std::uint32_t group_rank(std::size_t first, std::size_t size) const {
    std::pair<std::uint32_t, std::size_t> best{};
    std::pair<std::uint32_t, std::size_t> second{};
    for (std::size_t e = first; e < first + size; ++e) {
      const std::pair candidate{rank(e), e};
      if (e == first || candidate.first > best.first) {
        second = std::exchange(best, candidate);
      } else if (e == first + 1 || candidate.first > second.first) {
        second = candidate;
      }
    }
    return rank_of(key(best.second) + key(second.second));
  }

  // The K experts of highest rank, best first, the lower id first among equals. While it runs, weights hold
  // the bits of the ranks: the lists so far are sorted, and few experts get past the last of them.
  void choose(std::span<std::int32_t> ids, std::span<float> weights) const {
    std::size_t filled = 0;
    const auto offer = [&](std::size_t e) {
      const std::uint32_t r = rank(e);
      const auto below = [&](std::size_t slot) { return std::bit_cast<std::uint32_t>(weights[slot]) < r; };
      if (filled == ids.size()) {
        if (!below(filled - 1)) return;
      } else {
        ++filled;
      }
      std::size_t slot = filled - 1;
      for (; slot > 0 && below(slot - 1); --slot) {
        ids[slot] = ids[slot - 1];
        weights[slot] = weights[slot - 1];
      }
      ids[slot] = static_cast<std::int32_t>(e);
      weights[slot] = std::bit_cast<float>(r);
    };

    if (router_.n_group <= 1) {
      for (std::size_t e = 0; e < logits_.size(); ++e) offer(e);
      return;
    }
    const auto groups = static_cast<std::size_t>(router_.n_group);
    const std::size_t size = logits_.size() / groups;
    std::array<std::uint32_t, max_groups> ranks{};
    for (std::size_t g = 0; g < groups; ++g) ranks[g] = group_rank(g * size, size);
    for (std::size_t g = 0; g < groups; ++g) {
      std::int64_t better = 0;
      for (std::size_t o = 0; o < groups; ++o) {
        if (ranks[o] > ranks[g] || (ranks[o] == ranks[g] && o < g)) ++better;
      }
      if (better >= router_.topk_group) continue;
      for (std::size_t e = g * size; e < (g + 1) * size; ++e) offer(e);
    }
  }

  void weigh(std::span<const std::int32_t> ids, std::span<float> weights) const {
    const auto x = [&](std::size_t k) { return logit(static_cast<std::size_t>(ids[k])); };
    const float max = formulas_.weight == Weight::softmax_chosen ? x(0) : max_;
    for (std::size_t k = 0; k < ids.size(); ++k) weights[k] = formulas_.term_of(x(k), max, sum_);
    if (!formulas_.shares()) return;
    float sum = 0.0F;
    for (const float w : weights) sum += w;
    for (float& w : weights) w = formulas_.share_of(w, sum);
  }

  const Router& router_;
  Formulas formulas_;
  std::span<const float> logits_;
  std::span<const float> bias_;
  float max_ = -std::numeric_limits<float>::infinity();
  float sum_ = 0.0F;
};

}  // namespace

void select(const Router& router, std::span<const float> logits, std::span<const float> bias,
            std::span<std::int32_t> ids, std::span<float> weights) {
  require(unsupported(router));
  const Traits& traits = *traits_of(router.method);
  const auto experts = static_cast<std::size_t>(router.experts);
  const auto top_k = static_cast<std::size_t>(router.top_k);
  if (logits.size() % experts != 0) {
    fail(ErrorKind::usage, "{} router logits do not make rows of {} experts", logits.size(), experts);
  }
  const std::size_t tokens = logits.size() / experts;
  if (ids.size() != tokens * top_k || weights.size() != tokens * top_k) {
    fail(ErrorKind::usage, "room for {} ids and {} weights where {} tokens have {} routes each", ids.size(),
         weights.size(), tokens, top_k);
  }
  if (!bias.empty() && bias.size() != experts) {
    fail(ErrorKind::usage, "a router bias of {} values for {} experts", bias.size(), experts);
  }
  if (!bias.empty() && !traits.has(rules::takes_bias)) {
    fail(ErrorKind::usage, "routing method {} takes no bias", traits.name);
  }
  const FpGuard guard;
  for (std::size_t t = 0; t < tokens; ++t) {
    Token(router, traits, logits.subspan(t * experts, experts), bias)
        .select(ids.subspan(t * top_k, top_k), weights.subspan(t * top_k, top_k));
  }
}

}  // namespace kerf::routing
