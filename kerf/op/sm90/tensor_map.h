// Tensor maps: what the bulk copy engine must know of a matrix to fetch boxes of it.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace kerf::op::sm90 {

enum class Swizzle : std::uint8_t { none, bytes_64, bytes_128 };

// Bytes as [rows, row_bytes] (row_bytes a multiple of 16, base 16-byte aligned), fetched in boxes of
// [box_rows, box_bytes]. Reads outside give zeros. Error{device}.
CUtensorMap byte_map(const void* base, std::int64_t rows, std::int64_t row_bytes, int box_rows, int box_bytes,
                     Swizzle swizzle = Swizzle::none);

}  // namespace kerf::op::sm90
