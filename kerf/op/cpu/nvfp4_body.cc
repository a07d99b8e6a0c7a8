// NVFP4 experts. W4A4: quantised rows in, canonical arithmetic throughout. W4A16: bf16 rows in, and what
// GEMM2 reads is the activation's result, rounded to bf16 one time.
#include <type_traits>

#include "kerf/numeric/e4m3_scan.h"
#include "kerf/op/cpu/bodies.h"
#include "kerf/op/cpu/body.h"

namespace kerf::op::cpu {

namespace {

// X: what a row is expanded to, Chunk (W4A4) or WideChunk (W4A16).
template <typename X>
struct Space {
  std::span<X> input;         // [T, chunks(H)]
  std::span<X> intermediate;  // [routes, chunks(I)]

  void carve(Carver& carver, const routing::MetadataShape& s, const layout::ExpertsShape& e) {
    input = carver.take<X>(s.tokens * chunks_of(e.hidden));
    intermediate = carver.take<X>(s.routes() * chunks_of(e.intermediate));
  }
};

template <typename X>
class Nvfp4Body final : public internal::Bound {
 public:
  static constexpr bool quantised = std::is_same_v<X, Chunk>;

  Nvfp4Body(const Nvfp4Args& args, const Kernels& kernels)
      : Bound(layout::shape_of(args.experts), args.experts.first_expert, args.num_experts, args.top_k,
              args.input),
        w_(args),
        vector_kernels_(kernels) {
    choose_kernels();
  }

  [[nodiscard]] std::vector<Tactic> tactics(std::int64_t tokens) const override {
    return internal::tactics_of_use(tactic_table, tokens);
  }
  [[nodiscard]] Verdict prepare(Tactic tactic) const override {
    return internal::no_body(tactic_table, "cpu", tactic);
  }
  [[nodiscard]] std::size_t workspace_bytes(const routing::MetadataShape& s, Tactic) const override {
    return space_bytes<Space<X>>(s, shape());
  }

  void body(const Tokens& tokens, const routing::MetadataShape& s, const routing::Metadata& metadata,
            Tactic tactic, const Workers& workers, std::span<std::byte> workspace,
            const RowBuffer& rows) const override {
    if constexpr (!quantised) (void)internal::finished_rows(rows, "NVFP4 experts with bf16 rows (W4A16)");
    const Step<Space<X>> step(*this, tokens, s, metadata, tactic, workspace, internal::elements(rows));
    if (step.groups.empty()) return;
    run_pieces(
        step, tokens.count, w_.shape, workers,
        [&](std::int64_t token) {
          expand_token(tokens, token, step.space.input.data() + token * chunks_of(w_.shape.hidden));
        },
        [&](const Piece& piece) { return tile_of(step.groups, piece); },
        [&](const Group& group, std::int64_t index, const Nvfp4Tile& tile, const Nvfp4Tile& ahead) {
          first(step, group, index, tile, ahead);
        },
        [&](const Group& group, std::int64_t index, const Nvfp4Tile& tile, const Nvfp4Tile& ahead) {
          second(step, group, index, tile, ahead, rows);
        });
  }

  void reread(const GatedParameters& gated) override {
    w_.reread(gated);
    choose_kernels();
  }

 private:
  // Layers with scales that the vector kernels do not take run on the scalar table: slower, and the same
  // bits as the reference's. Checkpoints that kerf loads have none.
  void choose_kernels() {
    const auto [n, h, i] = w_.shape;
    const bool regular =
        numeric::regular_scales({w_.w13_sf, static_cast<std::size_t>(n * 2 * i * (h / 16))}) &&
        numeric::regular_scales({w_.w2_sf, static_cast<std::size_t>(n * h * (i / 16))});
    kernels_ = regular ? &vector_kernels_ : &scalar_kernels();
  }

  void expand_token(const Tokens& tokens, std::int64_t t, X* out) const {
    const std::int64_t hidden = w_.shape.hidden;
    if constexpr (quantised)
      kernels_->expand(tokens.a.data() + t * hidden / 2, tokens.a_sf.data() + t * hidden / 16, hidden, out);
    else
      expand(tokens.x.data() + t * hidden, hidden, kernels_->order, out);
  }

