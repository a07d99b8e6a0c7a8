// quantise_rows with kerf's own recipe, on whatever vectors there are: the operations of quantise_block one
// by one, so the bytes are the same on every instruction set.
#include "kerf/numeric/internal/quantise_rows.h"

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

void Rows(const std::uint16_t* x, std::size_t blocks, float gs, std::uint8_t* codes, std::uint8_t* scales) {
  const F f;
  const U u;
  const I i;
  const hn::Rebind<std::uint16_t, F> u16;
  const hn::Rebind<std::uint8_t, F> u8;
  const float inverse = 1.0F / gs;
  for (std::size_t b = 0; b < blocks; ++b) {
    alignas(64) float values[16];
    for (std::size_t j = 0; j < 16; j += hn::Lanes(f))
      hn::Store(hn::BitCast(f, hn::ShiftLeft<16>(hn::PromoteTo(u, hn::LoadU(u16, x + 16 * b + j)))), f,
                values + j);
    const std::uint8_t s = f32_to_e4m3(gs * (numeric::HWY_NAMESPACE::LargestOf16(f, values) * (1.0F / 6.0F)));
    const float scale = e4m3_to_f32(s);
    const auto t = hn::Set(f, scale != 0.0F ? 1.0F / (scale * inverse) : 0.0F);
    std::uint8_t code[16];
    for (std::size_t j = 0; j < 16; j += hn::Lanes(f))
      hn::StoreU(hn::DemoteTo(u8, hn::BitCast(i, Codes(hn::Mul(hn::Load(f, values + j), t)))), u8, code + j);
    for (std::size_t j = 0; j < 2; ++j) {
      const std::uint32_t packed = pack_nibbles(code + 8 * j);
      std::memcpy(codes + 8 * b + 4 * j, &packed, 4);
    }
    scales[b] = s;
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
