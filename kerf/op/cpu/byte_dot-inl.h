// Canonical dots of a 128-row tile on AVX2 and AVX-512 (VNNI, VBMI): the one file with per-target intrinsics,
// since the portable layer has no byte multiply-add. Included by kernels.cc, once per target: on purpose
// without a guard.
//
// A 128x4 scale tile holds, for each m in 0..31, the four scales of rows m, m+32, m+64 and m+96 in 16
// consecutive bytes. So the kernels take those four rows together: 64 code bytes (128 values) of each, and
// two 16-byte loads of scales.

#include <immintrin.h>

HWY_BEFORE_NAMESPACE();
namespace kerf::op::cpu::HWY_NAMESPACE {

// Balanced sum of segment sums, four rows at a time (numeric::BalancedSum, lane by lane).
struct SegmentStack {
  __m128 level[24];
  std::uint64_t count = 0;
  int depth = 0;

  HWY_INLINE void Add(__m128 term) {
    for (std::uint64_t bits = count++; (bits & 1U) != 0; bits >>= 1) term = _mm_add_ps(level[--depth], term);
    level[depth++] = term;
  }
  HWY_INLINE __m128 Sum() const {
    __m128 total = level[depth - 1];
    for (int i = depth - 2; i >= 0; --i) total = _mm_add_ps(level[i], total);
    return total;
  }
};

// Twice each e2m1 value plus 12: never negative, so that it can be the unsigned side of a byte multiply-add.
alignas(16) inline constexpr std::uint8_t kOffsetDoubled[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                                12, 11, 10, 9,  8,  6,  4,  0};

#if HWY_TARGET == HWY_AVX3

inline constexpr BlockOrder kOrder = {0, 1, 2, 3, 4, 5, 6, 7};
inline constexpr const char* kIsa = "avx512";

// Two rows share a register: lane 2b is row A's block b, lane 2b + 1 row B's.
struct Accumulators {
  __m512 ab;
  __m512 cd;
};
HWY_INLINE Accumulators Zeros() { return {_mm512_setzero_ps(), _mm512_setzero_ps()}; }

// ((c0+c1)+(c2+c3))+((c4+c5)+(c6+c7)) of all four rows.
HWY_INLINE __m128 SegmentSums(const Accumulators& c) {
  const auto low = [](__m512 x, __m512 y) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
  };
  const auto high = [](__m512 x, __m512 y) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
  };
  // 128-bit lane j: rows A, B, C, D of c(2j) + c(2j+1).
  const __m512 pairs = _mm512_add_ps(low(c.ab, c.cd), high(c.ab, c.cd));
  const __m512 quads = _mm512_add_ps(pairs, _mm512_shuffle_f32x4(pairs, pairs, 0xB1));
  return _mm512_castps512_ps128(_mm512_add_ps(quads, _mm512_shuffle_f32x4(quads, quads, 0x4E)));
}

// Rows A, B, C, D of a chunk, looked up.
struct Weights {
  __m512i even[4];
  __m512i odd[4];
  __m512 scale_ab;
  __m512 scale_cd;
};

// The scales arrive as [row][k] of two k-tiles; wanted as [k][row] for each pair of rows.
alignas(32) inline constexpr std::uint8_t kScaleOrder[32] = {
    0, 4,  1, 5,  2,  6,  3,  7,  16, 20, 17, 21, 18, 22, 19, 23,  // rows A, B
    8, 12, 9, 13, 10, 14, 11, 15, 24, 28, 25, 29, 26, 30, 27, 31};

HWY_INLINE Weights LoadWeights(const std::uint8_t* const row[4], std::int64_t at, __mmask64 mask,
                               __m128i scales0, __m128i scales1, __m512i table) {
  Weights w;
  for (int g = 0; g < 4; ++g) {
    const __m512i codes = _mm512_maskz_loadu_epi8(mask, row[g] + at);
    // The table repeats every 16 entries, so the index bits above a nibble do not matter.
    w.even[g] = _mm512_permutexvar_epi8(codes, table);
    w.odd[g] = _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 4), table);
  }
  const __m256i bytes = _mm256_permutexvar_epi8(
      _mm256_load_si256(reinterpret_cast<const __m256i*>(kScaleOrder)), _mm256_set_m128i(scales1, scales0));
  // An e4m3 byte without its sign, shifted left by 7, is an f16 of 2^-8 times the value, subnormals included.
  const __m512i half =
      _mm512_slli_epi16(_mm512_and_si512(_mm512_cvtepu8_epi16(bytes), _mm512_set1_epi16(0x7F)), 7);
  w.scale_ab = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
  w.scale_cd = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
  return w;
}