  [[nodiscard]] Nvfp4Tile tile_of(std::span<const Group> groups, const Piece& piece) const {
    const auto [n, h, i] = w_.shape;
    const std::int64_t expert = groups[piece.group].expert;
    if (piece.stage == Stage::first) {
      const std::int64_t row = expert * 2 * i + piece.index * tile_rows;
      return {w_.w13 + row * (h / 2), w_.w13_sf + row * (h / 16), h};
    }
    const std::int64_t row = expert * h + piece.index * tile_rows;
    return {w_.w2 + row * (i / 2), w_.w2_sf + row * (i / 16), i};
  }

  // All dots of a group's rows with a tile; row_of gives the expanded row of an entry.
  template <typename RowOf, typename Finish>
  void dots(const Group& group, int pass, const Nvfp4Tile& tile, const Nvfp4Tile& ahead, RowOf row_of,
            Finish finish) const {
    for_each_row_of<X>(
        group, pass, row_of,
        [&](const X* const* in, int count, bool last, float* out) {
          if constexpr (quantised)
            kernels_->dots_nvfp4(tile, last ? ahead : tile, in, count, out);
          else
            kernels_->dots_wide(tile, last ? ahead : tile, in, count, out);
        },
        finish);
  }

  // GEMM1: a 128-row tile of w13 is 64 intermediate values, half a chunk of GEMM2's input.
  void first(const Step<Space<X>>& step, const Group& group, std::int64_t index, const Nvfp4Tile& tile,
             const Nvfp4Tile& ahead) const {
    const auto [n, hidden, inter] = w_.shape;
    const std::int64_t in_chunks = chunks_of(hidden);
    const std::int64_t out_chunks = chunks_of(inter);
    const bool alone = index % 2 == 0 && 64 * (index + 1) == inter;
    const internal::ExpertScalars& scalars = w_.scalars[static_cast<std::size_t>(group.expert)];
    dots(
        group, step.pass, tile, ahead,
        [&](std::int32_t i) { return step.space.input.data() + step.entry(i).token * in_chunks; },
        [&](std::int32_t i, const float* mine) {
          X& out = step.space.intermediate[static_cast<std::size_t>(i * out_chunks + index / 2)];
          if (alone) out = X{};  // the last chunk's other half stays zero
          activate(mine, scalars, static_cast<int>(index % 2), out);
        });
  }

  void activate(const float* mine, const internal::ExpertScalars& scalars, int half, X& out) const {
    if constexpr (quantised) {
      kernels_->requantise(mine, scalars, half, out);
    } else {
      alignas(64) std::array<float, 64> h;
      kernels_->activate(mine, scalars, h.data());
      for (std::size_t b = 0; b < 4; ++b)
        put_block(h.data() + 16 * b, h.data() + 16 * b + 8,
                  kernels_->order[4 * static_cast<std::size_t>(half) + b], out);
    }
  }

  void second(const Step<Space<X>>& step, const Group& group, std::int64_t index, const Nvfp4Tile& tile,
              const Nvfp4Tile& ahead, const RowBuffer& rows) const {
    const auto [n, hidden, inter] = w_.shape;
    const std::int64_t in_chunks = chunks_of(inter);
    const float scale = w_.scalars[static_cast<std::size_t>(group.expert)].scale_down;
    dots(
        group, step.pass, tile, ahead,
        [&](std::int32_t i) { return step.space.intermediate.data() + i * in_chunks; },
        [&](std::int32_t i, const float* mine) {
          const std::int64_t at = step.entry(i).row * w_.shape.hidden;
          if (const auto* sums = std::get_if<std::span<float>>(&rows))
            write_sums(mine, index, sums->data() + at);
          else
            kernels_->write_row(mine, scale,
                                std::get<std::span<std::uint16_t>>(rows).data() + at + index * tile_rows);
        });
  }

  internal::Nvfp4Weights w_;
  const Kernels& vector_kernels_;
  const Kernels* kernels_ = nullptr;
};

}  // namespace

std::size_t nvfp4_workspace(Input input, const layout::ExpertsShape& shape,
                            const routing::MetadataShape& step) {
  return input == Input::nvfp4 ? space_bytes<Space<Chunk>>(step, shape)
                               : space_bytes<Space<WideChunk>>(step, shape);
}

std::unique_ptr<RoutedExperts> bind_nvfp4(const Nvfp4Args& args, const Kernels& kernels) {
  if (args.input == Input::nvfp4) return std::make_unique<Nvfp4Body<Chunk>>(args, kernels);
  return std::make_unique<Nvfp4Body<WideChunk>>(args, kernels);
}

}  // namespace kerf::op::cpu
