// What every backend binds: the checked arguments of one layer, with plain pointers into the converted
// tensors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kerf/op/internal/gated.h"
#include "kerf/op/op.h"

namespace kerf::op::internal {

// Shapes that no backend can bind.
Verdict unsupported(Arithmetic arithmetic, const layout::ExpertsShape& shape);
// Reasons that hold for every backend: malformed tensors, sizes that do not fit, parameters of the wrong
// length.
Verdict unsupported(const Nvfp4Args& args);
Verdict unsupported(const Bf16Args& args);

// Whether a tile can hold more of `tokens` tokens' rows than the next smaller one: an expert has at most one
// row of a token, unless the token names it twice. The smallest tile is always of use, and so is any where
// tokens is -1.
constexpr bool tile_is_of_use(int tile, std::int64_t tokens) {
  return tile == tiles.front() || tokens < 0 || tile / 2 < tokens;
}

struct Nvfp4Weights {
  explicit Nvfp4Weights(const Nvfp4Args& args);
  // The scalars again, in their place.
  void reread(const GatedParameters& gated);

  layout::ExpertsShape shape;
  const std::uint8_t* w13;             // [n, 2I, H/2]
  const std::uint8_t* w13_sf;          // [n, 2I, H/16] 128x4
  const std::uint8_t* w2;              // [n, H, I/2]
  const std::uint8_t* w2_sf;           // [n, H, I/16] 128x4
  std::vector<ExpertScalars> scalars;  // [n]

 private:
  std::span<const std::byte> gate_, up_, down_;  // g1_alphas, g1_scale_c, g2_alphas, f32 [n]
};

struct Bf16Weights {
  explicit Bf16Weights(const Bf16Args& args);
  void reread(const GatedParameters& gated);

  layout::ExpertsShape shape;
  const std::uint16_t* w13;            // [n, H/64, 2I, 64]
  const std::uint16_t* w2;             // [n, I/64, H, 64]
  std::vector<ExpertScalars> scalars;  // [n]
};

// The half of RoutedExperts that only reports what was bound.
class Bound : public RoutedExperts {
 public:
  Bound(const layout::ExpertsShape& shape, std::int64_t first_expert, std::int64_t num_experts,
        std::int64_t top_k, Input input)
      : shape_(shape), first_(first_expert), experts_(num_experts), top_k_(top_k), input_(input) {}
  [[nodiscard]] layout::ExpertsShape shape() const final { return shape_; }
  [[nodiscard]] std::int64_t first_expert() const final { return first_; }
  [[nodiscard]] std::int64_t num_experts() const final { return experts_; }
  [[nodiscard]] std::int64_t top_k() const final { return top_k_; }
  [[nodiscard]] Input input() const final { return input_; }

 private:
  layout::ExpertsShape shape_;
  std::int64_t first_;
  std::int64_t experts_;
  std::int64_t top_k_;
  Input input_;
};

// Error{usage} unless tokens and rows have the sizes that the shape wants; Error{bug} unless the metadata's
// shape is this op's, its spans are long enough and every live tile names an expert, a limit and tokens
// inside the shape. O(rows), so that metadata from elsewhere cannot lead outside a buffer.
void check_body(const RoutedExperts& experts, const Tokens& tokens, const routing::MetadataShape& shape,
                const routing::Metadata& metadata, std::size_t rows);

// Elements of the buffer, of either kind.
std::size_t elements(const RowBuffer& rows);

// The bf16 rows; Error{unsupported} where sums are asked of experts that have none. experts: "BF16 experts".
std::span<std::uint16_t> finished_rows(const RowBuffer& rows, std::string_view experts);

}  // namespace kerf::op::internal
