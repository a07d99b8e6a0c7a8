// Conversions lane by lane, with the bits of their scalar definitions. Included once per target by files that
// are compiled for several, after Highway: on purpose without a guard.

HWY_BEFORE_NAMESPACE();
namespace kerf::numeric::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// The largest magnitude of 16 values; NaN where there is one. D: float lanes, at most 16.
template <typename D>
HWY_INLINE float LargestOf16(D f, const float* x) {
  auto most = hn::Zero(f);
  auto nan = hn::IsNaN(most);
  for (std::size_t j = 0; j < 16; j += hn::Lanes(f)) {
    const auto v = hn::Load(f, x + j);
    most = hn::Max(most, hn::Abs(v));
    nan = hn::Or(nan, hn::IsNaN(v));
  }
  return hn::AllFalse(f, nan) ? hn::GetLane(hn::MaxOfLanes(f, most))
                              : std::numeric_limits<float>::quiet_NaN();
}

// f32_to_bf16, as the upper halves of 32-bit lanes; the lower ones are undefined.
template <typename D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> Bf16UpperHalves(D /*f*/, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> u;
  const auto bits = hn::BitCast(u, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7FFF)));
  const auto nan = hn::Set(u, std::uint32_t{bf16_nan} << 16);
  return hn::IfThenElse(hn::RebindMask(u, hn::IsNaN(v)), nan, rounded);
}

// e4m3_to_f32 of the codes in 32-bit lanes.
template <typename D>
HWY_INLINE hn::Vec<D> E4m3ToF32(D f, hn::Vec<hn::RebindToUnsigned<D>> codes) {
  const hn::RebindToUnsigned<D> u;
  const hn::RebindToSigned<D> i;
  const auto magnitude = hn::BitCast(i, hn::And(codes, hn::Set(u, 0x7F)));
  const auto normal = hn::BitCast(f, hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(i, 120 << 23)));
  const auto subnormal = hn::Mul(hn::ConvertTo(f, magnitude), hn::Set(f, 0x1p-9F));
  auto value = hn::IfThenElse(hn::RebindMask(f, hn::Lt(magnitude, hn::Set(i, 8))), subnormal, normal);
  value = hn::Or(value, hn::BitCast(f, hn::ShiftLeft<24>(hn::And(codes, hn::Set(u, 0x80)))));
  return hn::IfThenElse(hn::RebindMask(f, hn::Eq(magnitude, hn::Set(i, 0x7F))),
                        hn::Set(f, std::numeric_limits<float>::quiet_NaN()), value);
}

// f32_to_e4m3, in 32-bit lanes.
template <typename D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> F32ToE4m3(D f, hn::Vec<D> value) {
  const hn::RebindToUnsigned<D> u;
  const auto v = hn::Abs(value);
  const auto bits = hn::BitCast(u, v);
  const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(u, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7FFFF)));
  const auto normal = hn::Sub(hn::ShiftRight<20>(rounded), hn::Set(u, 120U << 3));
  const auto shifted = hn::BitCast(u, hn::Add(v, hn::Set(f, 0x1p14F)));
  auto code = hn::IfThenElse(hn::RebindMask(u, hn::Lt(v, hn::Set(f, 0x1p-6F))),
                             hn::And(shifted, hn::Set(u, 15)), normal);
  code = hn::IfThenElse(hn::RebindMask(u, hn::Gt(v, hn::Set(f, 448.0F))), hn::Set(u, std::uint32_t{e4m3_max}),
                        code);
  const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(u, value)), hn::Set(u, 0x80));
  return hn::IfThenElse(hn::RebindMask(u, hn::IsNaN(v)), hn::Set(u, std::uint32_t{e4m3_nan}),
                        hn::Or(code, sign));
}

}  // namespace
}  // namespace kerf::numeric::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
