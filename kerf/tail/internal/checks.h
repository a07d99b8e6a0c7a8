// Sizes that the tails rely on. All refusals are bugs of the caller; nothing is allocated where all is well.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kerf/tail/tail.h"

namespace kerf::tail::internal {

// rows [n, H], weights and map [T, K], out [T, H], gain [H] or empty, map entries in [-1, n).
void check(const op::Unfinalized& rows, const std::optional<RouteNorm>& norm,
           std::span<const std::uint16_t> out);

// `name` has room for `wanted` bytes.
void check_room(const char* name, const tensor::Tensor& tensor, std::int64_t wanted);

}  // namespace kerf::tail::internal
