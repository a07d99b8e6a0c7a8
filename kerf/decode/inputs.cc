#include "kerf/decode/inputs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/numeric/bf16.h"

namespace kerf::decode {

namespace {

// An integer in [0, n) from the upper half of a word.
constexpr std::uint64_t below(std::uint64_t word, std::uint64_t n) { return ((word >> 32) * n) >> 32; }

std::vector<std::int32_t> distinct_experts(const numeric::SplitMix& stream, std::int64_t tokens,
                                           const InputShape& shape) {
  const auto k_count = static_cast<std::size_t>(shape.top_k);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens) * k_count);
  std::vector<std::int32_t> deck(static_cast<std::size_t>(shape.experts));
  for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
    std::iota(deck.begin(), deck.end(), 0);  // a partial Fisher-Yates shuffle a token, each from a fresh deck
    for (std::size_t k = 0; k < k_count; ++k) {
      const std::size_t r = t * k_count + k;
      std::swap(deck[k], deck[k + below(stream[r], deck.size() - k)]);
      ids[r] = deck[k];
    }
  }
  return ids;
}

std::vector<float> route_weights(const numeric::SplitMix& stream, std::int64_t tokens, std::int64_t top_k) {
  std::vector<float> weights(static_cast<std::size_t>(tokens * top_k));
  const auto k_count = static_cast<std::size_t>(top_k);
  for (std::size_t first = 0; first < weights.size(); first += k_count) {
    std::uint64_t sum = 0;
    for (std::size_t r = first; r < first + k_count; ++r) sum += (stream[r] >> 48) + 1;
    for (std::size_t r = first; r < first + k_count; ++r)
      weights[r] = static_cast<float>((stream[r] >> 48) + 1) / static_cast<float>(sum);
  }
  return weights;
}

}  // namespace

std::vector<std::uint16_t> make_rows(std::uint64_t seed, std::int64_t layer, std::int64_t tokens,
                                     std::int64_t width) {
  const FpGuard guard;
  const numeric::SplitMix values = stream_of(seed, layer, tokens, Use::rows);
  std::vector<std::uint16_t> x(static_cast<std::size_t>(tokens * width));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = numeric::f32_to_bf16(static_cast<float>(numeric::bell(values[i])) / numeric::bell_deviation);
  return x;
}

Inputs make_inputs(std::uint64_t seed, std::int64_t layer, std::int64_t tokens, checkpoint::ExpertKind kind,
                   const InputShape& shape) {
  if (tokens < 0 || shape.top_k < 1 || shape.top_k > shape.experts)
    fail(ErrorKind::usage, "cannot make inputs of {} tokens for {} of {} experts", tokens, shape.top_k,
         shape.experts);
  const FpGuard guard;
  Inputs out;
  out.tokens = tokens;
  out.x = make_rows(seed, layer, tokens, shape.hidden);
  if (kind == checkpoint::ExpertKind::nvfp4) {
    out.ids = distinct_experts(stream_of(seed, layer, tokens, Use::experts), tokens, shape);
    out.weights = route_weights(stream_of(seed, layer, tokens, Use::weights), tokens, shape.top_k);
    return out;
  }
  const numeric::SplitMix integers = stream_of(seed, layer, tokens, Use::logits);
  out.logits.resize(static_cast<std::size_t>(tokens * shape.experts));
  for (std::size_t i = 0; i < out.logits.size(); ++i)
    out.logits[i] = static_cast<float>(static_cast<std::int64_t>(below(integers[i], 2048)) - 1024) / 256.0F;
  return out;
}

std::vector<std::int32_t> spread_routes(std::int64_t tokens, std::int64_t top_k, std::int64_t experts) {
  const std::int64_t routes = tokens * top_k;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(routes));
  for (std::int64_t r = 0; r < routes; ++r) {
    const std::int64_t id =
        experts >= routes ? r * experts / routes + (r / top_k) % (experts / routes) : r % experts;
    ids[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(id);
  }
  return ids;
}

std::vector<std::uint16_t> unit_rows(std::uint64_t seed, std::int64_t tokens, std::int64_t hidden) {
  const FpGuard guard;
  const numeric::SplitMix values = stream_of(seed, 0, tokens, Use::probe);
  std::vector<std::uint16_t> x(static_cast<std::size_t>(tokens * hidden));
  const auto width = static_cast<std::size_t>(hidden);
  for (std::size_t first = 0; first < x.size(); first += width) {
    double squares = 0;  // integers below 2^35 each: exact up to 2^18 of them, and in one order beyond
    for (std::size_t i = first; i < first + width; ++i) {
      const double v = numeric::bell(values[i]);
      squares += v * v;
    }
    const double rms = std::sqrt(squares / static_cast<double>(hidden));
    for (std::size_t i = first; i < first + width; ++i)
      x[i] = numeric::f32_to_bf16(static_cast<float>(numeric::bell(values[i]) / rms));
  }
  return x;
}

Inputs spread_inputs(std::uint64_t seed, std::int64_t tokens, const InputShape& shape) {
  Inputs out;
  out.tokens = tokens;
  out.x = unit_rows(seed, tokens, shape.hidden);
  out.ids = spread_routes(tokens, shape.top_k, shape.experts);
  out.weights.assign(out.ids.size(), 1.0F / static_cast<float>(shape.top_k));
  return out;
}

}  // namespace kerf::decode
