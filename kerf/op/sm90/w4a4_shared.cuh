// The places in a block's shared memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kerf/op/sm90/w4a4_shape.h"

namespace kerf::op::sm90::w4a4 {

struct Record;

// The block's shared memory, by what it holds.
struct Shared {
  __device__ Shared(std::byte* base, const SharedPlan& p)
      : ring(base),
        operand(base + p.operand),
        scales(reinterpret_cast<float*>(base + p.scales)),
        partials(reinterpret_cast<float*>(base + p.partials)),
        stack(reinterpret_cast<float*>(base + p.stack)),
        ring_full(reinterpret_cast<std::uint64_t*>(base + p.barriers)),
        ring_empty(ring_full + warpgroups * most_stages),
        record_full(ring_empty + warpgroups * most_stages),
        record_empty(record_full + record_slots),
        records(reinterpret_cast<Record*>(base + p.records)),
        arrived(reinterpret_cast<int*>(base + p.arrived)) {}

  std::byte* ring;  // [warpgroups][stages][chunk_bytes]: codes, scales
  std::byte* operand;
  float* scales;
  float* partials;
  float* stack;
  std::uint64_t* ring_full;   // [warpgroups][most_stages]
  std::uint64_t* ring_empty;  // [warpgroups][most_stages]
  std::uint64_t* record_full;
  std::uint64_t* record_empty;
  Record* records;
  int* arrived;
};

}  // namespace kerf::op::sm90::w4a4
