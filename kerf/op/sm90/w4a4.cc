// W4A4 experts: the host's side of the kernel. Config 0 takes an expert's tokens two at a time, config 1 four
// at a time: more arithmetic for each weight, fewer passes over it.
#include <algorithm>

#include "kerf/base/format.h"
#include "kerf/op/device_sizes.h"
#include "kerf/op/sm90/bind.h"
#include "kerf/op/sm90/tactics.h"
#include "kerf/op/sm90/tensor_map.h"
#include "kerf/op/sm90/w4a4_launch.h"

namespace kerf::op::sm90 {

namespace {

using w4a4::Gemm;
using w4a4::Params;

constexpr int pairs_of(int config) { return config == 1 ? 2 : 1; }

class W4a4Experts final : public DeviceExperts {
 public:
  explicit W4a4Experts(const Nvfp4Args& args)
      : DeviceExperts(layout::shape_of(args.experts), args.experts.first_expert, args.num_experts, args.top_k,
                      args.input),
        w_(args),
        scalars_(w_.scalars),
        zeros_(std::vector<std::uint8_t>(w4a4::half_scale_bytes)),
        multiprocessors_(cuda::facts().multiprocessors) {
    const auto [n, hidden, inter] = w_.shape;
    for (const w4a4::Cut cut : {w4a4::Cut::shared, w4a4::Cut::alone, w4a4::Cut::spread}) {
      base_.gemm[w4a4::kind_of(cut, 0)] = w4a4::gemm_of(hidden, 2 * inter, cut);
      base_.gemm[w4a4::kind_of(cut, 1)] = w4a4::gemm_of(inter, hidden, cut);
    }
    base_.codes[0] = byte_map(w_.w13, n * 2 * inter, hidden / 2, w4a4::unit_rows, w4a4::chunk_values / 2);
    base_.codes[1] = byte_map(w_.w2, n * hidden, inter / 2, w4a4::unit_rows, w4a4::chunk_values / 2);
    base_.scales[0] = w_.w13_sf;
    base_.scales[1] = w_.w2_sf;
    base_.scalars = scalars_.get();
    base_.zeros = zeros_.get();
    for (int config = 0; config < configs; ++config)
      if (plan_of(config).stages < 2)
        fail(ErrorKind::unsupported, "W4A4 experts of {} x {} are too wide for the cuda op's shared memory",
             hidden, inter);
    w4a4::prepare();
  }

  // Tiles make no difference. Passes of four tokens pay from where some experts have more than two, sooner
  // where experts are wide; one and two tokens have a kernel of their own, of passes of two.
  [[nodiscard]] Tactic default_tactic(std::int64_t tokens) const override {
    const std::int64_t experts_a_route = shape().intermediate > 2048 ? 4 : 2;
    const bool four = tokens > w4a4::most_ended_tokens && experts_a_route * tokens * top_k() >= num_experts();
    return {tiles.front(), four ? 1 : 0};
  }

  [[nodiscard]] std::size_t scratch_bytes(const routing::MetadataShape& /*shape*/,
                                          Tactic /*tactic*/) const override {
    return 0;  // as device_scratch_bytes() says
  }
  [[nodiscard]] std::size_t counter_words(const routing::MetadataShape& /*shape*/) const override {
    return 0;
  }

  [[nodiscard]] bool ends_tokens(const routing::MetadataShape& shape, Tactic tactic) const override {
    return shape.max_tiles() > 0 && config_of(shape, tactic) == 0 &&
           w4a4::can_end(shape.tokens, shape.top_k, shape.tile);
  }

  // As device_kept_bytes() says.
  [[nodiscard]] std::size_t kept_bytes(const routing::MetadataShape& shape) const override {
    return static_cast<std::size_t>(device_kept_bytes(Arithmetic::w4a4, w_.shape, shape));
  }

