// The per-route RMSNorm. The row is scaled by a power of two first, so that its squares neither overflow nor
// vanish; that scaling is exact and drops out of the result.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/numeric/bf16.h"
#include "kerf/numeric/power_of_two.h"
#include "kerf/tail/tail.h"

namespace kerf::tail {

namespace {

constexpr std::size_t kPartials = 256;
using Partials = std::array<float, kPartials>;

constexpr std::uint32_t kMagnitude = 0x7FFFFFFFU;

using numeric::power_of_two;

// The exponent q of the row whose largest magnitude has these bits. Subnormals, infinity and NaN end at the
// clamps.
constexpr int row_exponent(std::uint32_t largest) {
  if (largest == 0) return 0;
  return std::clamp(static_cast<int>(largest >> 23) - 127, -60, 126);
}

// t = row, or bf16(row * gain). Returns the bits of the largest magnitude (NaN counts as largest).
std::uint32_t load(std::span<const std::uint16_t> row, std::span<const std::uint16_t> gain,
                   std::span<float> t) {
  std::uint32_t largest = 0;
  if (gain.empty()) {
    for (std::size_t h = 0; h < row.size(); ++h) {
      t[h] = numeric::bf16_to_f32(row[h]);
      largest = std::max(largest, std::bit_cast<std::uint32_t>(t[h]) & kMagnitude);
    }
    return largest;
  }
  for (std::size_t h = 0; h < row.size(); ++h) {
    t[h] = numeric::round_to_bf16(numeric::bf16_to_f32(row[h]) * numeric::bf16_to_f32(gain[h]));
    largest = std::max(largest, std::bit_cast<std::uint32_t>(t[h]) & kMagnitude);
  }
  return largest;
}

// t *= factor. Returns the bits, less one, of the smallest magnitude that is not zero (zero wraps to the
// top).
std::uint32_t scale(std::span<float> t, float factor) {
  std::uint32_t smallest = ~0U;
  for (float& v : t) {
    v *= factor;
    smallest = std::min(smallest, (std::bit_cast<std::uint32_t>(v) & kMagnitude) - 1);
  }
  return smallest;
}

template <typename Add>
Partials partial_sums(std::span<const float> s, Add add) {
  Partials p{};
  const std::size_t whole = s.size() / kPartials * kPartials;
  for (std::size_t first = 0; first < whole; first += kPartials)
    for (std::size_t m = 0; m < kPartials; ++m) p[m] = add(s[first + m], p[m]);
  for (std::size_t h = whole; h < s.size(); ++h) p[h - whole] = add(s[h], p[h - whole]);
  return p;
}

float halve(Partials& p) {
  for (std::size_t width = kPartials / 2; width > 0; width /= 2)
    for (std::size_t m = 0; m < width; ++m) p[m] += p[m + width];
  return p[0];
}

// Squares every s and adds up in 256 partial sums, each a chain of fused multiply-adds. A value has at most 8
// significant bits, so its square is exact in f32 from 2^-67 up (16 bits, the last at 2^-148 or above); then
// multiply and add is the fused operation, bit for bit, and needs no library call where the processor's fma
// may not be assumed.
float square_sum(std::span<const float> s, std::uint32_t smallest) {
  constexpr std::uint32_t kExactFrom = std::bit_cast<std::uint32_t>(power_of_two(-67));
  Partials p = smallest >= kExactFrom - 1
                   ? partial_sums(s, [](float v, float sum) { return v * v + sum; })
                   : partial_sums(s, [](float v, float sum) { return std::fma(v, v, sum); });
  return halve(p);
}

}  // namespace

std::vector<std::uint16_t> effective_gain(std::span<const std::uint16_t> w, float center) {
  const FpGuard guard;
  std::vector<std::uint16_t> gain(w.size());
  std::transform(w.begin(), w.end(), gain.begin(), [&](std::uint16_t offset) {
    return numeric::f32_to_bf16(center + numeric::bf16_to_f32(offset));
  });
  return gain;
}

void norm_row(std::span<const std::uint16_t> row, const RouteNorm& norm, std::span<float> out) {
  const std::span<const std::uint16_t> gain(norm.gain);
  if (out.size() != row.size() || (!gain.empty() && gain.size() != row.size()))
    fail(ErrorKind::bug, "norm of {} values with {} gains into {} values", row.size(), gain.size(),
         out.size());
  const FpGuard guard;
  const std::uint32_t largest = load(row, norm.gain_before_norm ? gain : gain.first(0), out);
  const float down = power_of_two(-row_exponent(largest));
  const std::uint32_t smallest = scale(out, down);
  const float mean = square_sum(out, smallest) / static_cast<float>(row.size());
  const float inv = 1.0F / std::sqrt(mean + (norm.eps * down) * down);
  if (norm.gain_before_norm || gain.empty()) {
    for (float& v : out) v *= inv;
    return;
  }
  for (std::size_t h = 0; h < row.size(); ++h) out[h] = out[h] * inv * numeric::bf16_to_f32(gain[h]);
}

}  // namespace kerf::tail
