#include "kerf/tools/made_experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kerf/tools/internal/made_words.h"

namespace kerf::tools {

namespace {

using internal::MadeWords;

// Which bits of a random word are kept, and what is put in for the others.
struct Mask {
  std::uint64_t kept = ~std::uint64_t{0};
  std::uint64_t set = 0;
};

constexpr Mask any_codes{};
constexpr Mask regular_scales{0x0F0F0F0F0F0F0F0FU, 0x3030303030303030U};  // e4m3: 2^-1 or 2^0, any mantissa

// bf16 of either sign and any mantissa, in [2^e, 2^(e + 2)) around 1 / sqrt(width), so that a sum over
// `width` of them keeps the size of what it is taken with.
Mask bf16_around(std::int64_t width) {
  const int below = static_cast<int>(std::floor(-std::log2(static_cast<double>(width)) / 2 - 0.5));
  const auto exponent = static_cast<std::uint64_t>((127 + below) & ~1);  // even: its lowest bit stays random
  return {0x80FF80FF80FF80FFU, (exponent << 7) * 0x0001000100010001U};
}

// One stream a tensor kind: they are alike in nothing.
enum class Kind : std::uint64_t { w13 = 1, w13_sf = 2, w2 = 3, w2_sf = 4 };

// Fills a tensor of `experts` experts, each of a whole number of words: word w of expert e is number e *
// words + w of the stream, so that any worker can make any part.
void fill(const MadeIn& in, const tensor::Tensor& tensor, Kind kind, Mask mask, std::int64_t experts,
          std::int64_t first_expert, std::uint64_t seed) {
  const std::uint64_t words = tensor.bytes().size() / 8;
  in.fill(tensor.bytes(),
          {numeric::SplitMix{numeric::SplitMix{seed}[static_cast<std::uint64_t>(kind)]},
           words / static_cast<std::uint64_t>(experts) * static_cast<std::uint64_t>(first_expert), mask.kept,
           mask.set});
}

// The host's way to fill.
auto filled_by(const Workers& workers) {
  return [&workers](std::span<std::byte> bytes, const MadeWords& made) {
    constexpr std::size_t share = std::size_t{1} << 17;  // words: 1 MiB
    const std::size_t words = bytes.size() / 8;
    workers.for_each((words + share - 1) / share, [&](std::size_t i, int) {
      for (std::size_t w = i * share; w < std::min(words, (i + 1) * share); ++w) {
        const std::uint64_t word = made[w];
        std::memcpy(bytes.data() + 8 * w, &word, 8);
      }
    });
  };
}

void set_all(const tensor::Tensor& tensor, double value) {
  std::ranges::fill(tensor.as<float>(), static_cast<float>(value));
}

}  // namespace

layout::Nvfp4Experts made_nvfp4(const MadeIn& in, const layout::ExpertsShape& shape,
                                std::int64_t first_expert, op::Input input, std::uint64_t seed) {
  layout::Nvfp4Experts e(in.weights, in.scalars, shape, first_expert);
  const auto fill_kind = [&](const tensor::Tensor& t, Kind kind, Mask mask) {
    fill(in, t, kind, mask, shape.experts, first_expert, seed);
  };
  fill_kind(e.w13, Kind::w13, any_codes);
  fill_kind(e.w13_sf, Kind::w13_sf, regular_scales);
  fill_kind(e.w2, Kind::w2, any_codes);
  fill_kind(e.w2_sf, Kind::w2_sf, regular_scales);
  // Codes times scales have a root mean square near 3. Quantised input is `given` times the unit rows, so
  // that its block scales are regular too, and the intermediate rows `between` times what they stand for.
  const double given = input == op::Input::nvfp4 ? 448 : 1;
  const double between = input == op::Input::nvfp4 ? 64 : 1;
  const double gemm1 = 1 / (3 * std::sqrt(static_cast<double>(shape.hidden)));
  set_all(e.g1_alphas, gemm1 / given);
  set_all(e.g1_scale_c, gemm1 / given * between);
  set_all(e.g2_alphas, 1 / (3 * std::sqrt(static_cast<double>(shape.intermediate)) * between));
  set_all(e.a1_gscale, given);
  set_all(e.a2_gscale, between);
  return e;
}

layout::Bf16Experts made_bf16(const MadeIn& in, const layout::ExpertsShape& shape, std::int64_t first_expert,
                              std::uint64_t seed) {
  layout::Bf16Experts e(in.weights, shape, first_expert);
  fill(in, e.w13, Kind::w13, bf16_around(shape.hidden), shape.experts, first_expert, seed);
  fill(in, e.w2, Kind::w2, bf16_around(shape.intermediate), shape.experts, first_expert, seed);
  return e;
}

layout::Nvfp4Experts made_nvfp4(tensor::Memory& memory, const layout::ExpertsShape& shape,
                                std::int64_t first_expert, op::Input input, std::uint64_t seed,
                                const Workers& workers) {
  const auto fill = filled_by(workers);
  return made_nvfp4({memory, memory, fill}, shape, first_expert, input, seed);
}

layout::Bf16Experts made_bf16(tensor::Memory& memory, const layout::ExpertsShape& shape,
                              std::int64_t first_expert, std::uint64_t seed, const Workers& workers) {
  const auto fill = filled_by(workers);
  return made_bf16({memory, memory, fill}, shape, first_expert, seed);
}

}  // namespace kerf::tools
