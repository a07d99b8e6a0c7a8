// The kernel in front of a step's experts: routes, metadata, quantised rows, and counters set to zero, in one
// launch up to most_fused_tokens tokens (more take three). Nothing is kept from one launch to the next.
#pragma once

#include <cstdint>
#include <span>

#include "kerf/cuda/device.h"
#include "kerf/op/sm90/ahead.h"
#include "kerf/routing/metadata.h"
#include "kerf/routing/router.h"

namespace kerf::op::sm90 {

inline constexpr std::int64_t most_fused_tokens = 64;
inline constexpr std::int64_t most_route_experts = 1024;
inline constexpr std::int64_t most_route_top_k = 32;
inline constexpr std::int64_t most_route_tokens = 65536;

// All pointers are to device memory, as aligned as DeviceMemory's blocks and rows in them are (8 bytes).
struct RouteInputs {
  // Routes: from logits [T, E] (f32; bias [E] or null) by the router, or given as ids and weights [T, K].
  const routing::Router* router = nullptr;  // host memory, read at the call; null: routes are given
  const float* logits = nullptr;
  const float* bias = nullptr;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  bool bf16_weights = false;  // the router's weights are rounded to bf16 (the op that routes itself)
  // Rows to quantise, [T, H] bf16, by the vllm recipe with global scale *gs (f32); null: none are.
  const std::uint16_t* x = nullptr;
  const float* gs = nullptr;
  std::int64_t hidden = 0;
  // The experts' weights that are asked for ahead, up to most_fused_tokens; without ids: none.
  Ahead ahead{};
};

struct RouteOutputs {
  // The routes' experts and weights, [T, K]; null: not wanted. A router's ids need a place. Given ones are
  // copied, and may be these very arrays.
  std::int32_t* ids = nullptr;
  float* weights = nullptr;
  routing::Metadata metadata;           // all nine; spans of device memory
  std::uint8_t* a = nullptr;            // [T, H/2]
  std::uint8_t* a_sf = nullptr;         // [T, H/16]
  std::span<std::uint32_t> counters{};  // set to zero (the op's)
};

// Nothing, or why the device cannot route so (T, E, K out of range, a router for other sizes,
// routing::unsupported()). router may be null: routes are given.
Verdict unsupported_route(const routing::MetadataShape& shape, const routing::Router* router);

// Enqueues; no host work besides launches, no allocation. The results are bit for bit those of
// routing::select(), routing::write_metadata() and numeric::quantise_rows(), but for the bits of a NaN weight
// that is not rounded to bf16. T = 0 is legal. Ids outside [0, E) count as not routed.
void route(const routing::MetadataShape& shape, const RouteInputs& in, const RouteOutputs& out,
           cuda::StreamHandle stream);

}  // namespace kerf::op::sm90
