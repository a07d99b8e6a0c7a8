// A step's routing on the host and on the device: all that both must leave behind, bit for bit.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kerf/cuda/device.h"
#include "kerf/numeric/bf16.h"
#include "kerf/numeric/nvfp4.h"
#include "kerf/op/sm90/route.h"
#include "tests/support/gpu.h"

namespace kerf::test {

struct RouteProblem {
  routing::MetadataShape shape;
  std::optional<routing::Router> router;  // none: routes are given
  std::vector<float> logits, bias;        // [T, E], [E] or none
  std::vector<std::int32_t> ids;          // [T, K]
  std::vector<float> weights;             // [T, K]
  bool bf16_weights = false;
  std::vector<std::uint16_t> x;  // [T, H]; H = 0: no rows
  float gs = 1.0F;
  std::int64_t hidden = 0;
  bool ahead = false;  // some weights are asked for ahead, by the given ids, which may be any

  [[nodiscard]] std::size_t routes() const { return static_cast<std::size_t>(shape.routes()); }
};

// Results in words and bytes that were poison before, each with some poison behind it.
struct Routed {
  std::vector<std::int32_t> metadata;  // all nine tensors and what lies between them
  std::vector<std::int32_t> ids, weights;
  std::vector<std::uint8_t> a, a_sf;
  std::vector<std::uint32_t> counters;

  friend bool operator==(const Routed&, const Routed&) = default;
};

namespace route_detail {

inline constexpr std::int32_t poison = 0x3A7A5A7A;
inline constexpr std::size_t behind = 64;  // words or bytes
inline constexpr std::size_t counters = 37;
// Of an expert: a piece and a bit of what is asked for at once; less than a piece.
inline constexpr std::int64_t ahead_bytes[] = {16400, 48};

// A NaN that the processor makes has other bits than one that the GPU makes.
inline void one_nan(std::span<std::int32_t> floats) {
  for (std::int32_t& v : floats)
    if (std::isnan(std::bit_cast<float>(v))) v = 0x7FFFFFFF;
}

template <typename T>
std::span<float> as_floats(std::span<T> words) {
  return {reinterpret_cast<float*>(words.data()), words.size()};
}

inline std::size_t words_of(const routing::MetadataShape& shape) {
  return static_cast<std::size_t>(routing::metadata_words(shape)) + behind;
}

inline void unify_nans(const RouteProblem& p, Routed& r) {
  one_nan(std::span(r.weights).first(p.routes()));
  const std::span<float> w = routing::metadata_in(r.metadata, p.shape).expert_weights.first(p.routes());
  one_nan({reinterpret_cast<std::int32_t*>(w.data()), w.size()});
}

}  // namespace route_detail

inline Routed route_on_host(const RouteProblem& p) {
  using namespace route_detail;
  Routed out{.metadata = std::vector<std::int32_t>(words_of(p.shape), poison),
             .ids = std::vector<std::int32_t>(p.routes() + behind, poison),
             .weights = std::vector<std::int32_t>(p.routes() + behind, poison),
             .a = std::vector<std::uint8_t>(p.x.size() / 2 + behind, 0x5A),
             .a_sf = std::vector<std::uint8_t>(p.x.size() / 16 + behind, 0x5A),
             .counters = std::vector<std::uint32_t>(counters + behind, 0x5A)};
  const std::span<std::int32_t> ids = std::span(out.ids).first(p.routes());
  const std::span<float> weights = as_floats(std::span(out.weights).first(p.routes()));
  if (p.router) {
    routing::select(*p.router, p.logits, p.bias, ids, weights);
    if (p.bf16_weights)
      for (float& w : weights) w = numeric::round_to_bf16(w);
  } else {
    std::ranges::copy(p.ids, ids.begin());
    std::ranges::copy(p.weights, weights.begin());
  }
  routing::write_metadata(p.shape, ids, weights, routing::metadata_in(out.metadata, p.shape));
  if (!p.x.empty())
    numeric::quantise_rows(p.x, p.hidden, p.gs, std::span(out.a).first(p.x.size() / 2),
                           std::span(out.a_sf).first(p.x.size() / 16));
  std::fill_n(out.counters.begin(), counters, 0);
  unify_nans(p, out);
  return out;
}

// Always the same buffers, so that a captured launch can be replayed on another problem of the same sizes.
class RouteOnDevice {
 public:
  RouteOnDevice(std::size_t tokens, std::size_t experts, std::size_t top_k, std::size_t hidden)
      : logits_(tokens * experts, 0.0F),
        bias_(experts, 0.0F),
        given_weights_(tokens * top_k, 0.0F),
        gs_(1, 0.0F),
        given_ids_(tokens * top_k, 0),
        ids_(tokens * top_k + route_detail::behind, 0),
        weights_(tokens * top_k + route_detail::behind, 0),
        metadata_(tokens * top_k * 80 + 8 * experts + 4096, 0),
        x_(tokens * hidden, 0),
        a_(tokens * hidden / 2 + route_detail::behind, 0),
        a_sf_(tokens * hidden / 16 + route_detail::behind, 0),
        counters_(route_detail::counters + route_detail::behind, 0),
        experts_(experts * static_cast<std::size_t>(route_detail::ahead_bytes[0]), 0) {}

