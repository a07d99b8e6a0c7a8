// Weights that a step is going to read, asked for before its turn. Where routes are given, and not made by
// the kernel in front of the experts, blocks of that kernel which wait for nothing have the first of the
// weights brought to L2 while the tail of the layer before still runs. W4A16 gains by it; W4A4 and BF16 do
// not (docs/performance.md).
#pragma once

#include <cstdint>

namespace kerf::op::sm90 {

// A matrix of each expert, one after the other: both GEMMs' codes, their scales.
struct AheadMatrix {
  const std::uint8_t* first = nullptr;
  std::int64_t bytes = 0;  // of an expert's, a multiple of 16
};

// A hint: ids that are not (or no longer) those of the step cost time and change no result. All pointers are
// to device memory.
struct Ahead {
  const std::int32_t* ids = nullptr;  // [routes], or null: not known
  std::int32_t routes = 0;
  std::int32_t first_expert = 0;
  std::int32_t experts = 0;      // that are here: ids beyond them are passed over
  AheadMatrix matrices[2][2]{};  // [GEMM][codes, scales]; bytes 0: there is none
  std::int64_t most_bytes = 0;   // in all, of the experts that are read first
};

// 8, 16 and 24 MiB were timed: more gained nothing.
inline constexpr std::int64_t most_ahead_bytes = std::int64_t{8} << 20;
// With more routes than this the start of a step does not matter.
inline constexpr std::int64_t most_ahead_routes = 1024;

}  // namespace kerf::op::sm90
