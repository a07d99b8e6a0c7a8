// The kernel in front of a step's experts. The first blocks of the grid, a cluster, choose; they leave their
// ids in the first one's shared memory, which writes the metadata of all routes. All other blocks quantise
// rows.
#include <cooperative_groups.h>

#include <algorithm>

#include "kerf/cuda/launch.cuh"
#include "kerf/op/sm90/ahead.cuh"
#include "kerf/op/sm90/quantise.cuh"
#include "kerf/op/sm90/route_choose.cuh"
#include "kerf/op/sm90/route_launch.h"
#include "kerf/op/sm90/route_metadata.cuh"

namespace kerf::op::sm90 {
namespace {

namespace cg = cooperative_groups;

struct RouteStep {
  Choose choose;
  bool given = false;  // the routes are
  const std::int32_t* given_ids = nullptr;
  const float* given_weights = nullptr;
  std::int32_t* ids = nullptr;      // [T, K] or null
  float* weights = nullptr;         // [T, K] or null
  float* expert_weights = nullptr;  // [T, K], the metadata's
  MetadataOut metadata;
  Quantise rows;
  std::uint32_t* counters = nullptr;
  std::uint32_t counter_words = 0;
  Ahead ahead;
  std::uint32_t ahead_blocks = 0;  // the grid's last ones

