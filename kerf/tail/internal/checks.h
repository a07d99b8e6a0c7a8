// Sizes that the tails rely on. All refusals are bugs of the caller; nothing is allocated where all is well.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kerf/tail/internal/finish.h"

namespace kerf::tail::internal {

// Weights and map [T, K], out [T, H], gain [H] or empty, map entries in [-1, n) for rows (or sums) of `held`
// = n * H values; scratch for two rows of f32 values for each worker.
void check(const Call& call, std::size_t held);

void check_size(const char* name, std::size_t got, std::int64_t wanted);

// `name` has room for `wanted` bytes.
void check_room(const char* name, const tensor::Tensor& tensor, std::int64_t wanted);

}  // namespace kerf::tail::internal
