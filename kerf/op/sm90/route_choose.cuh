// routing::select() on the device: a thread holds one expert of one token. Each warp puts its 32 experts in
// order; then one warp a token lets the heads of the sorted lists compete, K times.
#pragma once

#include <cstdint>

#include "kerf/numeric/bf16.h"
#include "kerf/routing/formulas.h"

namespace kerf::op::sm90 {

inline constexpr unsigned all_lanes = 0xFFFFFFFFU;
inline constexpr int most_warps = 32;  // of a block, and of a token: 1,024 experts
inline constexpr int most_chosen = 32;

struct Choose {
  routing::rules::Formulas formulas;
  const float* logits = nullptr;  // [T, E]
  const float* bias = nullptr;    // [E] or null
  int tokens = 0, experts = 0, top_k = 0;
  int groups = 1, best_groups = 1;
  int warps = 1;  // that a token takes
  bool bf16_weights = false;
};

// A token's W warps stand side by side; everything below is laid out by the block's warps or threads.
struct ChooseShared {
  float x[32 * most_warps];               // multiplied logits
  union {                                 // by thread, one after the other
    float term[32 * most_warps];          // of the softmax over all
    std::uint32_t rank[32 * most_warps];  // while groups are ranked
    uint4 order[8 * most_warps];          // ranks + 1, 0: takes no part
  };
  // {rank + 1, expert}, best first. Two more are read, never chosen; an odd stride spreads the banks.
  uint2 list[most_warps][most_chosen + 3];
  std::uint32_t max[most_warps];         // ranks
  float sum[most_warps];                 // a token's first warp
  std::uint32_t group[16 * most_warps];  // ranks; a group has two experts at least
  int chosen[most_warps][most_chosen];   // a token's first warp
};

// This thread's place: expert `e` of the block's token `slot`. Where `here` is false there is no such expert
// or token, and the thread only keeps the others company.
struct Place {
  int warp, lane;
  int first_warp;  // of the token
  int e;
  bool here;
};

// The softmax over all experts: the largest x and the sum. Threads of one token get the same.
struct SoftmaxOfAll {
  float max, sum;
};
__device__ inline SoftmaxOfAll softmax_of_all(const Choose& c, const Place& at, float x, ChooseShared& s) {
  using namespace routing::rules;
  const bool counts = at.here && x == x;
  const std::uint32_t highest = __reduce_max_sync(all_lanes, counts ? rank_of(x) : rank_of(-INFINITY));
  if (at.lane == 0) s.max[at.warp] = highest;
  __syncthreads();
  const float max = key_of(
      __reduce_max_sync(all_lanes, at.lane < c.warps ? s.max[at.first_warp + at.lane] : rank_of(-INFINITY)));
  s.term[threadIdx.x] = counts ? numeric::exp_f32(x - max) : 0.0F;
  __syncthreads();
  if (at.warp == at.first_warp) {
    constexpr int warps = softmax_partials / 32;
    float p[warps] = {};
    for (int j = 0; j < c.warps; j += warps)
      for (int i = 0; i < warps; ++i)
        if (i + j < c.warps) p[i] += s.term[32 * (at.first_warp + i + j) + at.lane];
    for (int half = warps / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) p[i] += p[i + half];
    float sum = p[0];
    for (int half = 16; half > 0; half /= 2) sum += __shfl_down_sync(all_lanes, sum, half);
    if (at.lane == 0) s.sum[at.warp] = sum;
  }
  __syncthreads();
  return {max, s.sum[at.first_warp]};
}

// Whether this thread's expert is in one of the best groups. Groups are ranked by the sum of their two
// largest keys, ties to the lower group.
__device__ inline bool in_best_groups(const Choose& c, const Place& at, std::uint32_t rank, ChooseShared& s) {
  const int size = c.experts / c.groups;
  std::uint32_t* const groups = s.group + 16 * at.first_warp;
  s.rank[threadIdx.x] = rank;
  __syncthreads();
  for (int g = at.warp - at.first_warp; g < c.groups; g += c.warps) {
    const std::uint32_t* const ranks = s.rank + 32 * at.first_warp + g * size;
    std::uint32_t best = 0;  // ranks + 1; 0: none
    std::uint32_t second = 0;
    for (int i = at.lane; i < size; i += 32) {
      const std::uint32_t r = ranks[i] + 1;
      second = max(second, min(best, r));
      best = max(best, r);
    }
    const std::uint32_t first = __reduce_max_sync(all_lanes, best);
    const bool wins = __ffs(static_cast<int>(__ballot_sync(all_lanes, best == first))) - 1 == at.lane;
    const std::uint32_t next = __reduce_max_sync(all_lanes, wins ? second : best);
    if (at.lane == 0) {
      using namespace routing::rules;
      groups[g] = rank_of(key_of(first - 1) + key_of(next - 1));
    }
  }
  __syncthreads();
  if (!at.here) return false;
  const int mine = at.e / size;
  const std::uint32_t r = groups[mine];
  int better = 0;
  for (int g = 0; g < c.groups; ++g) better += (g < mine ? groups[g] >= r : groups[g] > r) ? 1 : 0;
  return better < c.best_groups;
}

// Sorts the warp's 32 experts into its list: an expert's place is how many are before it.
__device__ inline void sort_warp(const Place& at, std::uint32_t order, ChooseShared& s) {
  reinterpret_cast<std::uint32_t*>(s.order)[threadIdx.x] = order;
  __syncwarp();
  int before = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint4 four = s.order[8 * at.warp + i];
    const std::uint32_t others[4] = {four.x, four.y, four.z, four.w};
    for (int j = 0; j < 4; ++j)
      before += (4 * i + j < at.lane ? others[j] >= order : others[j] > order) ? 1 : 0;
  }
  s.list[at.warp][before] = {order, static_cast<std::uint32_t>(at.e)};
}