  // The inputs, and poison where results go.
  void put(const RouteProblem& p) {
    using namespace route_detail;
    copy_in(logits_, p.logits);
    copy_in(bias_, p.bias);
    copy_in(given_ids_, p.ids);
    copy_in(given_weights_, p.weights);
    copy_in(x_, p.x);
    copy_in(gs_, std::vector{p.gs});
    copy_in(metadata_, std::vector(words_of(p.shape), poison));
    copy_in(ids_, std::vector(p.routes() + behind, poison));
    copy_in(weights_, std::vector(p.routes() + behind, poison));
    copy_in(a_, std::vector<std::uint8_t>(p.x.size() / 2 + behind, 0x5A));
    copy_in(a_sf_, std::vector<std::uint8_t>(p.x.size() / 16 + behind, 0x5A));
    copy_in(counters_, std::vector<std::uint32_t>(counters + behind, 0x5A));
  }

  void enqueue(const RouteProblem& p, cuda::StreamHandle stream) const {
    using namespace route_detail;
    const bool rows = !p.x.empty();
    op::sm90::route(p.shape,
                    {.router = p.router ? &*p.router : nullptr,
                     .logits = logits_.get(),
                     .bias = p.bias.empty() ? nullptr : bias_.get(),
                     .ids = given_ids_.get(),
                     .weights = given_weights_.get(),
                     .bf16_weights = p.bf16_weights,
                     .x = rows ? x_.get() : nullptr,
                     .gs = gs_.get(),
                     .hidden = p.hidden,
                     .ahead = p.ahead ? ahead(p.shape) : op::sm90::Ahead{}},
                    {.ids = ids_.get(),
                     .weights = reinterpret_cast<float*>(weights_.get()),
                     .metadata = routing::metadata_in(metadata_.span(), p.shape),
                     .a = a_.get(),
                     .a_sf = a_sf_.get(),
                     .counters = counters_.span().first(counters)},
                    stream);
  }

  // After the stream has been waited for.
  [[nodiscard]] Routed result(const RouteProblem& p) const {
    using namespace route_detail;
    Routed out{.metadata = copy_out(metadata_, words_of(p.shape)),
               .ids = copy_out(ids_, p.routes() + behind),
               .weights = copy_out(weights_, p.routes() + behind),
               .a = copy_out(a_, p.x.size() / 2 + behind),
               .a_sf = copy_out(a_sf_, p.x.size() / 16 + behind),
               .counters = copy_out(counters_, counters + behind)};
    unify_nans(p, out);
    return out;
  }

 private:
  [[nodiscard]] op::sm90::Ahead ahead(const routing::MetadataShape& shape) const {
    op::sm90::Ahead a{.ids = given_ids_.get(),
                      .routes = static_cast<std::int32_t>(shape.routes()),
                      .first_expert = static_cast<std::int32_t>(shape.offset),
                      .experts = static_cast<std::int32_t>(shape.local),
                      .most_bytes = 1 << 20};
    for (auto& gemm : a.matrices)
      for (const std::size_t i : {0, 1}) gemm[i] = {experts_.get(), route_detail::ahead_bytes[i]};
    return a;
  }
  template <typename T>
  static void copy_in(const OnDevice<T>& to, const std::vector<T>& from) {
    ASSERT_LE(from.size(), to.span().size());
    cuda::copy(to.get(), from.data(), from.size() * sizeof(T));
  }
  template <typename T>
  static std::vector<T> copy_out(const OnDevice<T>& from, std::size_t count) {
    std::vector<T> out(count);
    cuda::copy(out.data(), from.get(), count * sizeof(T));
    return out;
  }

  OnDevice<float> logits_, bias_, given_weights_, gs_;
  OnDevice<std::int32_t> given_ids_, ids_, weights_, metadata_;
  OnDevice<std::uint16_t> x_;
  OnDevice<std::uint8_t> a_, a_sf_;
  OnDevice<std::uint32_t> counters_;
  OnDevice<std::uint8_t> experts_;
};

}  // namespace kerf::test
