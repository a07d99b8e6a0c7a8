#include "kerf/op/reference/reference.h"

#include <array>
#include <memory>
#include <type_traits>

#include "kerf/base/format.h"
#include "kerf/base/machine.h"
#include "kerf/layout/rows.h"
#include "kerf/numeric/bf16.h"
#include "kerf/numeric/nvfp4.h"
#include "kerf/numeric/segment_tree.h"
#include "kerf/op/internal/bound.h"

namespace kerf::op::reference {

namespace {

using internal::Bf16Weights;
using internal::ExpertScalars;
using internal::Nvfp4Weights;
using layout::Half;

std::uint8_t nibble(const std::uint8_t* codes, std::int64_t k) {
  return static_cast<std::uint8_t>((codes[k / 2] >> (4 * (k % 2))) & 15U);
}

// A matrix of the converted layout: row r's codes, and its scales in the 128x4 interleave.
struct Nvfp4Matrix {
  const std::uint8_t* codes;   // [rows, K/2]
  const std::uint8_t* scales;  // 128x4 of [rows, K/16]
  std::int64_t k;

  [[nodiscard]] float scale(std::int64_t row, std::int64_t block) const {
    return numeric::e4m3_to_f32(scales[layout::scale_offset_128x4(row, block, k / 16)]);
  }
  [[nodiscard]] std::uint8_t code(std::int64_t row, std::int64_t i) const {
    return nibble(codes + row * (k / 2), i);
  }

  // Canonical dot with quantised activations (codes [K/2], linear scales [K/16]).
  [[nodiscard]] float dot(std::int64_t row, const std::uint8_t* a, const std::uint8_t* a_sf) const {
    return numeric::canonical_dot(
        k / 16,
        [&](std::int64_t b) {
          int quadrupled = 0;
          for (std::int64_t i = 16 * b; i < 16 * b + 16; ++i)
            quadrupled += numeric::e2m1_doubled[code(row, i)] * numeric::e2m1_doubled[nibble(a, i)];
          return static_cast<float>(quadrupled) / 4.0F;
        },
        [&](std::int64_t b) { return scale(row, b) * numeric::e4m3_to_f32(a_sf[b]); });
  }

  // Dot with bf16 activations, f64.
  [[nodiscard]] double dot(std::int64_t row, const std::uint16_t* x) const {
    double sum = 0;
    for (std::int64_t i = 0; i < k; ++i)
      sum += static_cast<double>(numeric::e2m1_to_f32(code(row, i)) * scale(row, i / 16)) *
             numeric::bf16_to_f32(x[i]);
    return sum;
  }
};

// A matrix of BF16 experts: block-major in K.
struct Bf16Matrix {
  const std::uint16_t* values;  // [K/64, rows, 64]
  std::int64_t rows;
  std::int64_t k;

  [[nodiscard]] double dot(std::int64_t row, const std::uint16_t* x) const {
    double sum = 0;
    for (std::int64_t i = 0; i < k; ++i)
      sum += static_cast<double>(numeric::bf16_to_f32(values[((i / 64) * rows + row) * 64 + i % 64])) *
             numeric::bf16_to_f32(x[i]);
    return sum;
  }
};

// Visits every live row: its expert, its token, its place among the permuted rows.
template <typename Visit>
void for_each_row(const routing::MetadataShape& shape, const routing::Metadata& metadata,
                  const Workers& workers, Visit visit) {
  workers.for_each(static_cast<std::size_t>(metadata.live_tiles[0]), [&](std::size_t tile, int) {
    const std::int64_t end = metadata.tile_to_limit[tile];
    for (std::int64_t row = static_cast<std::int64_t>(tile) * shape.tile; row < end; ++row)
      visit(metadata.tile_to_expert[tile], metadata.permuted_to_token[static_cast<std::size_t>(row)], row);
  });
}

class ReferenceBase : public internal::Bound {
 public:
  using internal::Bound::Bound;
  [[nodiscard]] std::vector<Tactic> tactics(std::int64_t tokens) const override {
    return backend().tactics(tokens);
  }
  [[nodiscard]] std::size_t workspace_bytes(const routing::MetadataShape&, Tactic) const override {
    return 0;
  }
};

class Nvfp4Reference final : public ReferenceBase {
 public:
  explicit Nvfp4Reference(const Nvfp4Args& args)
      : ReferenceBase(layout::shape_of(args.experts), args.experts.first_expert, args.num_experts, args.top_k,
                      args.input),
        w_(args) {}