  __device__ void store(int route, std::int32_t id, float weight) const {
    if (ids != nullptr) ids[route] = id;
    if (weights != nullptr) weights[route] = weight;
    expert_weights[route] = weight;
  }
};

// Share `part` of `parts` of the counters.
__device__ void zero_counters(const RouteStep& s, std::uint32_t part, std::uint32_t parts) {
  for (std::uint32_t i = part; i < s.counter_words; i += parts) s.counters[i] = 0;
}
// By the blocks from `first` on.
__device__ void quantise_rows(const RouteStep& s, std::uint32_t first) {
  quantise(s.rows, (blockIdx.x - first) * blockDim.x + threadIdx.x,
           (gridDim.x - s.ahead_blocks - first) * blockDim.x);
}

// Up to most_fused_tokens. Dynamic shared memory: ids and weights [T*K], then the metadata's table.
__global__ __launch_bounds__(1024) void route_fused(const __grid_constant__ RouteStep s) {
  extern __shared__ std::int32_t dynamic[];
  __shared__ union {
    ChooseShared choose;
    MetadataShared metadata;
  } shared;
  cuda::let_next_begin();
  // These read nothing that a kernel before writes, and write nothing.
  if (const unsigned others = gridDim.x - s.ahead_blocks; blockIdx.x >= others) {
    if (threadIdx.x < 32) fetch_ahead(s.ahead, blockIdx.x - others, s.ahead_blocks);
    return;
  }
  cuda::wait_for_previous();
  const cg::cluster_group cluster = cg::this_cluster();
  const unsigned blocks = cluster.num_blocks();
  if (blockIdx.x >= blocks) {
    quantise_rows(s, blocks);
    return;
  }

  const MetadataOut& m = s.metadata;
  std::int32_t* const ids = dynamic;
  auto* const weights = reinterpret_cast<float*>(ids + m.routes);
  auto* const table = reinterpret_cast<std::uint16_t*>(weights + m.routes);
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  // The first block must have begun before others write into it, and live until they have.
  const bool alone = s.given || blocks == 1;
  if (!alone) cluster.barrier_arrive();
  if (blockIdx.x == 0)
    for (int i = thread; i < (m.routes + 31) / 32 * m.local; i += threads) table[i] = 0;
  if (s.given) {
    for (int route = thread; route < m.routes; route += threads) {
      ids[route] = s.given_ids[route];
      weights[route] = s.given_weights[route];
    }
  } else {
    std::int32_t* const all_ids = cluster.map_shared_rank(ids, 0);
    float* const all_weights = cluster.map_shared_rank(weights, 0);
    choose_tokens(
        s.choose, static_cast<int>(blockIdx.x), static_cast<int>(blocks), shared.choose,
        [&] {
          if (!alone) cluster.barrier_wait();
        },
        [&](int route, std::int32_t id, float weight) {
          all_ids[route] = id;
          all_weights[route] = weight;
        });
  }
  // Before any write to device memory, which this would wait for.
  if (alone)
    __syncthreads();
  else
    cluster.sync();
  zero_counters(s, blockIdx.x * blockDim.x + threadIdx.x, blocks * blockDim.x);
  if (blockIdx.x != 0) return;
  for (int route = thread; route < m.routes; route += threads) s.store(route, ids[route], weights[route]);
  __syncthreads();
  write_metadata(m, ids, table, shared.metadata);
}

// More tokens, in three launches: the first chooses (or copies) and quantises.
__global__ __launch_bounds__(1024) void route_choose(const __grid_constant__ RouteStep s,
                                                     std::uint32_t choosing_blocks) {
  __shared__ ChooseShared shared;
  cuda::begin_overlapped();
  if (blockIdx.x >= choosing_blocks) {
    quantise_rows(s, choosing_blocks);
    return;
  }
  zero_counters(s, blockIdx.x * blockDim.x + threadIdx.x, choosing_blocks * blockDim.x);
  const int block = static_cast<int>(blockIdx.x);
  const int blocks = static_cast<int>(choosing_blocks);
  if (s.given) {
    const int threads = static_cast<int>(blockDim.x);
    for (int route = block * threads + static_cast<int>(threadIdx.x); route < s.metadata.routes;
         route += blocks * threads)
      s.store(route, s.given_ids[route], s.given_weights[route]);
  } else {
    choose_tokens(
        s.choose, block, blocks, shared, [] {},
        [&](int route, std::int32_t id, float weight) { s.store(route, id, weight); });
  }
}
__global__ __launch_bounds__(256) void route_count(const __grid_constant__ MetadataOut m,
                                                   const std::int32_t* ids) {
  __shared__ int sum;
  cuda::begin_overlapped();
  count_routes(m, ids, static_cast<int>(blockIdx.x), sum);
}
__global__ __launch_bounds__(1024) void route_place(const __grid_constant__ MetadataOut m,
                                                    const std::int32_t* ids) {
  __shared__ MetadataShared shared;
  cuda::begin_overlapped();
  place_routes(m, ids, static_cast<int>(blockIdx.x), shared);
}

constexpr int divided_up(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

// As many as multiprocessors: each asks for its share of the weights.
constexpr std::uint32_t ahead_blocks = 132;

RouteStep step_of(const routing::MetadataShape& shape, const RouteInputs& in, const RouteOutputs& out) {
  RouteStep s;
  const int tokens = static_cast<int>(shape.tokens);
  const int experts = static_cast<int>(shape.experts);
  s.choose.warps = divided_up(experts, 32);
  if (in.router != nullptr) {
    const routing::Router& r = *in.router;
    s.choose.formulas = formulas_of(r, *routing::rules::traits_of(r.method));
    s.choose.logits = in.logits;
    s.choose.bias = in.bias;
    s.choose.tokens = tokens;
    s.choose.experts = experts;
    s.choose.top_k = static_cast<int>(r.top_k);
    s.choose.groups = static_cast<int>(r.n_group);
    s.choose.best_groups = static_cast<int>(r.topk_group);
    s.choose.bf16_weights = in.bf16_weights;
  }
  s.given = in.router == nullptr;
  s.ahead = in.ahead;
  if (s.given && in.ahead.ids != nullptr) s.ahead_blocks = ahead_blocks;
  s.given_ids = in.ids;
  s.given_weights = in.weights;
  s.ids = out.ids;
  s.weights = out.weights;
  const routing::Metadata& m = out.metadata;
  s.expert_weights = m.expert_weights.data();
  s.metadata = {.total_padded = m.total_padded.data(),
                .expanded_to_permuted = m.expanded_to_permuted.data(),
                .permuted_to_token = m.permuted_to_token.data(),
                .histogram = m.histogram.data(),
                .tokens_per_expert = m.tokens_per_expert.data(),
                .tile_to_expert = m.tile_to_expert.data(),
                .tile_to_limit = m.tile_to_limit.data(),
                .live_tiles = m.live_tiles.data(),
                .routes = static_cast<int>(shape.routes()),
                .top_k = static_cast<int>(shape.top_k),
                .experts = experts,
                .offset = static_cast<int>(shape.offset),
                .local = static_cast<int>(shape.local),
                .tile = static_cast<int>(shape.tile)};
  if (in.x != nullptr)
    s.rows = {.x = reinterpret_cast<const uint2*>(in.x),
              .gs = in.gs,
              .a = reinterpret_cast<std::uint16_t*>(out.a),
              .a_sf = out.a_sf,
              .quads = static_cast<std::uint32_t>(shape.tokens * in.hidden / 4)};
  s.counters = out.counters.data();
  s.counter_words = static_cast<std::uint32_t>(out.counters.size());
  return s;
}

// A block takes `slots` tokens at a time, with a thread an expert.
int threads_of(int warps, int slots) {
  return 32 * warps * std::clamp(slots, divided_up(8, warps), 32 / warps);
}
int quantising_blocks(const RouteStep& s, int threads) {
  constexpr int most = 1024;
  return std::min(divided_up(s.rows.quads, threads), most);
}

constexpr unsigned most_choosing_blocks = 16;
constexpr unsigned portable_cluster = 8;

void launch_fused(const RouteStep& s, int tokens, cuda::StreamHandle stream) {
  const int warps = s.choose.warps;
  // As many choosing blocks as have eight warps' work each, up to the largest cluster of a Hopper.
  unsigned blocks = 1;
  while (!s.given && blocks < most_choosing_blocks && static_cast<int>(blocks) < tokens &&
         static_cast<int>(8 * blocks) < tokens * warps)
    blocks *= 2;
  const int threads = threads_of(warps, divided_up(tokens, blocks));
  const auto quantising = static_cast<unsigned>(quantising_blocks(s, threads));
  const unsigned grid = (1 + (quantising + blocks - 1) / blocks) * blocks + s.ahead_blocks;
  const std::size_t table = sizeof(std::uint16_t) * divided_up(s.metadata.routes, 32) * s.metadata.local;

  const std::size_t shared = (sizeof(std::int32_t) + sizeof(float)) * s.metadata.routes + table;
  constexpr std::size_t always_allowed = std::size_t{48} << 10;
  if (shared + sizeof(ChooseShared) > always_allowed)
    cuda::check(cudaFuncSetAttribute(route_fused, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(shared)),
                "shared memory of the routing kernel");
  if (blocks > portable_cluster)
    cuda::check(cudaFuncSetAttribute(route_fused, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                "a cluster of 16 for the routing kernel");
  cuda::launch(route_fused, {dim3(grid), dim3(static_cast<unsigned>(threads)), shared, blocks}, stream,
               "launching the routing kernel", s);
}

void launch_in_pieces(const RouteStep& s, int tokens, cuda::StreamHandle stream) {
  const int warps = s.choose.warps;
  const int threads = threads_of(warps, divided_up(8, warps));
  const int slots = threads / 32 / warps;
  const auto choosing = static_cast<unsigned>(divided_up(tokens, slots));
  const unsigned grid = choosing + static_cast<unsigned>(quantising_blocks(s, threads));
  cuda::launch(route_choose, {dim3(grid), dim3(static_cast<unsigned>(threads))}, stream,
               "launching the choice of experts", s, choosing);
  const std::int32_t* const ids = s.given ? s.given_ids : s.ids;
  cuda::launch(route_count, {dim3(static_cast<unsigned>(s.metadata.experts)), dim3(256)}, stream,
               "launching the count of routes", s.metadata, ids);
  cuda::launch(route_place,
               {dim3(static_cast<unsigned>(std::max(s.metadata.local, 1))), dim3(most_route_experts)}, stream,
               "launching the placing of routes", s.metadata, ids);
}

}  // namespace

void launch_route(const routing::MetadataShape& shape, const RouteInputs& in, const RouteOutputs& out,
                  cuda::StreamHandle stream) {
  RouteStep s = step_of(shape, in, out);
  const int tokens = static_cast<int>(shape.tokens);
  if (shape.tokens <= most_fused_tokens) {
    launch_fused(s, tokens, stream);
  } else {
    s.ahead_blocks = 0;
    launch_in_pieces(s, tokens, stream);
  }
}

}  // namespace kerf::op::sm90
