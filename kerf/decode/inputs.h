// Inputs of measured steps. Seed, layer and number of tokens determine them, on any rank, machine and run.
// All of it is integer arithmetic (splitmix64) with at most one IEEE division, and for rows of unit RMS a sum
// in one order and an IEEE square root, so that no maths library has a say in the bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/numeric/splitmix.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// What random numbers are for; streams of one (seed, layer, tokens) are independent of each other.
enum class Use : std::uint64_t { rows = 1, experts = 2, weights = 3, logits = 4, probe = 5 };

// The stream of random numbers for one use.
constexpr numeric::SplitMix stream_of(std::uint64_t seed, std::int64_t layer, std::int64_t tokens, Use use) {
  const auto scrambled = [](std::uint64_t z) { return numeric::SplitMix(z)[0]; };
  return numeric::SplitMix(
      scrambled(scrambled(scrambled(scrambled(seed) + static_cast<std::uint64_t>(layer)) +
                          static_cast<std::uint64_t>(tokens)) +
                static_cast<std::uint64_t>(use)));
}

// What the inputs of a layer are made for.
struct InputShape {
  std::int64_t experts = 0;  // E
  std::int64_t hidden = 0;   // H
  std::int64_t top_k = 0;    // K
};

// One layer's step. NVFP4 layers have ids and weights, BF16 layers (whose op routes itself) have logits.
struct Inputs {
  std::int64_t tokens = 0;
  std::vector<std::uint16_t> x;   // [T, H] bf16(bell / 37837)
  std::vector<std::int32_t> ids;  // [T, K] distinct within a token
  std::vector<float> weights;     // [T, K] (u + 1) / sum of them, u a 16-bit integer
  std::vector<float> logits;      // [T, E] integers in [-1024, 1024) over 256
};

// The rows alone, at any width: what the block around the experts is given, [T, width] bf16.
std::vector<std::uint16_t> make_rows(std::uint64_t seed, std::int64_t layer, std::int64_t tokens,
                                     std::int64_t width);

// One layer's step of `tokens` tokens: the same numbers on every rank and machine. Error{usage} unless tokens
// >= 0 and 1 <= K <= E.
Inputs make_inputs(std::uint64_t seed, std::int64_t layer, std::int64_t tokens, checkpoint::ExpertKind kind,
                   const InputShape& shape);

// Routes [T, K] that reach experts all over [0, E), so that every one of a few ranks serves some: with n =
// T*K routes, route r goes to r*E/n + (r/K) mod (E/n) where E >= n (all distinct), else to r mod E. From n =
// 2 * ranks on, every linear placement over `ranks` gives each rank at least one route: neighbours are at
// most 2*E/n experts apart.
std::vector<std::int32_t> spread_routes(std::int64_t tokens, std::int64_t top_k, std::int64_t experts);

// Rows [T, H] of unit RMS (bf16): bell-shaped, each row divided by its own root mean square (in f64), then
// rounded.
std::vector<std::uint16_t> unit_rows(std::uint64_t seed, std::int64_t tokens, std::int64_t hidden);

// Both, each route at weight 1/K: what probes, warm-ups and tuners run. No logits.
Inputs spread_inputs(std::uint64_t seed, std::int64_t tokens, const InputShape& shape);

}  // namespace kerf::decode
#pragma GCC visibility pop
