// W4A4: quantised rows in, canonical arithmetic throughout.
#include <array>

#include "kerf/numeric/e4m3_scan.h"
#include "kerf/op/cpu/bodies.h"
#include "kerf/op/cpu/body.h"

namespace kerf::op::cpu {

namespace {

struct Space {
  std::span<Chunk> input;         // [T, chunks(H)]
  std::span<Chunk> intermediate;  // [routes, chunks(I)]

  void carve(Carver& carver, const routing::MetadataShape& s, const layout::ExpertsShape& e) {
    input = carver.take<Chunk>(s.tokens * chunks_of(e.hidden));
    intermediate = carver.take<Chunk>(s.routes() * chunks_of(e.intermediate));
  }
};

class Nvfp4Body final : public internal::Bound {
 public:
  Nvfp4Body(const Nvfp4Args& args, const Kernels& kernels)
      : Bound(layout::shape_of(args.experts), args.experts.first_expert, args.num_experts, args.top_k,
              Input::nvfp4),
        w_(args) {
    // Layers with scales that the vector kernels do not take run on the scalar table: slower, and the same
    // bits as the reference's. Checkpoints that kerf loads have none.
    const auto [n, h, i] = w_.shape;
    const bool regular =
        numeric::regular_scales({w_.w13_sf, static_cast<std::size_t>(n * 2 * i * (h / 16))}) &&
        numeric::regular_scales({w_.w2_sf, static_cast<std::size_t>(n * h * (i / 16))});
    kernels_ = regular ? &kernels : &scalar_kernels();
  }

  [[nodiscard]] std::vector<Tactic> tactics(std::int64_t tokens) const override {
    return tactics_of_use(tokens);
  }
  [[nodiscard]] Verdict prepare(Tactic tactic) const override { return no_body(tactic); }
  [[nodiscard]] std::size_t workspace_bytes(const routing::MetadataShape& s, Tactic) const override {
    return quantised_workspace(shape(), s);
  }

  void body(const Tokens& tokens, const routing::MetadataShape& s, const routing::Metadata& metadata,
            Tactic tactic, const Workers& workers, std::span<std::byte> workspace,
            const RowBuffer& rows) const override {
    const Step<Space> step(*this, tokens, s, metadata, tactic, workspace, internal::elements(rows));
    if (step.groups.empty()) return;
    const auto [n, hidden, inter] = w_.shape;
    const std::int64_t in_chunks = chunks_of(hidden);
    const std::int64_t mid_chunks = chunks_of(inter);
    workers.for_each(static_cast<std::size_t>(tokens.count), [&](std::size_t t, int) {
      const auto at = static_cast<std::int64_t>(t);
      expand(tokens.a.data() + at * hidden / 2, tokens.a_sf.data() + at * hidden / 16, hidden,
             kernels_->order, step.space.input.data() + at * in_chunks);
    });

    // GEMM1: a 128-row tile of w13 is 64 intermediate values, half a chunk of GEMM2's input.
    for_each_tile(workers, step.groups, inter / 64, [&](const Group& group, std::int64_t tile) {
      const Nvfp4Tile weights = w13_tile(group.expert, tile);
      const internal::ExpertScalars& scalars = w_.scalars[static_cast<std::size_t>(group.expert)];
      for_each_pass(group, step.pass, [&](std::int32_t first, int count) {
        std::array<const Chunk*, most_rows_a_pass> in{};
        for (int t = 0; t < count; ++t)
          in[static_cast<std::size_t>(t)] = step.space.input.data() + step.entry(first + t).token * in_chunks;
        alignas(64) std::array<float, most_rows_a_pass * tile_rows> dots;
        kernels_->dots_nvfp4(weights, in.data(), count, dots.data());
        for (int t = 0; t < count; ++t) {
          Chunk& out = step.space.intermediate[static_cast<std::size_t>((first + t) * mid_chunks + tile / 2)];
          if (tile % 2 == 0 && 64 * (tile + 1) == inter)
            out = Chunk{};  // the last chunk's other half stays zero
          kernels_->requantise(dots.data() + t * tile_rows, scalars, static_cast<int>(tile % 2), out);
        }
      });
    });

    for_each_tile(workers, step.groups, hidden / tile_rows, [&](const Group& group, std::int64_t tile) {
      const Nvfp4Tile weights = w2_tile(group.expert, tile);
      const float scale = w_.scalars[static_cast<std::size_t>(group.expert)].scale_down;
      for_each_pass(group, step.pass, [&](std::int32_t first, int count) {
        std::array<const Chunk*, most_rows_a_pass> in{};
        for (int t = 0; t < count; ++t)
          in[static_cast<std::size_t>(t)] = step.space.intermediate.data() + (first + t) * mid_chunks;
        alignas(64) std::array<float, most_rows_a_pass * tile_rows> dots;
        kernels_->dots_nvfp4(weights, in.data(), count, dots.data());
        for (int t = 0; t < count; ++t) {
          const float* mine = dots.data() + t * tile_rows;
          const std::int64_t at = step.entry(first + t).row * hidden;
          if (const auto* sums = std::get_if<std::span<float>>(&rows))
            write_sums(mine, tile, sums->data() + at);
          else
            write_row(mine, scale, tile, std::get<std::span<std::uint16_t>>(rows).data() + at);
        }
      });
    });
  }

 private:
  [[nodiscard]] Nvfp4Tile w13_tile(std::int64_t e, std::int64_t tile) const {
    const auto [n, h, i] = w_.shape;
    const std::int64_t row = e * 2 * i + tile * tile_rows;
    return {w_.w13 + row * (h / 2), w_.w13_sf + row * (h / 16), h};
  }
  [[nodiscard]] Nvfp4Tile w2_tile(std::int64_t e, std::int64_t tile) const {
    const auto [n, h, i] = w_.shape;
    const std::int64_t row = e * h + tile * tile_rows;
    return {w_.w2 + row * (i / 2), w_.w2_sf + row * (i / 16), i};
  }

  internal::Nvfp4Weights w_;
  const Kernels* kernels_ = nullptr;
};

}  // namespace

std::size_t quantised_workspace(const layout::ExpertsShape& shape, const routing::MetadataShape& step) {
  return space_bytes<Space>(step, shape);
}

std::unique_ptr<RoutedExperts> bind_nvfp4(const Nvfp4Args& args, const Kernels& kernels) {
  return std::make_unique<Nvfp4Body>(args, kernels);
}

}  // namespace kerf::op::cpu
