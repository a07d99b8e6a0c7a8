// The pieces of the NVFP4 kernels on AVX2 (with FMA and F16C). Included by kernels.cc for that target alone:
// on purpose without a guard. What sets and units are, avx512-inl.h says; here a unit is one row.

#include <immintrin.h>

HWY_BEFORE_NAMESPACE();
namespace kerf::op::cpu::HWY_NAMESPACE {

inline constexpr const char* kIsa = "avx2";
// What a shuffle of two registers of codes leaves, lane by lane of 128 bits: blocks 0 1 4 5 | 2 3 6 7.
inline constexpr BlockOrder kOrder = {0, 1, 4, 5, 2, 3, 6, 7};
inline constexpr int kRowsAUnit = 1;
template <int Count>
inline constexpr int kAtOnce = Count == 1 ? 2 : 1;

using Lanes = __m256;
struct Sixteen {
  __m256 low;
  __m256 high;
};

// Places: pairs of m and m + 1, for each g in turn.
constexpr int RowOf(int place) { return 2 * (place / 8) + place % 2 + 32 * (place % 8 / 2); }

HWY_INLINE Lanes ZeroLanes() { return _mm256_setzero_ps(); }
HWY_INLINE Lanes MulAdd(__m256i dots, Lanes weight_scale, const float* x_scale, Lanes sum) {
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), _mm256_mul_ps(weight_scale, _mm256_load_ps(x_scale)), sum);
}
HWY_INLINE Sixteen Add(const Sixteen& a, const Sixteen& b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
HWY_INLINE void StoreSixteen(const Sixteen& v, float* rows) {
  // Each register: two m's of g = 0, 2 | of g = 1, 3.
  const __m256d low = _mm256_castps_pd(v.low);
  const __m256d high = _mm256_castps_pd(v.high);
  const __m256 g01 = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
  const __m256 g23 = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
  _mm_storeu_ps(rows, _mm256_castps256_ps128(g01));
  _mm_storeu_ps(rows + 32, _mm256_extractf128_ps(g01, 1));
  _mm_storeu_ps(rows + 64, _mm256_castps256_ps128(g23));
  _mm_storeu_ps(rows + 96, _mm256_extractf128_ps(g23, 1));
}

HWY_INLINE __m256 EightSums(const Lanes* rows) {
  // Of two rows: c0+c1, c4+c5 each | c2+c3, c6+c7 each. Of four: c0..c3 and c4..c7 of two rows | of two rows.
  const auto four = [](const Lanes* r) {
    const __m256 ab = _mm256_hadd_ps(r[0], r[1]);
    const __m256 cd = _mm256_hadd_ps(r[2], r[3]);
    return _mm256_add_ps(_mm256_permute2f128_ps(ab, cd, 0x20), _mm256_permute2f128_ps(ab, cd, 0x31));
  };
  return _mm256_hadd_ps(four(rows), four(rows + 4));
}
HWY_INLINE Sixteen SegmentSums(const Lanes* units) { return {EightSums(units), EightSums(units + 8)}; }

struct Codes {
  __m256i run[4];
};

HWY_INLINE Codes LookUp(__m256i low, __m256i high) {
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(kOffsetDoubled)));
  const __m256i nibble = _mm256_set1_epi8(15);
  const auto shuffled = [&](int odd) {
    const __m256 a = _mm256_castsi256_ps(low);
    const __m256 b = _mm256_castsi256_ps(high);
    return _mm256_castps_si256(odd != 0 ? _mm256_shuffle_ps(a, b, 0xDD) : _mm256_shuffle_ps(a, b, 0x88));
  };
  const __m256i front = shuffled(0);
  const __m256i back = shuffled(1);
  const auto look = [&](__m256i codes) {
    return _mm256_shuffle_epi8(table, _mm256_and_si256(codes, nibble));
  };
  return {{look(front), look(_mm256_srli_epi16(front, 4)), look(back), look(_mm256_srli_epi16(back, 4))}};
}
HWY_INLINE Codes LookUpWhole(const std::uint8_t* codes, std::int64_t row_bytes, int u) {
  const auto* row = reinterpret_cast<const __m256i*>(codes + RowOf(u) * row_bytes);
  return LookUp(_mm256_loadu_si256(row), _mm256_loadu_si256(row + 1));
}
HWY_INLINE Codes LookUpHalf(const std::uint8_t* codes, std::int64_t row_bytes, int u) {
  const auto* row = reinterpret_cast<const __m256i*>(codes + RowOf(u) * row_bytes);
  return LookUp(_mm256_loadu_si256(row), _mm256_setzero_si256());
}

// Sums of eight products of at most 24 * 127, in 16 bits: half a block each.
HWY_INLINE __m256i HalfDots(const Codes& w, const Runs& x) {
  const auto product = [&](std::size_t r) {
    return _mm256_maddubs_epi16(w.run[r], _mm256_load_si256(reinterpret_cast<const __m256i*>(x[r].data())));
  };
  return _mm256_add_epi16(_mm256_add_epi16(product(0), product(1)), _mm256_add_epi16(product(2), product(3)));
}
HWY_INLINE __m256i Bias(const std::int32_t* bias) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(bias));
}
HWY_INLINE __m256i Dots(const Codes& w, const Chunk& x) {
  const __m256i whole = _mm256_madd_epi16(HalfDots(w, x.x), _mm256_set1_epi16(1));
  return _mm256_add_epi32(whole, Bias(x.bias.data()));
}
HWY_INLINE __m256i Dots(const Codes& w, const WideChunk& x) {
  const __m256i high = _mm256_madd_epi16(HalfDots(w, x.high), _mm256_set1_epi16(256));
  const __m256i low = _mm256_madd_epi16(HalfDots(w, x.low), _mm256_set1_epi16(1));
  return _mm256_add_epi32(_mm256_add_epi32(high, low), Bias(x.bias.data()));
}

HWY_INLINE void UnpackScales(const std::uint8_t* scales, bool half, std::uint16_t* out) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i unsigned_part = _mm256_set1_epi8(0x7F);
  for (int j = 0; j < 2; ++j) {  // two m's, a 128-bit lane each
    const auto* at = reinterpret_cast<const __m256i*>(scales + 32 * j);
    const __m256i first = _mm256_loadu_si256(at);
    const __m256i second = half ? zero : _mm256_loadu_si256(at + 16);
    // Interleaving the two k-tiles by pairs of bytes gives each row's scales in kOrder.
    const __m256i g01 = _mm256_and_si256(_mm256_unpacklo_epi16(first, second), unsigned_part);
    const __m256i g23 = _mm256_and_si256(_mm256_unpackhi_epi16(first, second), unsigned_part);
    auto* to = reinterpret_cast<__m256i*>(out + 64 * j);
    _mm256_store_si256(to, _mm256_srli_epi16(_mm256_unpacklo_epi8(zero, g01), 1));
    _mm256_store_si256(to + 1, _mm256_srli_epi16(_mm256_unpackhi_epi8(zero, g01), 1));
    _mm256_store_si256(to + 2, _mm256_srli_epi16(_mm256_unpacklo_epi8(zero, g23), 1));
    _mm256_store_si256(to + 3, _mm256_srli_epi16(_mm256_unpackhi_epi8(zero, g23), 1));
  }
}
HWY_INLINE Lanes UnitScale(const std::uint16_t* unpacked, int u) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(unpacked + 8 * u)));
}

}  // namespace kerf::op::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
