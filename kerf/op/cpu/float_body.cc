// bf16 rows in: NVFP4 weights (W4A16) and BF16 weights. What GEMM2 reads is the
// activation's result, rounded to bf16 one time.
#include <array>
#include <string_view>

#include "kerf/numeric/bf16.h"
#include "kerf/op/cpu/bodies.h"
#include "kerf/op/cpu/body.h"

namespace kerf::op::cpu {

namespace {

struct Space {
  std::span<float> input;         // [T, H]
  std::span<float> intermediate;  // [routes, I]

  void carve(Carver& carver, const routing::MetadataShape& s, const layout::ExpertsShape& e) {
    input = carver.take<float>(s.tokens * e.hidden);
    intermediate = carver.take<float>(s.routes() * e.intermediate);
  }
};

// The GEMMs over f32 rows. Weights says how a tile is reached, how its dots are taken, and how rows are
// ordered in memory.
template <typename Weights>
class FloatBody final : public internal::Bound {
 public:
  template <typename Args>
  FloatBody(const Args& args, const Kernels& kernels)
      : Bound(layout::shape_of(args.experts), args.experts.first_expert, args.num_experts, args.top_k,
              Input::bf16),
        w_(args, kernels) {}

  [[nodiscard]] std::vector<Tactic> tactics(std::int64_t tokens) const override {
    return tactics_of_use(tokens);
  }
  [[nodiscard]] Verdict prepare(Tactic tactic) const override { return no_body(tactic); }
  [[nodiscard]] std::size_t workspace_bytes(const routing::MetadataShape& s, Tactic) const override {
    return float_workspace(shape(), s);
  }

  void body(const Tokens& tokens, const routing::MetadataShape& s, const routing::Metadata& metadata,
            Tactic tactic, const Workers& workers, std::span<std::byte> workspace,
            const RowBuffer& out_rows) const override {
    const std::span<std::uint16_t> rows = internal::finished_rows(out_rows, Weights::name);
    const Step<Space> step(*this, tokens, s, metadata, tactic, workspace, rows.size());
    if (step.groups.empty()) return;
    const auto [n, hidden, inter] = shape();

    workers.for_each(static_cast<std::size_t>(tokens.count), [&](std::size_t t, int) {
      const std::uint16_t* x = tokens.x.data() + static_cast<std::int64_t>(t) * hidden;
      float* out = step.space.input.data() + static_cast<std::int64_t>(t) * hidden;
      for (std::int64_t k = 0; k < hidden; ++k) out[Weights::place(k)] = numeric::bf16_to_f32(x[k]);
    });

    const auto each_pass = [&](const Group& group, auto row_of, auto dots_of, auto finish) {
      for_each_pass(group, step.pass, [&](std::int32_t first, int count) {
        std::array<const float*, most_rows_a_pass> in{};
        for (int t = 0; t < count; ++t) in[static_cast<std::size_t>(t)] = row_of(first + t);
        alignas(64) std::array<float, most_rows_a_pass * tile_rows> dots;
        dots_of(in.data(), count, dots.data());
        for (int t = 0; t < count; ++t) finish(first + t, dots.data() + t * tile_rows);
      });
    };

    for_each_tile(workers, step.groups, inter / 64, [&](const Group& group, std::int64_t tile) {
      each_pass(
          group, [&](std::int32_t i) { return step.space.input.data() + step.entry(i).token * hidden; },
          [&](const float* const* in, int count, float* dots) {
            w_.first(group.expert, tile, in, count, dots);
          },
          [&](std::int32_t i, const float* dots) {
            w_.activate(group.expert, dots, step.space.intermediate.data() + i * inter + 64 * tile);
          });
    });

    for_each_tile(workers, step.groups, hidden / tile_rows, [&](const Group& group, std::int64_t tile) {
      each_pass(
          group, [&](std::int32_t i) { return step.space.intermediate.data() + i * inter; },
          [&](const float* const* in, int count, float* dots) {
            w_.second(group.expert, tile, in, count, dots);
          },
          [&](std::int32_t i, const float* dots) {
            write_row(dots, w_.scale_down(group.expert), tile, rows.data() + step.entry(i).row * hidden);
          });
    });
  }

