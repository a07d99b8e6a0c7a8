// The activation and requantisation between the GEMMs, up to eight lanes at a time, with the bits of
// op/internal/gated.h and numeric/nvfp4.h. Included by kernels.cc, once per target: on purpose without a
// guard.
//
// Of every 32 converted rows of w13 the dots come as up even | gate even | up odd | gate odd, eight each: the
// even and odd values of one block of 16, which is also how a Chunk stores them.

HWY_BEFORE_NAMESPACE();
namespace kerf::op::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::CappedTag<float, 8>;
using I = hn::CappedTag<std::int32_t, 8>;
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

// One block of the intermediate, its even and its odd values.
struct Block {
  alignas(32) float even[8];
  alignas(32) float odd[8];
};

// dots: up even | gate even | up odd | gate odd.
HWY_INLINE void GatedBlock(const float* dots, const internal::ExpertScalars& s, Block& out) {
  const F f;
  for (std::size_t j = 0; j < 8; j += hn::Lanes(f)) {
    hn::Store(Gated(hn::LoadU(f, dots + j), hn::LoadU(f, dots + 8 + j), s), f, out.even + j);
    hn::Store(Gated(hn::LoadU(f, dots + 16 + j), hn::LoadU(f, dots + 24 + j), s), f, out.odd + j);
  }
}

// The largest magnitude; NaN where there is one.
HWY_INLINE float Largest(const Block& h) {
  const F f;
  V most = hn::Zero(f);
  auto nan = hn::IsNaN(most);
  for (std::size_t j = 0; j < 8; j += hn::Lanes(f)) {
    const V even = hn::Load(f, h.even + j);
    const V odd = hn::Load(f, h.odd + j);
    most = hn::Max(most, hn::Max(hn::Abs(even), hn::Abs(odd)));
    nan = hn::Or(nan, hn::Or(hn::IsNaN(even), hn::IsNaN(odd)));
  }
  return hn::AllFalse(f, nan) ? hn::GetLane(hn::MaxOfLanes(f, most))
                              : std::numeric_limits<float>::quiet_NaN();
}

HWY_INLINE void DoubledCodes(const float* h, float t, std::int8_t* out) {
  const F f;
  const I i;
  const hn::Rebind<std::int8_t, F> bytes;
  for (std::size_t j = 0; j < 8; j += hn::Lanes(f))
    hn::StoreU(hn::DemoteTo(bytes, hn::ConvertTo(i, Doubled(hn::Mul(hn::Load(f, h + j), hn::Set(f, t))))),
               bytes, out + j);
}

void Requantise(const float* dots, const internal::ExpertScalars& s, int half, Chunk& out) {
  for (int g = 0; g < 4; ++g) {
    Block h;
    GatedBlock(dots + 32 * g, s, h);
    const float scale = numeric::e4m3_to_f32(numeric::f32_to_e4m3(Largest(h) * (1.0F / 6.0F)));
    const float t = scale != 0.0F ? 1.0F / scale : 0.0F;
    std::int8_t even[8];
    std::int8_t odd[8];
    DoubledCodes(h.even, t, even);
    DoubledCodes(h.odd, t, odd);
    put_block(even, odd, scale, kOrder[static_cast<std::size_t>(4 * half + g)], out);
  }
}

void Activate(const float* dots, const internal::ExpertScalars& s, float* h) {
  for (int g = 0; g < 4; ++g) {
    Block block;
    GatedBlock(dots + 32 * g, s, block);
    for (int j = 0; j < 8; ++j) h[16 * g + j] = numeric::round_to_bf16(block.even[j]);
    for (int j = 0; j < 8; ++j) h[16 * g + 8 + j] = numeric::round_to_bf16(block.odd[j]);
  }
}

}  // namespace kerf::op::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
