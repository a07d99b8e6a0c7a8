// The tails on the device: from the ranks' unfinalised rows to [T, H], by kernels that read what peers wrote
// straight from the peers' memory. They wait for nobody: whoever enqueues them sees to it that the rows are
// there (an edge of the graph, an event), or puts a wait_for_peers() in front (device_flags.h).
// Rows, gains and outputs begin at multiples of 16 bytes. What does not fit is Error{bug}, before anything is
// enqueued.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kerf/cuda/device.h"
#include "kerf/numeric/rank_sum.h"

namespace kerf::tail {

// What the kernels take.
inline constexpr int most_device_ranks = 16;
inline constexpr std::int64_t most_device_top_k = 32;
inline constexpr std::int64_t most_device_hidden = 16384;
inline constexpr std::int64_t device_hidden_unit = 64;     // H is a multiple of it
inline constexpr std::int64_t most_device_tokens = 65535;  // of one launch

// The norm with its gain in device memory.
struct DeviceNorm {
  bool present = false;
  const std::uint16_t* gain = nullptr;  // [H] bf16, or null
  bool gain_before_norm = true;
  float eps = 1e-8F;
};

// One rank's rows, in memory that this device can read.
struct DevicePart {
  const std::uint16_t* rows = nullptr;  // [gemm2_rows, H] bf16, or
  const float* sums = nullptr;          // [gemm2_rows, H] f32
  const std::int32_t* map = nullptr;    // [T*K], -1: not here
};

// Which sum makes a route's row out of the parts.
// A route that parts[0] does not have ("every part has every route") or no part has is passed over.
enum class RowSource : std::uint8_t {
  local,     // parts[0] alone has the routes that are here: others are passed over (EP, one rank)
  bf16_sum,  // every part has every route: bf16 K-partials, summed by numeric/rank_sum.h (fast TP)
  tree_sum,  // every part has every route: f32 sums, added by the segment tree's rule, times g2_alpha,
             // rounded
  any,       // the first part that has it: finished rows (exact EP)
  tree_any,  // parts are [rows][slices]: the row of ranks that has it; its slices' sums by the tree (exact
             // hybrid)
};

// A kernel's argument: what every block reads stands together, in few lines of the constant cache.
struct DeviceTail {
  std::int64_t tokens = 0, top_k = 0, hidden = 0;
  std::int64_t first = 0, count = 0;  // tokens [first, first + count) are ended here
  RowSource source = RowSource::local;
  int parts = 1;   // ranks
  int slices = 1;  // tree_any: parts of a row of ranks
  int outs = 1;
  const float* weights = nullptr;     // [T, K] (of parts[0]'s rank; the same on all)
  const std::int32_t* ids = nullptr;  // [T, K]; for g2_alpha
  const float* g2_alphas = nullptr;   // [E], by global expert: tree_sum, tree_any
  DeviceNorm norm;
  std::array<DevicePart, most_device_ranks> part{};
  // Where [T, H] bf16 goes: to each of `outs` buffers (this rank's own, and peers' where it hands tokens
  // round).
  std::array<std::uint16_t*, most_device_ranks> out{};
};

// Enqueues: out[t] for the tokens, the bits of the host's tails (tail.h). One launch. Error{device} where it
// cannot be made.
void device_tail(const DeviceTail& tail, cuda::StreamHandle stream);

// Sum over ranks of bf16 [values], in `order`: parts[r] are the ranks' values; values [first, first + count)
// are summed and written to each of `outs`. One launch. One-shot: every rank sums all for itself; two-shot:
// every rank sums its part and writes it to all. `first` and `count` are multiples of 8. An output may be one
// of the parts.
struct DeviceSum {
  numeric::SumOrder order = numeric::SumOrder::rank_order;
  int parts = 1;
  std::array<const std::uint16_t*, most_device_ranks> part{};
  int outs = 1;
  std::array<std::uint16_t*, most_device_ranks> out{};
  std::int64_t first = 0, count = 0;
};
void device_sum(const DeviceSum& sum, cuda::StreamHandle stream);

}  // namespace kerf::tail