  void body(const Tokens& tokens, const routing::MetadataShape& shape, const routing::Metadata& metadata,
            Tactic, const Workers& workers, std::span<std::byte>, const RowBuffer& rows) const override {
    internal::check_body(*this, tokens, shape, metadata, internal::elements(rows));
    const std::int64_t hidden = w_.shape.hidden;
    if (input() == Input::bf16) {
      const auto out = internal::finished_rows(rows, "NVFP4 experts with bf16 rows (W4A16)");
      for_each_row(shape, metadata, workers, [&](std::int64_t e, std::int64_t token, std::int64_t row) {
        half(e, tokens, token, out.data() + row * hidden);
      });
      return;
    }
    std::visit(
        [&](const auto& out) {
          for_each_row(shape, metadata, workers, [&](std::int64_t e, std::int64_t token, std::int64_t row) {
            quantised(e, tokens, token, out.data() + row * hidden);
          });
        },
        rows);
  }
  void reread(const GatedParameters& gated) override { w_.reread(gated); }

 private:
  [[nodiscard]] Nvfp4Matrix w13(std::int64_t e) const {
    const auto [n, h, i] = w_.shape;
    return {w_.w13 + e * 2 * i * (h / 2), w_.w13_sf + e * 2 * i * (h / 16), h};
  }
  [[nodiscard]] Nvfp4Matrix w2(std::int64_t e) const {
    const auto [n, h, i] = w_.shape;
    return {w_.w2 + e * h * (i / 2), w_.w2_sf + e * h * (i / 16), i};
  }

  // Out: std::uint16_t for finished rows, float for sums.
  template <typename Out>
  void quantised(std::int64_t e, const Tokens& tokens, std::int64_t token, Out* out) const {
    const auto [n, hidden, inter] = w_.shape;
    const ExpertScalars& s = w_.scalars[static_cast<std::size_t>(e)];
    const std::uint8_t* a = tokens.a.data() + token * hidden / 2;
    const std::uint8_t* a_sf = tokens.a_sf.data() + token * hidden / 16;
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(inter / 2));
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(inter / 16));
    const Nvfp4Matrix first = w13(e);
    for (std::int64_t b = 0; b < inter / 16; ++b) {
      std::array<float, 16> h{};
      for (std::int64_t i = 0; i < 16; ++i)
        h[static_cast<std::size_t>(i)] =
            internal::gated(first.dot(layout::w13_converted(Half::up, 16 * b + i), a, a_sf),
                            first.dot(layout::w13_converted(Half::gate, 16 * b + i), a, a_sf), s);
      const numeric::Nvfp4Block block = numeric::requantise_block(h);
      scales[static_cast<std::size_t>(b)] = block.scale;
      std::copy(block.codes.begin(), block.codes.end(), codes.begin() + 8 * b);
    }
    const Nvfp4Matrix second = w2(e);
    for (std::int64_t h = 0; h < hidden; ++h) {
      const float sum = second.dot(layout::w2_converted(h), codes.data(), scales.data());
      if constexpr (std::is_same_v<Out, float>)
        out[h] = sum;
      else
        out[h] = numeric::f32_to_bf16(s.scale_down * sum);
    }
  }

  void half(std::int64_t e, const Tokens& tokens, std::int64_t token, std::uint16_t* out) const {
    const auto [n, hidden, inter] = w_.shape;
    const ExpertScalars& s = w_.scalars[static_cast<std::size_t>(e)];
    const std::uint16_t* x = tokens.x.data() + token * hidden;
    std::vector<std::uint16_t> h(static_cast<std::size_t>(inter));
    const Nvfp4Matrix first = w13(e);
    for (std::int64_t i = 0; i < inter; ++i)
      h[static_cast<std::size_t>(i)] = numeric::f32_to_bf16(
          internal::gated(static_cast<float>(first.dot(layout::w13_converted(Half::up, i), x)),
                          static_cast<float>(first.dot(layout::w13_converted(Half::gate, i), x)), s));
    const Nvfp4Matrix second = w2(e);
    for (std::int64_t k = 0; k < hidden; ++k)
      out[k] = numeric::f32_to_bf16(s.scale_down *
                                    static_cast<float>(second.dot(layout::w2_converted(k), h.data())));
  }