  void run(const DeviceTokens& tokens, const routing::MetadataShape& shape, const routing::Metadata& metadata,
           Tactic tactic, const DeviceScratch& scratch, const DeviceRows& rows,
           cuda::StreamHandle stream) const override {
    if (shape.max_tiles() == 0) return;
    const int config = config_of(shape, tactic);
    Params p = base_;
    p.plan = plan_of(config);
    p.kept = reinterpret_cast<w4a4::Kept*>(scratch.kept.data());
    p.halves = reinterpret_cast<uint4*>(p.kept + 1);
    p.h = p.halves + 2 * w4a4::most_halves * w4a4::warpgroup_threads;
    p.a = tokens.a;
    p.a_sf = tokens.a_sf;
    p.rows = rows.rows;
    p.sums = rows.sums;
    p.ended = {.y = rows.tokens,
               .map = metadata.expanded_to_permuted.data(),
               .weights = metadata.expert_weights.data(),
               .blocks = p.h + shape.max_padded() * (w_.shape.intermediate / 16),
               .tokens = static_cast<std::int32_t>(shape.tokens),
               .top_k = static_cast<std::int32_t>(shape.top_k)};
    p.live_tiles = metadata.live_tiles.data();
    p.tile_to_expert = metadata.tile_to_expert.data();
    p.tile_to_limit = metadata.tile_to_limit.data();
    p.permuted_to_token = metadata.permuted_to_token.data();
    p.tile = static_cast<std::int32_t>(shape.tile);
    p.tiles = static_cast<std::int32_t>(shape.max_tiles());
    const w4a4::Variant variant = config == 1                               ? w4a4::Variant::pairs_of_two
                                  : shape.tokens <= w4a4::most_ended_tokens ? w4a4::Variant::few_tokens
                                                                            : w4a4::Variant::pairs_of_one;
    w4a4::launch(p, variant, blocks_of(shape, variant), stream);
  }

  void reread(const GatedParameters& gated) override {
    w_.reread(gated);
    scalars_.put(w_.scalars);
  }

 private:
  [[nodiscard]] int config_of(const routing::MetadataShape& shape, Tactic tactic) const {
    return tactic.config < 0 ? default_tactic(shape.tokens).config : tactic.config;
  }
  // No more than there can be items; of work that is spread no more than have a part of GEMM1, so that none
  // has two of GEMM2.
  [[nodiscard]] int blocks_of(const routing::MetadataShape& shape, w4a4::Variant variant) const {
    const auto tiles = static_cast<int>(shape.max_tiles());
    const auto items = [&](w4a4::Cut cut, int stage) {
      const Gemm& g = base_.gemm[w4a4::kind_of(cut, stage)];
      return std::int64_t{tiles} * g.groups * g.sides;
    };
    if (variant == w4a4::Variant::few_tokens &&
        w4a4::spreads(base_.gemm, tiles, multiprocessors_, static_cast<int>(shape.tile)))
      return static_cast<int>(items(w4a4::Cut::spread, 0));
    return static_cast<int>(
        std::min<std::int64_t>(multiprocessors_, items(w4a4::Cut::shared, 0) + items(w4a4::Cut::shared, 1)));
  }
  [[nodiscard]] w4a4::SharedPlan plan_of(int config) const {
    int levels = 0;
    for (const Gemm& g : base_.gemm) levels = std::max(levels, w4a4::stack_levels(g));
    return pairs_of(config) == 1 ? w4a4::shared_plan<1>(levels) : w4a4::shared_plan<2>(levels);
  }

  internal::Nvfp4Weights w_;
  DeviceValues<internal::ExpertScalars> scalars_;
  DeviceValues<std::uint8_t> zeros_;
  int multiprocessors_;
  Params base_{};  // what no run changes
};

}  // namespace

std::unique_ptr<DeviceExperts> bind_w4a4(const Nvfp4Args& args) {
  return std::make_unique<W4a4Experts>(args);
}

}  // namespace kerf::op::sm90
