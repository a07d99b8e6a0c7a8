// Rows that the CPU op computed on an Intel machine with AVX-512, kept as data: what any other machine and
// any device must reproduce, bit for bit, without a CPU op beside it.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kerf/layout/experts.h"

namespace kerf::test {

struct CarriedCase {
  layout::ExpertsShape shape;
  std::int64_t tokens = 0;
  std::int64_t top_k = 0;
  std::uint64_t seed = 0;  // random_nvfp4() takes it, random_step() the next
};

// Widths of half a chunk, of several segments, and of one slice of Muse Spark's (fewer rows).
inline constexpr std::array<CarriedCase, 3> carried_cases = {{
    {{3, 128, 192}, 4, 2, 71},
    {{2, 1152, 640}, 1, 2, 73},
    {{2, 256, 512}, 3, 1, 75},
}};

// [T * K, H] bf16 in route order, case after case.
std::span<const std::uint16_t> carried_rows(std::size_t number);

}  // namespace kerf::test