 private:
  Weights w_;
};

class W4a16Weights {
 public:
  static constexpr std::string_view name = "NVFP4 experts with bf16 rows (W4A16)";
  W4a16Weights(const Nvfp4Args& args, const Kernels& kernels) : w_(args), kernels_(kernels) {}

  // Every 16 values are kept as 8 even, then 8 odd ones, as the codes' nibbles come apart.
  static std::int64_t place(std::int64_t k) { return 16 * (k / 16) + 8 * (k % 2) + (k % 16) / 2; }

  void first(std::int64_t e, std::int64_t tile, const float* const* in, int count, float* dots) const {
    const auto [n, h, i] = w_.shape;
    const std::int64_t row = e * 2 * i + tile * tile_rows;
    kernels_.dots_w4a16({w_.w13 + row * (h / 2), w_.w13_sf + row * (h / 16), h}, in, count, dots);
  }
  void second(std::int64_t e, std::int64_t tile, const float* const* in, int count, float* dots) const {
    const auto [n, h, i] = w_.shape;
    const std::int64_t row = e * h + tile * tile_rows;
    kernels_.dots_w4a16({w_.w2 + row * (i / 2), w_.w2_sf + row * (i / 16), i}, in, count, dots);
  }
  void activate(std::int64_t e, const float* dots, float* h) const {
    kernels_.activate(dots, w_.scalars[static_cast<std::size_t>(e)], h);
  }
  [[nodiscard]] float scale_down(std::int64_t e) const {
    return w_.scalars[static_cast<std::size_t>(e)].scale_down;
  }

 private:
  internal::Nvfp4Weights w_;
  const Kernels& kernels_;
};

class Bf16TileWeights {
 public:
  static constexpr std::string_view name = "BF16 experts";
  Bf16TileWeights(const Bf16Args& args, const Kernels& kernels) : w_(args), kernels_(kernels) {}

  static std::int64_t place(std::int64_t k) { return k; }

  void first(std::int64_t e, std::int64_t tile, const float* const* in, int count, float* dots) const {
    const auto [n, h, i] = w_.shape;
    kernels_.dots_bf16({w_.w13 + e * 2 * i * h + tile * tile_rows * 64, 2 * i * 64, h}, in, count, dots);
  }
  void second(std::int64_t e, std::int64_t tile, const float* const* in, int count, float* dots) const {
    const auto [n, h, i] = w_.shape;
    kernels_.dots_bf16({w_.w2 + e * h * i + tile * tile_rows * 64, h * 64, i}, in, count, dots);
  }
  void activate(std::int64_t e, const float* dots, float* h) const {
    std::array<float, 64> apart;
    kernels_.activate(dots, w_.scalars[static_cast<std::size_t>(e)], apart.data());
    for (std::int64_t i = 0; i < 64; ++i) h[i] = apart[static_cast<std::size_t>(W4a16Weights::place(i))];
  }
  [[nodiscard]] float scale_down(std::int64_t) const { return 1.0F; }

 private:
  internal::Bf16Weights w_;
  const Kernels& kernels_;
};

}  // namespace

std::size_t float_workspace(const layout::ExpertsShape& shape, const routing::MetadataShape& step) {
  return space_bytes<Space>(step, shape);
}

std::unique_ptr<RoutedExperts> bind_w4a16(const Nvfp4Args& args, const Kernels& kernels) {
  return std::make_unique<FloatBody<W4a16Weights>>(args, kernels);
}

std::unique_ptr<RoutedExperts> bind_bf16(const Bf16Args& args, const Kernels& kernels) {
  return std::make_unique<FloatBody<Bf16TileWeights>>(args, kernels);
}

}  // namespace kerf::op::cpu