// One warp: the best K of a token's lists. A lane has the head of a list, and what follows it, so that the
// next round need not wait for memory. Lower lists have lower experts.
__device__ inline int choose(const Choose& c, const Place& at, ChooseShared& s) {
  const bool has_list = at.lane < c.warps;
  const uint2* list = s.list[at.first_warp + (has_list ? at.lane : 0)];
  uint2 head = has_list ? list[0] : uint2{0, 0};
  uint2 following = list[1];
  const unsigned lanes_below = (1U << at.lane) - 1;
  for (int k = 0; k < c.top_k; ++k) {
    const std::uint32_t best = __reduce_max_sync(all_lanes, head.x);
    const bool ties = head.x == best;
    const unsigned all_ties = __ballot_sync(all_lanes, ties);
    const bool wins = ties && (all_ties & lanes_below) == 0;
    if (wins) s.chosen[at.first_warp][k] = static_cast<int>(head.y);
    head.x = wins ? following.x : head.x;
    head.y = wins ? following.y : head.y;
    list += wins ? 1 : 0;
    following = list[1];
  }
  __syncwarp();
  return at.lane < c.top_k ? s.chosen[at.first_warp][at.lane] : 0;
}

// One warp: the weight of the expert that lane k has chosen, in lanes below K.
__device__ inline float weigh(const Choose& c, const Place& at, int chosen, const SoftmaxOfAll& all,
                              const ChooseShared& s) {
  using namespace routing::rules;
  const float x = s.x[32 * at.first_warp + chosen];
  const float max = c.formulas.weight == Weight::softmax_chosen ? __shfl_sync(all_lanes, x, 0) : all.max;
  float weight = c.formulas.term_of(x, max, all.sum);
  if (c.formulas.shares()) {
    float sum = 0.0F;
    constexpr int at_once = 8;
    for (int first = 0; first < c.top_k; first += at_once)
#pragma unroll
      for (int k = first; k < first + at_once; ++k) {
        const float term = __shfl_sync(all_lanes, weight, k);
        if (k < c.top_k) sum += term;
      }
    weight = c.formulas.share_of(weight, sum);
  }
  return c.bf16_weights ? numeric::round_to_bf16(weight) : weight;
}

// All threads of block `block` of `blocks` call this; they are a multiple of 32 * c.warps. All of them call
// `ready()` before `emit(route, id, weight)` is called once a route.
template <typename Ready, typename Emit>
__device__ inline void choose_tokens(const Choose& c, int block, int blocks, ChooseShared& s, Ready ready,
                                     Emit emit) {
  using namespace routing::rules;
  Place at{};
  at.warp = static_cast<int>(threadIdx.x) / 32;
  at.lane = static_cast<int>(threadIdx.x) % 32;
  const int slots = static_cast<int>(blockDim.x) / 32 / c.warps;
  const int slot = at.warp / c.warps;
  at.first_warp = slot * c.warps;
  at.e = 32 * (at.warp - at.first_warp) + at.lane;
  const bool in_row = at.e < c.experts;
  const int first = block * slots + slot;
  const int step = blocks * slots;
  const auto logit_of = [&](int token) {
    return in_row && token < c.tokens ? c.logits[static_cast<std::int64_t>(token) * c.experts + at.e] : 0.0F;
  };
  const bool biased = c.bias != nullptr;
  const float bias = biased && in_row ? c.bias[at.e] : 0.0F;

  float logit = logit_of(first);
  ready();
  for (int token = first; token - slot < c.tokens; token += step) {
    at.here = in_row && token < c.tokens;
    const float x = c.formulas.x_of(logit);
    logit = logit_of(token + step);  // the next one is on its way meanwhile
    s.x[threadIdx.x] = x;
    SoftmaxOfAll all{};
    if (c.formulas.score == Score::softmax) all = softmax_of_all(c, at, x, s);
    const float score = c.formulas.score_of(x, all.max, all.sum);
    const std::uint32_t rank = x != x ? nan_logit : rank_of(biased ? score + bias : score);
    const bool takes_part = c.groups > 1 ? in_best_groups(c, at, rank, s) : at.here;
    sort_warp(at, takes_part ? rank + 1 : 0, s);
    __syncthreads();
    if (at.warp == at.first_warp && token < c.tokens) {
      const int id = choose(c, at, s);
      const float weight = weigh(c, at, id, all, s);
      if (at.lane < c.top_k) emit(token * c.top_k + at.lane, id, weight);
    }
    __syncthreads();
  }
}

}  // namespace kerf::op::sm90
