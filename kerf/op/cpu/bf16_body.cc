// BF16 experts: bf16 rows in, f32 sums, and what GEMM2 reads is the activation's result, rounded to bf16 one
// time.
#include "kerf/numeric/bf16.h"
#include "kerf/op/cpu/bodies.h"
#include "kerf/op/cpu/body.h"

namespace kerf::op::cpu {

namespace {

struct Space {
  std::span<float> input;         // [T, H], in the order of bf16_place
  std::span<float> intermediate;  // [routes, I]

  void carve(Carver& carver, const routing::MetadataShape& s, const layout::ExpertsShape& e) {
    input = carver.take<float>(s.tokens * e.hidden);
    intermediate = carver.take<float>(s.routes() * e.intermediate);
  }
};

class Bf16Body final : public internal::Bound {
 public:
  Bf16Body(const Bf16Args& args, const Kernels& kernels)
      : Bound(layout::shape_of(args.experts), args.experts.first_expert, args.num_experts, args.top_k,
              Input::bf16),
        w_(args),
        kernels_(kernels) {}

  [[nodiscard]] std::vector<Tactic> tactics(std::int64_t tokens) const override {
    return internal::tactics_of_use(tactic_table, tokens);
  }
  [[nodiscard]] Verdict prepare(Tactic tactic) const override {
    return internal::no_body(tactic_table, "cpu", tactic);
  }
  [[nodiscard]] std::size_t workspace_bytes(const routing::MetadataShape& s, Tactic) const override {
    return bf16_workspace(shape(), s);
  }

  void body(const Tokens& tokens, const routing::MetadataShape& s, const routing::Metadata& metadata,
            Tactic tactic, const Workers& workers, std::span<std::byte> workspace,
            const RowBuffer& out_rows) const override {
    const std::span<std::uint16_t> rows = internal::finished_rows(out_rows, "BF16 experts");
    const Step<Space> step(*this, tokens, s, metadata, tactic, workspace, rows.size());
    if (step.groups.empty()) return;
    run_pieces(
        step, tokens.count, w_.shape, workers,
        [&](std::int64_t token) {
          const std::int64_t at = token * w_.shape.hidden;
          for (std::int64_t k = 0; k < w_.shape.hidden; ++k)
            step.space.input[static_cast<std::size_t>(at + bf16_place(k))] =
                numeric::bf16_to_f32(tokens.x[static_cast<std::size_t>(at + k)]);
        },
        [&](const Piece& piece) { return tile_of(step.groups, piece); },
        [&](const Group& group, std::int64_t index, const Bf16Tile& tile, const Bf16Tile& ahead) {
          first(step, group, index, tile, ahead);
        },
        [&](const Group& group, std::int64_t index, const Bf16Tile& tile, const Bf16Tile& ahead) {
          second(step, group, index, tile, ahead, rows);
        });
  }

  void reread(const GatedParameters& gated) override { w_.reread(gated); }

 private:
  [[nodiscard]] Bf16Tile tile_of(std::span<const Group> groups, const Piece& piece) const {
    const auto [n, h, i] = w_.shape;
    const std::int64_t expert = groups[piece.group].expert;
    const std::int64_t row = piece.index * tile_rows * 64;
    if (piece.stage == Stage::first) return {w_.w13 + expert * 2 * i * h + row, 2 * i * 64, h};
    return {w_.w2 + expert * h * i + row, h * 64, i};
  }

  template <typename RowOf, typename Finish>
  void dots(const Group& group, int pass, const Bf16Tile& tile, const Bf16Tile& ahead, RowOf row_of,
            Finish finish) const {
    for_each_row_of<float>(
        group, pass, row_of,
        [&](const float* const* in, int count, bool last, float* out) {
          kernels_.dots_bf16(tile, last ? ahead : tile, in, count, out);
        },
        finish);
  }

  void first(const Step<Space>& step, const Group& group, std::int64_t index, const Bf16Tile& tile,
             const Bf16Tile& ahead) const {
    dots(
        group, step.pass, tile, ahead,
        [&](std::int32_t i) { return step.space.input.data() + step.entry(i).token * w_.shape.hidden; },
        [&](std::int32_t i, const float* mine) {
          float* out = step.space.intermediate.data() + i * w_.shape.intermediate;
          std::array<float, 64> h;
          kernels_.activate(mine, w_.scalars[static_cast<std::size_t>(group.expert)], h.data());
          for (std::int64_t v = 0; v < 64; ++v)
            out[bf16_place(64 * index + v)] =
                h[static_cast<std::size_t>(16 * (v / 16) + 8 * (v % 2) + v % 16 / 2)];
        });
  }

  void second(const Step<Space>& step, const Group& group, std::int64_t index, const Bf16Tile& tile,
              const Bf16Tile& ahead, std::span<std::uint16_t> rows) const {
    dots(
        group, step.pass, tile, ahead,
        [&](std::int32_t i) { return step.space.intermediate.data() + i * w_.shape.intermediate; },
        [&](std::int32_t i, const float* mine) {
          kernels_.write_row(mine, 1.0F,
                             rows.data() + step.entry(i).row * w_.shape.hidden + index * tile_rows);
        });
  }

  internal::Bf16Weights w_;
  const Kernels& kernels_;
};

}  // namespace

std::size_t bf16_workspace(const layout::ExpertsShape& shape, const routing::MetadataShape& step) {
  return space_bytes<Space>(step, shape);
}

std::unique_ptr<RoutedExperts> bind_bf16(const Bf16Args& args, const Kernels& kernels) {
  return std::make_unique<Bf16Body>(args, kernels);
}

}  // namespace kerf::op::cpu