// Adjacent lanes of `a` and `b` summed and interleaved: (a0+a1, b0+b1, a2+a3, ...).
HWY_INLINE __m512i PairSums(__m512i a, __m512i b) {
  const __m512i first = _mm512_add_epi32(a, _mm512_srli_epi64(a, 32));
  return _mm512_mask_add_epi32(first, 0xAAAA, b, _mm512_slli_epi64(b, 32));
}

HWY_INLINE void AddChunk(const Weights& w, const Chunk& x, Accumulators& c) {
  const __m512i even = _mm512_load_si512(x.even.data());
  const __m512i odd = _mm512_load_si512(x.odd.data());
  const __m512i bias =
      _mm512_cvtepu32_epi64(_mm256_load_si256(reinterpret_cast<const __m256i*>(x.bias.data())));
  const __m512 scale = _mm512_moveldup_ps(_mm512_castsi512_ps(
      _mm512_cvtepu32_epi64(_mm256_load_si256(reinterpret_cast<const __m256i*>(x.scale.data())))));
  __m512i d[4];
  for (int g = 0; g < 4; ++g)
    d[g] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(bias, w.even[g], even), w.odd[g], odd);
  c.ab = _mm512_fmadd_ps(_mm512_cvtepi32_ps(PairSums(d[0], d[1])), _mm512_mul_ps(w.scale_ab, scale), c.ab);
  c.cd = _mm512_fmadd_ps(_mm512_cvtepi32_ps(PairSums(d[2], d[3])), _mm512_mul_ps(w.scale_cd, scale), c.cd);
}

HWY_INLINE __m512i LookUpTable() {
  return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kOffsetDoubled)));
}

HWY_INLINE Weights LoadWhole(const std::uint8_t* const row[4], std::int64_t at, const std::uint8_t* scales) {
  return LoadWeights(row, at, ~__mmask64{0}, _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 512)), LookUpTable());
}

HWY_INLINE Weights LoadHalf(const std::uint8_t* const row[4], std::int64_t at, const std::uint8_t* scales) {
  return LoadWeights(row, at, 0xFFFFFFFFU, _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)),
                     _mm_setzero_si128(), LookUpTable());
}

#else  // AVX2

// What one horizontal add of two registers of block dots leaves: blocks 0 1 4 5 | 2 3 6 7.
inline constexpr BlockOrder kOrder = {0, 1, 4, 5, 2, 3, 6, 7};
inline constexpr const char* kIsa = "avx2";

struct Accumulators {
  __m256 row[4];
};
HWY_INLINE Accumulators Zeros() {
  const __m256 zero = _mm256_setzero_ps();
  return {{zero, zero, zero, zero}};
}

HWY_INLINE __m128 SegmentSums(const Accumulators& c) {
  // c0+c1, c4+c5 of two rows | c2+c3, c6+c7 of the same.
  const __m256 ab = _mm256_hadd_ps(c.row[0], c.row[1]);
  const __m256 cd = _mm256_hadd_ps(c.row[2], c.row[3]);
  const __m128 ab_quads = _mm_add_ps(_mm256_castps256_ps128(ab), _mm256_extractf128_ps(ab, 1));
  const __m128 cd_quads = _mm_add_ps(_mm256_castps256_ps128(cd), _mm256_extractf128_ps(cd, 1));
  return _mm_hadd_ps(ab_quads, cd_quads);
}

struct Weights {
  __m256i even[4][2];
  __m256i odd[4][2];
  __m256 scale[4];
};

HWY_INLINE Weights LookUp(const __m256i codes[4][2], __m128i scales0, __m128i scales1) {
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(kOffsetDoubled)));
  const __m256i nibble = _mm256_set1_epi8(15);
  Weights w;
  for (int g = 0; g < 4; ++g) {
    for (int p = 0; p < 2; ++p) {
      w.even[g][p] = _mm256_shuffle_epi8(table, _mm256_and_si256(codes[g][p], nibble));
      w.odd[g][p] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(codes[g][p], 4), nibble));
    }
  }
  // Interleaving the two k-tiles by pairs of bytes gives each row's scales in kOrder.
  const __m128i mask = _mm_set1_epi8(0x7F);
  const auto halves = [&](__m128i bytes) {
    // An e4m3 byte without its sign, shifted left by 7, is an f16 of 2^-8 times the value, subnormals
    // included.
    return _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_and_si128(bytes, mask)), 7);
  };
  const __m256i ab = halves(_mm_unpacklo_epi16(scales0, scales1));
  const __m256i cd = halves(_mm_unpackhi_epi16(scales0, scales1));
  w.scale[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(ab));
  w.scale[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(ab, 1));
  w.scale[2] = _mm256_cvtph_ps(_mm256_castsi256_si128(cd));
  w.scale[3] = _mm256_cvtph_ps(_mm256_extracti128_si256(cd, 1));
  return w;
}

