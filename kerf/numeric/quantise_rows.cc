// quantise_rows with kerf's own recipe, on whatever vectors there are: the operations of quantise_block one
// by one, so the bytes are the same on every instruction set.
#include "kerf/numeric/internal/quantise_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "kerf/numeric/bf16.h"
#include "kerf/numeric/e4m3.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kerf/numeric/quantise_rows.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include "kerf/numeric/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kerf::numeric::internal::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::CappedTag<float, 16>;
using U = hn::RebindToUnsigned<F>;
using I = hn::RebindToSigned<F>;

// f32_to_e2m1: how many midpoints are passed (NaN: all of them), and the sign unless NaN.
HWY_INLINE hn::Vec<U> Codes(hn::Vec<F> y) {
  const F f;
  const U u;
  const auto m = hn::Abs(y);
  auto code = hn::Zero(u);
  const auto count = [&](auto passed)
                         HWY_ATTR { code = hn::Sub(code, hn::BitCast(u, hn::VecFromMask(f, passed))); };
  count(hn::Gt(m, hn::Set(f, 0.25F)));
  count(hn::Ge(m, hn::Set(f, 0.75F)));
  count(hn::Gt(m, hn::Set(f, 1.25F)));
  count(hn::Ge(m, hn::Set(f, 1.75F)));
  count(hn::Gt(m, hn::Set(f, 2.5F)));
  count(hn::Ge(m, hn::Set(f, 3.5F)));
  count(hn::Gt(m, hn::Set(f, 5.0F)));
  const auto sign = hn::And(hn::ShiftRight<28>(hn::BitCast(u, y)), hn::Set(u, 8));
  return hn::IfThenElse(hn::RebindMask(u, hn::IsNaN(y)), hn::Set(u, 7), hn::Or(code, sign));
}

// Eight codes to four bytes, the first of each two in the low nibble.
std::uint32_t pack_nibbles(const std::uint8_t* code) {
  std::uint64_t v = 0;
  std::memcpy(&v, code, 8);
  v = (v | (v >> 4)) & 0x00FF00FF00FF00FFU;
  v = (v | (v >> 8)) & 0x0000FFFF0000FFFFU;
  return static_cast<std::uint32_t>(v | (v >> 16));
}

// Blocks whose scales are made together.
constexpr std::size_t kTogether = 16;

// The largest magnitude of a block: as integers, bf16 magnitudes are in order, and NaN is above all.
HWY_INLINE float LargestMagnitude(const std::uint16_t* x) {
  const U u;
  const hn::Rebind<std::uint16_t, F> u16;
  auto most = hn::Zero(u);
  for (std::size_t j = 0; j < 16; j += hn::Lanes(u))
    most = hn::Max(most, hn::And(hn::PromoteTo(u, hn::LoadU(u16, x + j)), hn::Set(u, 0x7FFF)));
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(u, most)) << 16);
}

// The scales of `count` blocks, and the factors that their values are multiplied by.
HWY_INLINE void Scales(const float* largest, std::size_t count, float gs, std::uint8_t* scales,
                       float* factors) {
  const F f;
  const I i;
  const hn::Rebind<std::uint8_t, F> u8;
  std::uint8_t all[kTogether];
  for (std::size_t b = 0; b < count; b += hn::Lanes(f)) {
    const auto sixth = hn::Mul(hn::Load(f, largest + b), hn::Set(f, 1.0F / 6.0F));
    const auto s = numeric::HWY_NAMESPACE::F32ToE4m3(f, hn::Mul(hn::Set(f, gs), sixth));
    const auto scale = numeric::HWY_NAMESPACE::E4m3ToF32(f, s);
    const auto t = hn::Div(hn::Set(f, 1.0F), hn::Mul(scale, hn::Set(f, 1.0F / gs)));
    hn::Store(hn::IfThenZeroElse(hn::Eq(scale, hn::Zero(f)), t), f, factors + b);
    hn::StoreU(hn::DemoteTo(u8, hn::BitCast(i, s)), u8, all + b);
  }
  std::copy_n(all, count, scales);
}

void Rows(const std::uint16_t* x, std::size_t blocks, float gs, std::uint8_t* codes, std::uint8_t* scales) {
  const F f;
  const U u;
  const I i;
  const hn::Rebind<std::uint16_t, F> u16;
  const hn::Rebind<std::uint8_t, F> u8;
  for (std::size_t first = 0; first < blocks; first += kTogether) {
    const std::size_t count = std::min(kTogether, blocks - first);
    alignas(64) float largest[kTogether] = {};
    alignas(64) float factors[kTogether];
    for (std::size_t b = 0; b < count; ++b) largest[b] = LargestMagnitude(x + 16 * (first + b));
    Scales(largest, count, gs, scales + first, factors);
    for (std::size_t b = 0; b < count; ++b) {
      const std::size_t at = first + b;
      const auto t = hn::Set(f, factors[b]);
      std::uint8_t code[16];
      for (std::size_t j = 0; j < 16; j += hn::Lanes(f)) {
        const auto bits = hn::PromoteTo(u, hn::LoadU(u16, x + 16 * at + j));
        const auto v = hn::BitCast(f, hn::ShiftLeft<16>(bits));
        hn::StoreU(hn::DemoteTo(u8, hn::BitCast(i, Codes(hn::Mul(v, t)))), u8, code + j);
      }
      for (std::size_t j = 0; j < 2; ++j) {
        const std::uint32_t packed = pack_nibbles(code + 8 * j);
        std::memcpy(codes + 8 * at + 4 * j, &packed, 4);
      }
    }
  }
}

}  // namespace

// Where the table of targets finds it.
void QuantiseRows(const std::uint16_t* x, std::size_t blocks, float gs, std::uint8_t* codes,
                  std::uint8_t* scales) {
  Rows(x, blocks, gs, codes, scales);
}

}  // namespace kerf::numeric::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace kerf::numeric::internal {

HWY_EXPORT(QuantiseRows);

void quantise_rows_vllm(const std::uint16_t* x, std::size_t blocks, float gs, std::uint8_t* codes,
                        std::uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(QuantiseRows)(x, blocks, gs, codes, scales);
}

}  // namespace kerf::numeric::internal

#endif  // HWY_ONCE
