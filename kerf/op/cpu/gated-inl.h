// What follows the dots, with the bits of op/internal/gated.h and numeric/nvfp4.h: the activation and
// requantisation between the GEMMs, and the rows that GEMM2 gives. Included by kernels.cc, once per target:
// on purpose without a guard.
//
// Of every 32 converted rows of w13 the dots come as up even | gate even | up odd | gate odd, eight each: the
// even and odd values of one block of 16, which is also how a Chunk stores them.

HWY_BEFORE_NAMESPACE();
namespace kerf::op::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::CappedTag<float, 16>;
using I = hn::CappedTag<std::int32_t, 16>;
using U = hn::CappedTag<std::uint32_t, 16>;
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

// The 64 values of a w13 tile: four blocks, each its 8 even values, then its 8 odd ones.
HWY_INLINE void GatedTile(const float* dots, const internal::ExpertScalars& s, float* h) {
  const F f;
  alignas(64) float up[64];
  alignas(64) float gate[64];
  for (int run = 0; run < 8; ++run) {
    std::copy_n(dots + 16 * run, 8, up + 8 * run);
    std::copy_n(dots + 16 * run + 8, 8, gate + 8 * run);
  }
  for (std::size_t j = 0; j < 64; j += hn::Lanes(f))
    hn::Store(Gated(hn::Load(f, up + j), hn::Load(f, gate + j), s), f, h + j);
}

void Requantise(const float* dots, const internal::ExpertScalars& s, int half, Chunk& out) {
  const F f;
  const I i;
  const hn::Rebind<std::int8_t, F> bytes;
  alignas(64) float h[64];
  GatedTile(dots, s, h);
  for (int g = 0; g < 4; ++g) {
    const float* block = h + 16 * g;
    const float scale = numeric::e4m3_to_f32(
        numeric::f32_to_e4m3(numeric::HWY_NAMESPACE::LargestOf16(f, block) * (1.0F / 6.0F)));
    const V t = hn::Set(f, scale != 0.0F ? 1.0F / scale : 0.0F);
    std::int8_t codes[16];
    auto sum = hn::Zero(i);
    for (std::size_t j = 0; j < 16; j += hn::Lanes(f)) {
      const auto doubled = hn::ConvertTo(i, Doubled(hn::Mul(hn::Load(f, block + j), t)));
      sum = hn::Add(sum, doubled);
      hn::StoreU(hn::DemoteTo(bytes, doubled), bytes, codes + j);
    }
    put_block(codes, codes + 8, hn::GetLane(hn::SumOfLanes(i, sum)), scale,
              kOrder[static_cast<std::size_t>(4 * half + g)], out);
  }
}

void Activate(const float* dots, const internal::ExpertScalars& s, float* h) {
  const F f;
  const U u;
  alignas(64) float exact[64];
  GatedTile(dots, s, exact);
  for (std::size_t j = 0; j < 64; j += hn::Lanes(f)) {
    const auto upper =
        hn::And(numeric::HWY_NAMESPACE::Bf16UpperHalves(f, hn::Load(f, exact + j)), hn::Set(u, 0xFFFF0000U));
    hn::StoreU(hn::BitCast(f, upper), f, h + j);
  }
}

void WriteRow(const float* dots, float scale, std::uint16_t* out) {
  const hn::CappedTag<float, 8> f;
  const hn::Rebind<std::uint16_t, decltype(f)> u16;
  const hn::RebindToSigned<hn::RebindToUnsigned<decltype(f)>> i;
  const auto factor = hn::Set(f, scale);
  for (int group = 0; group < tile_rows; group += 32) {
    for (int j = 0; j < 8; j += static_cast<int>(hn::Lanes(f))) {
      const auto run = [&](int q) HWY_ATTR {
        const auto v = hn::Mul(factor, hn::LoadU(f, dots + group + 8 * q + j));
        return hn::DemoteTo(
            u16, hn::BitCast(i, hn::ShiftRight<16>(numeric::HWY_NAMESPACE::Bf16UpperHalves(f, v))));
      };
      hn::StoreInterleaved4(run(0), run(1), run(2), run(3), u16, out + group + 4 * j);
    }
  }
}

}  // namespace
}  // namespace kerf::op::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