HWY_INLINE void AddChunk(const Weights& w, const Chunk& x, Accumulators& c) {
  const auto load = [](const std::int8_t* p) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
  };
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i even[2] = {load(x.even.data()), load(x.even.data() + 32)};
  const __m256i odd[2] = {load(x.odd.data()), load(x.odd.data() + 32)};
  const __m256i bias = _mm256_load_si256(reinterpret_cast<const __m256i*>(x.bias.data()));
  const __m256 scale = _mm256_load_ps(x.scale.data());
  for (int g = 0; g < 4; ++g) {
    __m256i d[2];
    for (int p = 0; p < 2; ++p)
      d[p] = _mm256_madd_epi16(_mm256_add_epi16(_mm256_maddubs_epi16(w.even[g][p], even[p]),
                                                _mm256_maddubs_epi16(w.odd[g][p], odd[p])),
                               ones);
    const __m256i dots = _mm256_add_epi32(_mm256_hadd_epi32(d[0], d[1]), bias);
    c.row[g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), _mm256_mul_ps(w.scale[g], scale), c.row[g]);
  }
}

HWY_INLINE Weights LoadWhole(const std::uint8_t* const row[4], std::int64_t at, const std::uint8_t* scales) {
  __m256i codes[4][2];
  for (int g = 0; g < 4; ++g)
    for (int p = 0; p < 2; ++p)
      codes[g][p] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row[g] + at + 32 * p));
  return LookUp(codes, _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)),
                _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 512)));
}

HWY_INLINE Weights LoadHalf(const std::uint8_t* const row[4], std::int64_t at, const std::uint8_t* scales) {
  __m256i codes[4][2];
  for (int g = 0; g < 4; ++g) {
    codes[g][0] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row[g] + at));
    codes[g][1] = _mm256_setzero_si256();
  }
  return LookUp(codes, _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)), _mm_setzero_si128());
}

#endif

// Count rows of x against the 128 rows of the tile.
template <int Count>
void DotsOf(const Nvfp4Tile& tile, const Chunk* const* rows, float* dots) {
  const std::int64_t row_bytes = tile.k / 2;
  const std::int64_t whole = tile.k / 128;
  for (std::int64_t m = 0; m < 32; ++m) {
    const std::uint8_t* const row[4] = {tile.codes + m * row_bytes, tile.codes + (m + 32) * row_bytes,
                                        tile.codes + (m + 64) * row_bytes, tile.codes + (m + 96) * row_bytes};
    const std::uint8_t* scales = tile.scales + 16 * m;  // [K/64] of 16 bytes, 512 apart
    Accumulators c[Count];
    for (Accumulators& sums : c) sums = Zeros();
    SegmentStack stacks[Count];
    const auto close_segment = [&] {
      for (int t = 0; t < Count; ++t) {
        stacks[t].Add(SegmentSums(c[t]));
        c[t] = Zeros();
      }
    };
    for (std::int64_t chunk = 0; chunk < whole; ++chunk) {
      const Weights w = LoadWhole(row, 64 * chunk, scales + 1024 * chunk);
      for (int t = 0; t < Count; ++t) AddChunk(w, rows[t][chunk], c[t]);
      if (chunk % 4 == 3) close_segment();
    }
    if (tile.k % 128 != 0) {
      const Weights w = LoadHalf(row, 64 * whole, scales + 1024 * whole);
      for (int t = 0; t < Count; ++t) AddChunk(w, rows[t][whole], c[t]);
    }
    if (tile.k % numeric::values_per_segment != 0) close_segment();
    for (int t = 0; t < Count; ++t) {
      alignas(16) float four[4];
      _mm_store_ps(four, stacks[t].Sum());
      for (int g = 0; g < 4; ++g) dots[t * tile_rows + m + 32 * g] = four[g];
    }
  }
}

void DotsNvfp4(const Nvfp4Tile& tile, const Chunk* const* rows, int count, float* dots) {
  switch (count) {
    case 1:
      return DotsOf<1>(tile, rows, dots);
    case 2:
      return DotsOf<2>(tile, rows, dots);
    case 3:
      return DotsOf<3>(tile, rows, dots);
    default:
      return DotsOf<4>(tile, rows, dots);
  }
}

}  // namespace kerf::op::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
