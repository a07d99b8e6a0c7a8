// The bytes of synthetic tensors. Every byte is a function of (stream, position) alone, so any thread may
// write any part: the same file at every thread count. Integer arithmetic and single IEEE operations only, so
// also on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace kerf::tools::internal {

enum class Fill : std::uint8_t {
  codes,         // e2m1 pairs: a normal distribution as NVFP4 blocks show it, RMS code_rms()
  block_scales,  // e4m3: largest of 16 normals over 6, RMS scale_rms()
  bf16_normal,   // bell-shaped, standard deviation `deviation`
  f32_normal,    // the same in f32
  f32_values,    // `values` as they are
  matrices,      // other sources' bytes, as `matrices` arranges them
};

struct Matrices;

struct Source {
  Fill fill = Fill::codes;
  std::uint64_t stream = 0;  // state of a numeric::SplitMix
  float deviation = 1.0F;
  std::vector<float> values;
  std::shared_ptr<const Matrices> matrices{};
  std::int64_t skip = 0;  // bytes of the stream before the first one; a multiple of 8
};

// Matrices [rows, columns] of `element` bytes, `each` of them (gate and up) side by side along their rows in
// a block, block after block. Transposed, a block is [columns, each * rows]; then `alternating` matrices have
// their rows in turn.
struct Matrices {
  std::int64_t rows = 0, columns = 0, element = 1;
  std::int64_t each = 1;
  bool transposed = false, alternating = false;
  std::vector<Source> sources;
};

// A stream for each (seed, name).
std::uint64_t stream_of(std::uint64_t seed, std::string_view name);

// Root mean squares of what `codes` and `block_scales` write, as values.
float code_rms();
float scale_rms();

// Bytes [begin, begin + out.size()) of the tensor; begin is a multiple of 8.
void fill_bytes(const Source& source, std::int64_t begin, std::span<std::byte> out);

}  // namespace kerf::tools::internal
