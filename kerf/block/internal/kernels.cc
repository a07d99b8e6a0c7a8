// Compiles the vector kernels once per instruction set and lists the tables that this CPU can run. Targets
// without a fused multiply-add would round twice where the order has one rounding: they run the scalar table.
#include "kerf/block/internal/kernels.h"

#include <cmath>

#include "kerf/numeric/bf16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kerf/block/internal/kernels.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON

HWY_BEFORE_NAMESPACE();
namespace kerf::block::internal::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::ScalableTag<float>;
using V = hn::Vec<F>;

HWY_INLINE V Values(const float* p) { return hn::LoadU(F(), p); }
HWY_INLINE V Values(const std::uint16_t* p) {
  const hn::Rebind<std::uint16_t, F> half;
  const hn::Rebind<std::uint32_t, F> wide;
  return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(wide, hn::LoadU(half, p))));
}

HWY_INLINE float Value(float w) { return w; }
HWY_INLINE float Value(std::uint16_t w) { return numeric::bf16_to_f32(w); }

// p[t][m] over the whole groups of 256 of a row. A few vectors of partials stay in registers while the row
// goes by: eight independent chains, whatever the number of tokens.
template <int Count, typename W>
HWY_INLINE void WholeGroups(const W* w, std::int64_t groups, const std::uint16_t* const* x,
                            float (*p)[partials]) {
  constexpr int vectors = 8 / Count;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(F()));
  for (std::int64_t m = 0; m < partials; m += vectors * lanes) {
    V sum[Count][vectors];
    for (auto& row : sum)
      for (V& v : row) v = hn::Zero(F());
    for (std::int64_t at = m; at < groups * partials; at += partials) {
      V weight[vectors];
      for (int i = 0; i < vectors; ++i) weight[i] = Values(w + at + i * lanes);
      for (int t = 0; t < Count; ++t)
        for (int i = 0; i < vectors; ++i)
          sum[t][i] = hn::MulAdd(weight[i], Values(x[t] + at + i * lanes), sum[t][i]);
    }
    for (int t = 0; t < Count; ++t)
      for (int i = 0; i < vectors; ++i) hn::Store(sum[t][i], F(), p[t] + m + i * lanes);
  }
}

HWY_INLINE float Halved(float* p) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(F()));
  for (std::int64_t width = partials / 2; width > 0; width /= 2) {
    std::int64_t m = 0;
    for (; m + lanes <= width; m += lanes)
      hn::Store(hn::Add(hn::Load(F(), p + m), hn::LoadU(F(), p + m + width)), F(), p + m);
    for (; m < width; ++m) p[m] += p[m + width];
  }
  return p[0];
}

template <int Count, typename W>
void DotsOf(const W* w, std::int64_t k, const std::uint16_t* const* x, float* out) {
  alignas(64) float p[Count][partials];
  const std::int64_t groups = k / partials;
  WholeGroups<Count>(w, groups, x, p);
  for (int t = 0; t < Count; ++t) {
    for (std::int64_t h = groups * partials; h < k; ++h)
      p[t][h % partials] = std::fma(Value(w[h]), numeric::bf16_to_f32(x[t][h]), p[t][h % partials]);
    out[t] = Halved(p[t]);
  }
}

template <typename W>
void Dots(const W* w, std::int64_t k, const std::uint16_t* const* x, int count, float* out) {
  switch (count) {
    case 1:
      return DotsOf<1>(w, k, x, out);
    case 2:
      return DotsOf<2>(w, k, x, out);
    case 3:  // 3 does not divide 8 chains
      DotsOf<2>(w, k, x, out);
      return DotsOf<1>(w, k, x + 2, out + 2);
    default:
      return DotsOf<4>(w, k, x, out);
  }
}

}  // namespace

const Kernels& Table() {
  constexpr const char* isa = HWY_TARGET == HWY_NEON ? "neon" : HWY_TARGET == HWY_AVX2 ? "avx2" : "avx512";
  static constexpr Kernels table = {isa, Dots<float>, Dots<std::uint16_t>};
  return table;
}

}  // namespace kerf::block::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE

namespace kerf::block::internal {

std::span<const Kernels* const> vector_kernels() {
  struct List {
    std::array<const Kernels*, 2> tables{};
    std::size_t count = 0;
  };
  static const List list = [] {
    List out;
    [[maybe_unused]] const auto here = hwy::SupportedTargets();
#if HWY_TARGETS & HWY_AVX3
    if ((here & HWY_AVX3) != 0) out.tables[out.count++] = &N_AVX3::Table();
#endif
#if HWY_TARGETS & HWY_AVX2
    if ((here & HWY_AVX2) != 0) out.tables[out.count++] = &N_AVX2::Table();
#endif
#if HWY_TARGETS & HWY_NEON
    out.tables[out.count++] = &N_NEON::Table();  // every AArch64 CPU runs them: nothing in them needs AES
#endif
    return out;
  }();
  return {list.tables.data(), list.count};
}

}  // namespace kerf::block::internal

#endif  // HWY_ONCE
