// Experts with 16-bit rows, bound: the host's side of half_kernel.cuh.
//
// Configs: 0, units of 128 weight rows; 1, of 64 with K split in two (half_work.h): more units, for experts
// so narrow and tokens so few that there are too few of 128 rows. Both take every shape. -1 is 0.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "kerf/cuda/check.h"
#include "kerf/op/device_sizes.h"
#include "kerf/op/sm90/bind.h"
#include "kerf/op/sm90/half_kernel.cuh"
#include "kerf/op/sm90/tactics.h"
#include "kerf/op/sm90/tensor_map.h"

namespace kerf::op::sm90 {

static_assert(std::size(splits) == configs);

// An instance of the kernel, for a tile and a config.
struct HalfKernel {
  void (*launch)(const CUtensorMap, const CUtensorMap, const HalfStep);
  int shared_bytes;
  int blocks;  // a multiprocessor
};
template <typename Chunk>
inline constexpr auto half_kernels = []<std::size_t... i>(std::index_sequence<i...>) {
  return std::array{HalfKernel{half_experts<Chunk, tiles[i / configs], splits[i % configs]>,
                               HalfShared<Chunk, tiles[i / configs], splits[i % configs]>::bytes,
                               Chunk::resident(tiles[i / configs], splits[i % configs])}...};
}(std::make_index_sequence<tiles.size() * configs>());

struct HalfMaps {
  CUtensorMap w13, w2;
};

// Weights: Nvfp4Weights or Bf16Weights.
template <typename Chunk, typename Weights>
class HalfExperts final : public DeviceExperts {
 public:
  // maps: of the weights, for each config. args: Nvfp4Args or Bf16Args. what: as errors have it.
  template <typename Args>
  HalfExperts(const Args& args, const std::array<HalfMaps, configs>& maps, const std::uint8_t* w13_sf,
              const std::uint8_t* w2_sf, const Ahead& ahead, const Weights& weights, std::string_view what)
      : DeviceExperts(layout::shape_of(args.experts), args.experts.first_expert, args.num_experts, args.top_k,
                      Input::bf16),
        maps_(maps),
        w13_sf_(w13_sf),
        w2_sf_(w2_sf),
        ahead_(ahead),
        weights_(weights),
        scalars_(weights.scalars),
        what_(what),
        multiprocessors_(cuda::facts().multiprocessors) {
    for (const HalfKernel& kernel : half_kernels<Chunk>)
      cuda::check(cudaFuncSetAttribute(kernel.launch, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       kernel.shared_bytes),
                  "shared memory of the experts' kernel");
  }

  // A tile that holds half as many rows again as an expert has on average: one with more takes a second tile,
  // for which its weights are read again. K is split where GEMM1 has no more units of 128 rows than there are
  // multiprocessors.
  [[nodiscard]] Tactic default_tactic(std::int64_t tokens) const override {
    const std::int64_t units = tokens * top_k() * (2 * shape().intermediate / rows_of_unit(1));
    const int config = units <= multiprocessors_ ? 1 : 0;
    for (const int tile : tiles)
      if (2 * tile * num_experts() >= 3 * tokens * top_k()) return {tile, config};
    return {tiles.back(), config};
  }

  [[nodiscard]] std::size_t scratch_bytes(const routing::MetadataShape& step,
                                          Tactic /*tactic*/) const override {
    return static_cast<std::size_t>(device_scratch_bytes(Arithmetic::bf16, shape(), step));
  }
  [[nodiscard]] std::size_t counter_words(const routing::MetadataShape& step) const override {
    return static_cast<std::size_t>(device_counter_words(Arithmetic::bf16, step));
  }

  [[nodiscard]] Ahead ahead(const DeviceTokens& tokens) const override {
    Ahead ahead = ahead_;
    if (tokens.count * top_k() > most_ahead_routes) return ahead;
    ahead.ids = tokens.known_ids;
    ahead.routes = static_cast<std::int32_t>(tokens.count * top_k());
    return ahead;
  }

  void run(const DeviceTokens& tokens, const routing::MetadataShape& step, const routing::Metadata& metadata,
           Tactic tactic, const DeviceScratch& scratch, const DeviceRows& rows,
           cuda::StreamHandle stream) const override {
    if (rows.rows == nullptr) (void)internal::finished_rows(std::span<float>(), what_);
    const auto tile = std::ranges::find(tiles, static_cast<int>(step.tile));
    if (tile == tiles.end() || tactic.config >= configs)
      require(prepare({static_cast<int>(step.tile), tactic.config}));
    if (tokens.count == 0) return;
    const auto config = static_cast<std::size_t>(std::max(tactic.config, 0));
    const HalfKernel& kernel =
        half_kernels<Chunk>[static_cast<std::size_t>(tile - tiles.begin()) * configs + config];
    auto* gathered = reinterpret_cast<std::uint16_t*>(scratch.bytes.data());
    const HalfStep given{.x = tokens.x,
                         .permuted_to_token = metadata.permuted_to_token.data(),
                         .tile_to_expert = metadata.tile_to_expert.data(),
                         .tile_to_limit = metadata.tile_to_limit.data(),
                         .live_tiles = metadata.live_tiles.data(),
                         .scalars = scalars_.get(),
                         .w13_sf = w13_sf_,
                         .w2_sf = w2_sf_,
                         .gathered = gathered,
                         .h = gathered + gathered_values(step),
                         .rows = rows.rows,
                         .counters = scratch.counters.data(),
                         .hidden = static_cast<int>(shape().hidden),
                         .intermediate = static_cast<int>(shape().intermediate),
                         .most_tiles = static_cast<int>(step.max_tiles()),
                         // With more rows a tile, putting them in order for each unit anew costs more than
                         // waiting until all are.
                         .direct = tokens.count * top_k() <= num_experts()};
    cuda::launch(kernel.launch,
                 {dim3(static_cast<unsigned>(kernel.blocks * multiprocessors_)), dim3(half_threads),
                  static_cast<std::size_t>(kernel.shared_bytes)},
                 stream, what_, maps_[config].w13, maps_[config].w2, given);
  }

  void reread(const GatedParameters& gated) override {
    weights_.reread(gated);
    scalars_.put(weights_.scalars);
  }

 private:
  [[nodiscard]] std::int64_t gathered_values(const routing::MetadataShape& step) const {
    return step.max_padded() * shape().hidden;
  }

  std::array<HalfMaps, configs> maps_;
  const std::uint8_t* w13_sf_;
  const std::uint8_t* w2_sf_;
  Ahead ahead_;  // without ids
  Weights weights_;
  DeviceValues<internal::ExpertScalars> scalars_;  // [n]
  std::string_view what_;
  int multiprocessors_;
};

}  // namespace kerf::op::sm90
