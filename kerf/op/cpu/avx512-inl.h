// The pieces of the NVFP4 kernels on AVX-512 (with VNNI and VBMI). Included by kernels.cc for that target
// alone: on purpose without a guard.
//
// A set is the 16 rows m + 32 g of a tile, for four consecutive m and g = 0..3: their scales of one k-tile
// are 64 consecutive bytes. A unit is what one register of f32 lanes serves: here two rows, eight chains
// each.

#include <immintrin.h>

HWY_BEFORE_NAMESPACE();
namespace kerf::op::cpu::HWY_NAMESPACE {

inline constexpr const char* kIsa = "avx512";
inline constexpr BlockOrder kOrder = {0, 1, 2, 3, 4, 5, 6, 7};
inline constexpr int kRowsAUnit = 2;
// Units that share the loads of Count rows of x: as many as have their codes and sums in registers.
template <int Count>
inline constexpr int kAtOnce = 2;

using Lanes = __m512;    // [row of the unit][chain]
using Sixteen = __m512;  // one value of each row of a set

// Places of a set's rows: unit u holds places 2u and 2u + 1, m and m + 1 of the same g.
constexpr int RowOf(int place) { return place % 4 + 32 * (place / 4); }

HWY_INLINE Lanes ZeroLanes() { return _mm512_setzero_ps(); }
HWY_INLINE Lanes MulAdd(__m512i dots, Lanes weight_scale, const float* x_scale, Lanes sum) {
  const __m512 scale = _mm512_mul_ps(weight_scale, _mm512_broadcast_f32x8(_mm256_load_ps(x_scale)));
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, sum);
}
HWY_INLINE Sixteen Add(Sixteen a, Sixteen b) { return _mm512_add_ps(a, b); }
// rows[32 g + m] for the four m's of the set.
HWY_INLINE void StoreSixteen(Sixteen v, float* rows) {
  const __m512i by_g = _mm512_set_epi32(15, 11, 14, 10, 13, 9, 12, 8, 7, 3, 6, 2, 5, 1, 4, 0);
  const __m512 sorted = _mm512_permutexvar_ps(by_g, v);
  _mm_storeu_ps(rows, _mm512_castps512_ps128(sorted));
  _mm_storeu_ps(rows + 32, _mm512_extractf32x4_ps(sorted, 1));
  _mm_storeu_ps(rows + 64, _mm512_extractf32x4_ps(sorted, 2));
  _mm_storeu_ps(rows + 96, _mm512_extractf32x4_ps(sorted, 3));
}

// ((c0+c1)+(c2+c3))+((c4+c5)+(c6+c7)) of a set's sixteen rows.
HWY_INLINE Sixteen SegmentSums(const Lanes* units) {
  // Two halves of each sum: one blend and one shuffle, which have ports of their own.
  // [a0 b1 a2 b3 ..] + [a1 b0 a3 b2 ..]: pairs of chains, a and b by turns.
  const auto pairs = [](__m512 a, __m512 b) {
    const __m512i swap = _mm512_set_epi32(30, 15, 28, 13, 26, 11, 24, 9, 22, 7, 20, 5, 18, 3, 16, 1);
    return _mm512_add_ps(_mm512_mask_blend_ps(0xAAAA, a, b), _mm512_permutex2var_ps(a, swap, b));
  };
  // The same for pairs of lanes: [c0 c1 d2 d3] + [c2 c3 d0 d1].
  const auto fours = [](__m512 c, __m512 d) {
    return _mm512_add_ps(_mm512_mask_blend_ps(0xCCCC, c, d), _mm512_shuffle_ps(c, d, 0x4E));
  };
  // 128-bit lanes: chains 0-3 and 4-7 of the units' first rows, then of their second rows.
  const __m512 low = fours(pairs(units[0], units[1]), pairs(units[2], units[3]));
  const __m512 high = fours(pairs(units[4], units[5]), pairs(units[6], units[7]));
  return _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xDD));
}

// A unit's 128 values of K, looked up as 12 + 2w: a register for each run of a chunk.
struct Codes {
  __m512i run[4];
};

