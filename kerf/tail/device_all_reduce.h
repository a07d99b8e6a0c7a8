// All-reduces over GPUs by peer pointers: values are written into the peers' areas, and a flag behind them
// (device_flags.h). Bits are numeric/rank_sum.h's.
#pragma once

#include <cstdint>
#include <span>

#include "kerf/numeric/rank_sum.h"
#include "kerf/tail/device_flags.h"

namespace kerf::tail {

// How values travel.
//   one_shot   every rank writes its values to all, and sums all of them: one meeting, for few values
//   two_shot   every rank receives its part of the values, sums that, and writes the sums to all: two
//              meetings, and 2 / ranks of the bytes
enum class Shots : std::uint8_t { one_shot, two_shot };

// half_bytes of the areas for up to `values` bf16 values: a multiple of 256.
std::int64_t all_reduce_half_bytes(Shots shots, int ranks, std::int64_t values);

// One rank's call. All ranks have the same shots, order and number of values.
struct DeviceAllReduce {
  Peers peers;
  Shots shots = Shots::one_shot;
  numeric::SumOrder order = numeric::SumOrder::rank_order;
  const std::uint16_t* mine = nullptr;  // [values] bf16
  std::uint16_t* sum = nullptr;         // [values] bf16; may be `mine`
  std::int64_t values = 0;              // a multiple of 8
};

// Enqueues one rank's call. Here and below: Error{bug} for what does not fit (values at multiples of 16
// bytes, areas that are large enough), Error{device} where it cannot be launched.
void device_all_reduce(const DeviceAllReduce& call, cuda::StreamHandle stream);
// The calls of ranks that share a GPU, in one cooperative launch. `ranks` need not be all of them.
void device_all_reduce(std::span<const DeviceAllReduce> ranks, cuda::StreamHandle stream);

}  // namespace kerf::tail
