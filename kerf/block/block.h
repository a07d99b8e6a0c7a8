// What stands around the routed experts in a layer, from the normed rows x [T, D] of the model's width to the
// block's output [T, D]: before the experts (enter) the router's logits, always from x itself, and the
// experts' own input, which is x, or for models with a pool (Muse Spark) x projected to the experts' width H
// and normed; after the experts (leave) the projection back. What lies between, quantisation, experts, tail
// and the sum over ranks, is the caller's. Every rank computes the whole of it alike, to the bit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kerf/base/error.h"
#include "kerf/base/threads.h"
#include "kerf/block/project.h"
#include "kerf/routing/router.h"
#include "kerf/tail/tail.h"
#include "kerf/tensor/storage.h"

#pragma GCC visibility push(default)
namespace kerf::block {

// Norms and projections between the model's width D and the experts' H.
struct Pool {
  Matrix pre;            // [H, D] bf16
  tail::RouteNorm norm;  // of the projected rows: its gain [H] comes last
  Matrix post;           // [D, H] bf16
};

// One layer's weights, as views.
struct Weights {
  Matrix gate;                  // [E, D], f32 or bf16
  routing::Router router;       // what turns logits into routes
  std::span<const float> bias;  // [E] for the selection, or empty
  std::optional<Pool> pool;     // none: the experts take x itself, H = D

  [[nodiscard]] std::int64_t experts() const { return gate.rows; }                            // E
  [[nodiscard]] std::int64_t model_hidden() const { return gate.columns; }                    // D
  [[nodiscard]] std::int64_t hidden() const { return pool ? pool->pre.rows : gate.columns; }  // H
  // Bytes that a step reads of them, a pool's gain included.
  [[nodiscard]] std::int64_t bytes() const;
};

// Nothing, or why these weights cannot be used: routing::unsupported()'s reason for the router, bug where the
// sizes of the views do not fit each other.
Verdict unsupported(const Weights& weights);

// Room for steps of up to `tokens` tokens; one serves all layers.
struct Scratch {
  Scratch() = default;
  // For weights of the sizes of `like`, T up to `tokens`, with a pool of `workers` threads. Error{memory}.
  Scratch(tensor::Memory& memory, const Weights& like, std::int64_t tokens, int workers);
  tensor::Tensor logits;  // [T, E] f32
  tensor::Tensor pooled;  // [T, H] bf16, models with a pool: projected, then normed in place
  tensor::Tensor values;  // [workers, H] f32, models with a pool
  tensor::Tensor out;     // [T, D] bf16, models with a pool
};

// What the experts' step takes: valid until the scratch is used again, rows without a pool as long as x.
struct Entered {
  std::span<const float> logits;        // [T, E]: router.h's select() makes the routes, with weights.bias
  std::span<const std::uint16_t> rows;  // [T, H] bf16
};

// x [T, D] bf16 (raw bits). Without a pool the rows are x itself. Local, and allocates nothing, as leave().
// Both: Error{bug} where sizes do not fit.
Entered enter(const Weights& weights, std::int64_t tokens, std::span<const std::uint16_t> x,
              const Workers& workers, const Scratch& scratch);

// m [T, H] bf16, summed over ranks -> [T, D] bf16, in the scratch until that is used again; without a pool m
// itself.
std::span<const std::uint16_t> leave(const Weights& weights, std::int64_t tokens,
                                     std::span<const std::uint16_t> m, const Workers& workers,
                                     const Scratch& scratch);

}  // namespace kerf::block
#pragma GCC visibility pop
