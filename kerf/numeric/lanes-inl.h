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

}  // namespace
}  // namespace kerf::numeric::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
