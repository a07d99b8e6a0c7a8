// Dots of one row of a weight with a few token rows, in the one order that project.h states: every table has
// the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace kerf::block::internal {

inline constexpr std::int64_t partials = 256;  // partial sums of a dot
inline constexpr int most_tokens_a_pass = 4;   // token rows that a kernel takes at once

struct Kernels {
  const char* isa;
  // out[t] = dot of w[k] and x[t][k], t < count <= most_tokens_a_pass. x is bf16, w f32 or bf16.
  void (*dots_f32)(const float* w, std::int64_t k, const std::uint16_t* const* x, int count, float* out);
  void (*dots_bf16)(const std::uint16_t* w, std::int64_t k, const std::uint16_t* const* x, int count,
                    float* out);
};

const Kernels& scalar_kernels();
// Tables of the vector instruction sets that this CPU runs, best first.
std::span<const Kernels* const> vector_kernels();
// The first of those, else the scalar ones.
const Kernels& best_kernels();

}  // namespace kerf::block::internal
