// The activation and requantisation between the GEMMs, eight lanes at a time, with the bits of
// op/internal/gated.h and numeric/nvfp4.h. Included by kernels.cc, once per target: on purpose without a
// guard.
//
// Of every 32 converted rows of w13 the dots come as up even | gate even | up odd | gate odd, eight each: the
// even and odd values of one block of 16, which is also how a Chunk stores them.

HWY_BEFORE_NAMESPACE();
namespace kerf::op::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::FixedTag<float, 8>;
using I = hn::FixedTag<std::int32_t, 8>;
using V = hn::Vec<F>;

// numeric::exp_f32, lane by lane: the same operations in the same order.
HWY_INLINE V Exp(V x) {
  namespace k = numeric::exp_constants;
  const F f;
  const I i;
  const V magic = hn::Set(f, k::to_integer);
  const V n = hn::Sub(hn::MulAdd(x, hn::Set(f, k::log2e), magic), magic);
  V r = hn::MulAdd(n, hn::Set(f, -k::ln2_high), x);
  r = hn::MulAdd(n, hn::Set(f, -k::ln2_low), r);
  V p = hn::Set(f, k::c7);
  for (const float c : {k::c6, k::c5, k::c4, k::c3, k::c2}) p = hn::MulAdd(p, r, hn::Set(f, c));
  p = hn::MulAdd(p, hn::Mul(r, r), r);
  p = hn::Add(p, hn::Set(f, 1.0F));
  const auto e = hn::ConvertTo(i, n);
  const auto half = hn::ShiftRight<1>(e);
  const auto power = [&](hn::Vec<I> v) {
    return hn::BitCast(f, hn::ShiftLeft<23>(hn::Add(v, hn::Set(i, 127))));
  };
  V y = hn::Mul(hn::Mul(p, power(half)), power(hn::Sub(e, half)));
  y = hn::IfThenElse(hn::Gt(x, hn::Set(f, k::highest)), hn::Set(f, std::numeric_limits<float>::infinity()),
                     y);
  y = hn::IfThenZeroElse(hn::Lt(x, hn::Set(f, k::lowest)), y);
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

// internal::gated, lane by lane.
HWY_INLINE V Gated(V x0, V x1, const internal::ExpertScalars& s) {
  const F f;
  const V up = hn::Set(f, s.limit_up);
  const V down = hn::Set(f, -s.limit_up);
  const V gate = hn::Set(f, s.limit_gate);
  x1 = hn::IfThenElse(hn::Gt(x1, gate), gate, x1);
  x0 = hn::IfThenElse(hn::Gt(x0, up), up, x0);
  x0 = hn::IfThenElse(hn::Lt(x0, down), down, x0);
  x0 = hn::Add(x0, hn::Set(f, s.beta));
  const V g = hn::Mul(x1, hn::Set(f, s.scale_gate));
  const V u = hn::Mul(x0, hn::Set(f, s.scale_up));
  const V one = hn::Set(f, 1.0F);
  const V sg = hn::Div(one, hn::Add(one, Exp(hn::Neg(hn::Mul(hn::Set(f, s.alpha), g)))));
  return hn::Mul(u, hn::Mul(g, sg));
}

// Twice the e2m1 value nearest to y (ties to the even code, NaN: 6), as f32.
HWY_INLINE V Doubled(V y) {
  const F f;
  const V m = hn::Abs(y);
  const auto step = [&](auto mask, float value) { return hn::IfThenElseZero(mask, hn::Set(f, value)); };
  V d = step(hn::Gt(m, hn::Set(f, 0.25F)), 1.0F);
  d = hn::Add(d, step(hn::Ge(m, hn::Set(f, 0.75F)), 1.0F));
  d = hn::Add(d, step(hn::Gt(m, hn::Set(f, 1.25F)), 1.0F));
  d = hn::Add(d, step(hn::Ge(m, hn::Set(f, 1.75F)), 1.0F));
  d = hn::Add(d, step(hn::Gt(m, hn::Set(f, 2.5F)), 2.0F));
  d = hn::Add(d, step(hn::Ge(m, hn::Set(f, 3.5F)), 2.0F));
  d = hn::Add(d, step(hn::Gt(m, hn::Set(f, 5.0F)), 4.0F));
  return hn::IfThenElse(hn::IsNaN(y), hn::Set(f, 12.0F), hn::CopySign(d, y));
}

struct EvenOdd {
  V even;
  V odd;
};

HWY_INLINE EvenOdd GatedBlock(const float* dots, const internal::ExpertScalars& s) {
  const F f;
  return {Gated(hn::LoadU(f, dots), hn::LoadU(f, dots + 8), s),
          Gated(hn::LoadU(f, dots + 16), hn::LoadU(f, dots + 24), s)};
}

void Requantise(const float* dots, const internal::ExpertScalars& s, int half, Chunk& out) {
  const F f;
  const I i;
  const hn::FixedTag<std::int8_t, 8> bytes;
  for (int g = 0; g < 4; ++g) {
    const EvenOdd h = GatedBlock(dots + 32 * g, s);
    float largest = hn::GetLane(hn::MaxOfLanes(f, hn::Max(hn::Abs(h.even), hn::Abs(h.odd))));
    if (!hn::AllFalse(f, hn::Or(hn::IsNaN(h.even), hn::IsNaN(h.odd))))
      largest = std::numeric_limits<float>::quiet_NaN();
    const std::uint8_t code = numeric::f32_to_e4m3(largest * (1.0F / 6.0F));
    const float scale = numeric::e4m3_to_f32(code);
    const V t = hn::Set(f, scale != 0.0F ? 1.0F / scale : 0.0F);
    const auto even = hn::ConvertTo(i, Doubled(hn::Mul(h.even, t)));
    const auto odd = hn::ConvertTo(i, Doubled(hn::Mul(h.odd, t)));
    const auto b = static_cast<std::size_t>(4 * half + g);
    hn::StoreU(hn::DemoteTo(bytes, even), bytes, out.even.data() + 8 * b);
    hn::StoreU(hn::DemoteTo(bytes, odd), bytes, out.odd.data() + 8 * b);
    out.bias[kOrder[b]] = -12 * hn::GetLane(hn::SumOfLanes(i, hn::Add(even, odd)));
    out.scale[kOrder[b]] = scale * chunk_scale;
  }
}

void Activate(const float* dots, const internal::ExpertScalars& s, float* h) {
  const F f;
  for (int g = 0; g < 4; ++g) {
    const EvenOdd v = GatedBlock(dots + 32 * g, s);
    hn::StoreU(v.even, f, h + 16 * g);
    hn::StoreU(v.odd, f, h + 16 * g + 8);
  }
  for (int j = 0; j < 64; ++j) h[j] = numeric::round_to_bf16(h[j]);
}

}  // namespace kerf::op::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