HWY_INLINE Codes LookUp(__m512i first_row, __m512i second_row) {
  // The table repeats every 16 entries, so the index bits above a nibble do not matter.
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kOffsetDoubled)));
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  const __m512i front = _mm512_permutex2var_epi32(first_row, even, second_row);
  const __m512i back = _mm512_permutex2var_epi32(first_row, odd, second_row);
  return {{_mm512_permutexvar_epi8(front, table), _mm512_permutexvar_epi8(_mm512_srli_epi16(front, 4), table),
           _mm512_permutexvar_epi8(back, table), _mm512_permutexvar_epi8(_mm512_srli_epi16(back, 4), table)}};
}
// 64 code bytes of each row of unit u, whose set starts at `codes`.
HWY_INLINE Codes LookUpWhole(const std::uint8_t* codes, std::int64_t row_bytes, int u) {
  const std::uint8_t* first = codes + RowOf(2 * u) * row_bytes;
  return LookUp(_mm512_loadu_si512(first), _mm512_loadu_si512(first + row_bytes));
}
HWY_INLINE Codes LookUpHalf(const std::uint8_t* codes, std::int64_t row_bytes, int u) {
  const std::uint8_t* first = codes + RowOf(2 * u) * row_bytes;
  return LookUp(_mm512_maskz_loadu_epi8(0xFFFFFFFFU, first),
                _mm512_maskz_loadu_epi8(0xFFFFFFFFU, first + row_bytes));
}

HWY_INLINE __m512i BothRows(const std::int8_t* run) {
  return _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(run)));
}
HWY_INLINE __m512i AddRuns(__m512i sum, const Codes& w, const Runs& x) {
  for (std::size_t r = 0; r < 4; ++r) sum = _mm512_dpbusd_epi32(sum, w.run[r], BothRows(x[r].data()));
  return sum;
}
HWY_INLINE __m512i Bias(const std::int32_t* bias) {
  return _mm512_broadcast_i32x8(_mm256_load_si256(reinterpret_cast<const __m256i*>(bias)));
}
// The block dots of a unit, exact.
HWY_INLINE __m512i Dots(const Codes& w, const Chunk& x) { return AddRuns(Bias(x.bias.data()), w, x.x); }
HWY_INLINE __m512i Dots(const Codes& w, const WideChunk& x) {
  const __m512i high = _mm512_slli_epi32(AddRuns(_mm512_setzero_si512(), w, x.high), 8);
  return AddRuns(_mm512_add_epi32(high, Bias(x.bias.data())), w, x.low);
}

// A set's scales of one chunk, as f16 of 2^-8 times their value: an e4m3 byte without its sign, shifted left
// by 7, subnormals included. out: [place][block].
HWY_INLINE void UnpackScales(const std::uint8_t* scales, bool half, std::uint16_t* out) {
  const __m512i first = _mm512_loadu_si512(scales);
  const __m512i second = half ? _mm512_setzero_si512() : _mm512_loadu_si512(scales + 512);
  const __m512i zero = _mm512_setzero_si512();
  const __m512i unsigned_part = _mm512_set1_epi8(0x7F);
  // Each 128-bit lane is one m; eight bytes of each of two g's.
  const __m512i g01 = _mm512_and_si512(_mm512_unpacklo_epi32(first, second), unsigned_part);
  const __m512i g23 = _mm512_and_si512(_mm512_unpackhi_epi32(first, second), unsigned_part);
  _mm512_store_si512(out, _mm512_srli_epi16(_mm512_unpacklo_epi8(zero, g01), 1));
  _mm512_store_si512(out + 32, _mm512_srli_epi16(_mm512_unpackhi_epi8(zero, g01), 1));
  _mm512_store_si512(out + 64, _mm512_srli_epi16(_mm512_unpacklo_epi8(zero, g23), 1));
  _mm512_store_si512(out + 96, _mm512_srli_epi16(_mm512_unpackhi_epi8(zero, g23), 1));
}
HWY_INLINE Lanes UnitScale(const std::uint16_t* unpacked, int u) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(unpacked + 16 * u)));
}

}  // namespace kerf::op::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