  Nvfp4Weights w_;
};

class Bf16Reference final : public ReferenceBase {
 public:
  explicit Bf16Reference(const Bf16Args& args)
      : ReferenceBase(layout::shape_of(args.experts), args.experts.first_expert, args.num_experts, args.top_k,
                      Input::bf16),
        w_(args) {}

  void body(const Tokens& tokens, const routing::MetadataShape& shape, const routing::Metadata& metadata,
            Tactic, const Workers& workers, std::span<std::byte>, const RowBuffer& out_rows) const override {
    internal::check_body(*this, tokens, shape, metadata, internal::elements(out_rows));
    const std::span<std::uint16_t> rows = internal::finished_rows(out_rows, "BF16 experts");
    const auto [n, hidden, inter] = w_.shape;
    for_each_row(shape, metadata, workers, [&](std::int64_t e, std::int64_t token, std::int64_t row) {
      const ExpertScalars& s = w_.scalars[static_cast<std::size_t>(e)];
      const std::uint16_t* x = tokens.x.data() + token * hidden;
      const Bf16Matrix first{w_.w13 + e * 2 * inter * hidden, 2 * inter, hidden};
      const Bf16Matrix second{w_.w2 + e * inter * hidden, hidden, inter};
      std::vector<std::uint16_t> h(static_cast<std::size_t>(inter));
      for (std::int64_t i = 0; i < inter; ++i)
        h[static_cast<std::size_t>(i)] = numeric::f32_to_bf16(
            internal::gated(static_cast<float>(first.dot(layout::w13_converted(Half::up, i), x)),
                            static_cast<float>(first.dot(layout::w13_converted(Half::gate, i), x)), s));
      std::uint16_t* out = rows.data() + row * hidden;
      for (std::int64_t k = 0; k < hidden; ++k)
        out[k] = numeric::f32_to_bf16(static_cast<float>(second.dot(layout::w2_converted(k), h.data())));
    });
  }
  void reread(const GatedParameters& gated) override { w_.reread(gated); }

 private:
  Bf16Weights w_;
};

class ReferenceBackend final : public Backend {
 public:
  [[nodiscard]] std::string_view name() const override { return "reference"; }
  [[nodiscard]] std::string_view package() const override { return "reference-1"; }
  [[nodiscard]] std::string device() const override { return machine_name(); }
  [[nodiscard]] std::vector<Tactic> tactics(std::int64_t tokens) const override {
    std::vector<Tactic> out;
    for (const int tile : tiles)
      if (internal::tile_is_of_use(tile, tokens)) out.push_back({tile, 0});
    return out;
  }
  [[nodiscard]] Verdict supports(Arithmetic arithmetic, const layout::ExpertsShape& shape) const override {
    return internal::unsupported(arithmetic, shape);
  }
  [[nodiscard]] std::size_t workspace_bytes(Arithmetic, const layout::ExpertsShape&,
                                            const routing::MetadataShape&) const override {
    return 0;
  }
  [[nodiscard]] Verdict supports(const Nvfp4Args& args) const override { return internal::unsupported(args); }
  [[nodiscard]] Verdict supports(const Bf16Args& args) const override { return internal::unsupported(args); }
  [[nodiscard]] std::unique_ptr<RoutedExperts> bind(const Nvfp4Args& args) const override {
    require(supports(args));
    return std::make_unique<Nvfp4Reference>(args);
  }
  [[nodiscard]] std::unique_ptr<RoutedExperts> bind(const Bf16Args& args) const override {
    require(supports(args));
    return std::make_unique<Bf16Reference>(args);
  }
};

}  // namespace

const Backend& backend() {
  static const ReferenceBackend instance;
  return instance;
}

}  // namespace kerf::op::reference
