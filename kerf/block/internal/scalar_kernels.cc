// The order itself, for processors without a fused multiply-add in their vectors.
#include <cmath>

#include "kerf/block/internal/kernels.h"
#include "kerf/numeric/bf16.h"

namespace kerf::block::internal {

namespace {

float value(float w) { return w; }
float value(std::uint16_t w) { return numeric::bf16_to_f32(w); }

template <typename W>
void dots(const W* w, std::int64_t k, const std::uint16_t* const* x, int count, float* out) {
  for (int t = 0; t < count; ++t) {
    std::array<float, partials> p{};
    for (std::int64_t h = 0; h < k; ++h) {
      float& sum = p[static_cast<std::size_t>(h % partials)];
      sum = std::fma(value(w[h]), numeric::bf16_to_f32(x[t][h]), sum);
    }
    for (std::size_t width = partials / 2; width > 0; width /= 2)
      for (std::size_t m = 0; m < width; ++m) p[m] += p[m + width];
    out[t] = p[0];
  }
}

}  // namespace

const Kernels& scalar_kernels() {
  static constexpr Kernels table = {"scalar", dots<float>, dots<std::uint16_t>};
  return table;
}

const Kernels& best_kernels() {
  return vector_kernels().empty() ? scalar_kernels() : *vector_kernels().front();
}

}  // namespace kerf::block::internal
