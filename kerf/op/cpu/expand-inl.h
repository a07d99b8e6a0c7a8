// A quantised row as chunks, with the bytes of expand() (expanded.h). Included by table-inl.h, once per
// target: on purpose without a guard.

HWY_BEFORE_NAMESPACE();
namespace kerf::op::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using CodeBytes = hn::CappedTag<std::uint8_t, 32>;
using CodeWords = hn::Repartition<std::uint32_t, CodeBytes>;  // a lane: a run of one block
using BlockFloats = hn::RebindToFloat<CodeWords>;

constexpr bool kInOrder = [] {
  for (std::size_t b = 0; b < 8; ++b)
    if (kOrder[b] != b) return false;
  return true;
}();

// The lanes of blocks at the blocks' places.
template <typename D>
HWY_INLINE hn::Vec<D> Placed(D d, hn::Vec<D> v) {
  if constexpr (kInOrder) {
    return v;
  } else {
    alignas(32) static constexpr auto from = [] {
      std::array<std::int32_t, 8> out{};
      for (std::size_t b = 0; b < 8; ++b) out[kOrder[b]] = static_cast<std::int32_t>(b);
      return out;
    }();
    static_assert(hn::MaxLanes(D()) == 8);
    return hn::TableLookupLanes(v, hn::SetTableIndices(d, from.data()));
  }
}

// Twice the values of the codes in the low nibbles.
HWY_INLINE hn::Vec<CodeBytes> Looked(hn::Vec<CodeBytes> codes) {
  const CodeBytes d;
  const auto table = hn::LoadDup128(d, reinterpret_cast<const std::uint8_t*>(numeric::e2m1_doubled.data()));
  return hn::TableLookupBytes(table, hn::And(codes, hn::Set(d, 15)));
}

// Sums of the signed bytes of each word.
HWY_INLINE hn::Vec<hn::RebindToSigned<CodeWords>> SumsOfBytes(hn::Vec<CodeBytes> bytes) {
  const hn::Repartition<std::int16_t, CodeBytes> i16;
  const hn::RebindToSigned<CodeWords> i32;
  const auto pairs = hn::BitCast(i16, bytes);
  const auto two = hn::Add(hn::ShiftRight<8>(hn::ShiftLeft<8>(pairs)), hn::ShiftRight<8>(pairs));
  const auto twos = hn::BitCast(i32, two);
  return hn::Add(hn::ShiftRight<16>(hn::ShiftLeft<16>(twos)), hn::ShiftRight<16>(twos));
}

// Blocks [first, first + lanes) of a chunk: 8 code bytes and a scale each.
HWY_INLINE void ExpandBlocks(const std::uint8_t* codes, const std::uint8_t* scales, std::size_t first,
                             Chunk& out) {
  const CodeBytes d;
  const CodeWords words;
  const BlockFloats f;
  const hn::RebindToSigned<CodeWords> i32;
  const hn::Rebind<std::uint8_t, CodeWords> one_each;
  const auto low = hn::BitCast(words, hn::LoadU(d, codes + 8 * first));
  const auto high = hn::BitCast(words, hn::LoadU(d, codes + 8 * first + hn::Lanes(d)));
  const auto front = Placed(words, hn::ConcatEven(words, high, low));
  const auto back = Placed(words, hn::ConcatOdd(words, high, low));
  const auto upper = [&](hn::Vec<CodeWords> v)
                         HWY_ATTR { return Looked(hn::BitCast(d, hn::ShiftRight<4>(v))); };
  const hn::Vec<CodeBytes> runs[4] = {Looked(hn::BitCast(d, front)), upper(front),
                                      Looked(hn::BitCast(d, back)), upper(back)};
  for (std::size_t r = 0; r < 4; ++r)
    hn::StoreU(runs[r], d, reinterpret_cast<std::uint8_t*>(out.x[r].data()) + 4 * first);
  const auto sum = SumsOfBytes(hn::Add(hn::Add(runs[0], runs[1]), hn::Add(runs[2], runs[3])));
  hn::StoreU(hn::Mul(sum, hn::Set(i32, -12)), i32, out.bias.data() + first);
  const auto scale = numeric::HWY_NAMESPACE::E4m3ToF32(
      f, Placed(words, hn::PromoteTo(words, hn::LoadU(one_each, scales + first))));
  hn::StoreU(hn::Mul(scale, hn::Set(f, chunk_scale)), f, out.scale.data() + first);
}

void Expand(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t k, Chunk* out) {
  const auto chunk = [](const std::uint8_t* c, const std::uint8_t* s, Chunk& to) HWY_ATTR {
    for (std::size_t b = 0; b < 8; b += hn::Lanes(CodeWords())) ExpandBlocks(c, s, b, to);
  };
  for (std::int64_t c = 0; c < k / 128; ++c) chunk(codes + 64 * c, scales + 8 * c, out[c]);
  if (k % 128 == 0) return;
  std::array<std::uint8_t, 64> last_codes{};
  std::array<std::uint8_t, 8> last_scales{};
  std::copy_n(codes + k / 128 * 64, k % 128 / 2, last_codes.data());
  std::copy_n(scales + k / 128 * 8, k % 128 / 16, last_scales.data());
  chunk(last_codes.data(), last_scales.data(), out[k / 128]);
}

}  // namespace
}  // namespace kerf::op::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
