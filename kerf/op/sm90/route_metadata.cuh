// routing::write_metadata() on the device: by one block from ids in shared memory, or, for many tokens, by
// many blocks in two launches.
#pragma once

#include <cstdint>

namespace kerf::op::sm90 {

struct MetadataOut {
  std::int32_t* total_padded;
  std::int32_t* expanded_to_permuted;
  std::int32_t* permuted_to_token;
  std::int32_t* histogram;
  std::int32_t* tokens_per_expert;
  std::int32_t* tile_to_expert;
  std::int32_t* tile_to_limit;
  std::int32_t* live_tiles;
  int routes, top_k, experts, offset, local, tile;

  // An id's place among the experts here, or something not below `local`.
  [[nodiscard]] __device__ unsigned index_of(std::int32_t id) const {
    return static_cast<unsigned>(id) - static_cast<unsigned>(offset);
  }
  [[nodiscard]] __device__ bool here(std::int32_t id) const {
    return index_of(id) < static_cast<unsigned>(local);
  }
};

// All threads of the block, one an expert: the expert's first tile, and the tiles of all experts.
struct Tiles {
  int first, all;
};
__device__ inline Tiles place_tiles(int tiles, int* warp_tiles /* [32], shared */) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int up_to = tiles;  // and with this one
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(0xFFFFFFFFU, up_to, step);
    if (lane >= step) up_to += below;
  }
  if (lane == 31) warp_tiles[warp] = up_to;
  __syncthreads();
  const int of_warp = lane < static_cast<int>(blockDim.x) / 32 ? warp_tiles[lane] : 0;
  const int before = __reduce_add_sync(0xFFFFFFFFU, lane < warp ? of_warp : 0);
  return {before + up_to - tiles, __reduce_add_sync(0xFFFFFFFFU, of_warp)};
}

// The tiles of local expert e, every `step`th from `from` on; it has `count` routes.
__device__ inline void write_tiles(const MetadataOut& m, int e, int count, int first_tile, int from,
                                   int step) {
  const int end = first_tile * m.tile + count;
  for (int t = first_tile + from; t * m.tile < end; t += step) {
    m.tile_to_expert[t] = e;
    m.tile_to_limit[t] = min((t + 1) * m.tile, end);
  }
}

__device__ inline void write_totals(const MetadataOut& m, int tiles) {
  *m.live_tiles = tiles;
  *m.total_padded = tiles * m.tile;
}

// One block. ids [routes] are overwritten. Routes come in chunks of 32; table [chunks, local] holds how many
// of an expert's routes are in a chunk, then how many are before it. It is zero at first.
struct MetadataShared {
  int first_row[1024];
  int warp_tiles[32];
  int warp_routes[32];
};
__device__ inline void write_metadata(const MetadataOut& m, std::int32_t* ids, std::uint16_t* table,
                                      MetadataShared& s) {
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int lane = thread % 32;
  const int chunks = (m.routes + 31) / 32;
  for (int chunk = thread / 32; chunk < chunks; chunk += threads / 32) {
    const int route = 32 * chunk + lane;
    const std::int32_t id = route < m.routes ? ids[route] : -1;
    const bool here = m.here(id);
    const int e = here ? static_cast<int>(m.index_of(id)) : -1;
    const unsigned same = __match_any_sync(0xFFFFFFFFU, e);
    const int before = __popc(same & ((1U << lane) - 1));
    if (here && before == 0) table[chunk * m.local + e] = static_cast<std::uint16_t>(__popc(same));
    if (route < m.routes) ids[route] = here ? 32 * e + before : -1;
  }
  __syncthreads();

  const int e = thread;  // there are at least as many threads as experts
  int count = 0;
  if (e < m.local) {
    constexpr int at_once = 8;  // loads before the first store
    for (int first = 0; first < chunks; first += at_once) {
      int here[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) here[i] = first + i < chunks ? table[(first + i) * m.local + e] : 0;
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        if (first + i < chunks) table[(first + i) * m.local + e] = static_cast<std::uint16_t>(count);
        count += here[i];
      }
    }
  }
  const Tiles tiles = place_tiles((count + m.tile - 1) / m.tile, s.warp_tiles);
  if (e < m.local) {
    const int first_row = tiles.first * m.tile;
    s.first_row[e] = first_row;
    m.histogram[e] = first_row + count;
    write_tiles(m, e, count, tiles.first, 0, 1);
  }
  if (e < m.local) m.tokens_per_expert[m.offset + e] = count;
  if (e < m.experts && !m.here(e)) m.tokens_per_expert[e] = 0;
  if (thread == 0) write_totals(m, tiles.all);
  __syncthreads();

  for (int route = thread; route < m.routes; route += threads) {
    const int v = ids[route];
    int row = -1;
    if (v >= 0) {
      row = s.first_row[v / 32] + table[route / 32 * m.local + v / 32] + v % 32;
      m.permuted_to_token[row] = route / m.top_k;
    }
    m.expanded_to_permuted[route] = row;
  }
}

// Many tokens: a block an expert, which looks through all ids for its own. ids are in device memory.
__device__ inline void count_routes(const MetadataOut& m, const std::int32_t* ids, int e,
                                    int& sum /* shared */) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) sum = 0;
  __syncthreads();
  int count = 0;
  if (m.here(e)) {
#pragma unroll 4
    for (int route = thread; route < m.routes; route += static_cast<int>(blockDim.x))
      count += ids[route] == e ? 1 : 0;
  }
  count = __reduce_add_sync(0xFFFFFFFFU, count);
  if (thread % 32 == 0) atomicAdd(&sum, count);
  __syncthreads();
  if (thread == 0) m.tokens_per_expert[e] = sum;
}

// After the counts are written: local expert `e` of this block, which has as many threads as there are
// experts, or more. Each warp places the expert's routes in one stretch of all routes.
__device__ inline void place_routes(const MetadataOut& m, const std::int32_t* ids, int e, MetadataShared& s) {
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int its_count = thread < m.local ? m.tokens_per_expert[m.offset + thread] : 0;
  const Tiles tiles = place_tiles((its_count + m.tile - 1) / m.tile, s.warp_tiles);
  if (thread == e && e < m.local) s.first_row[0] = tiles.first * m.tile;
  if (e == 0) {
    if (thread < m.local) m.histogram[thread] = tiles.first * m.tile + its_count;
    if (thread == 0) write_totals(m, tiles.all);
  }
  for (int route = e * threads + thread; route < m.routes; route += static_cast<int>(gridDim.x) * threads)
    if (!m.here(ids[route])) m.expanded_to_permuted[route] = -1;

  const std::int32_t id = m.offset + e;
  const int stretch = (m.routes + threads - 1) / threads * 32;  // of a warp
  const int begin = min(warp * stretch, m.routes);
  const int end = min(begin + stretch, m.routes);
  int count = 0;
#pragma unroll 4
  for (int route = begin + lane; route < end; route += 32) count += ids[route] == id ? 1 : 0;
  count = __reduce_add_sync(0xFFFFFFFFU, count);
  if (lane == 0) s.warp_routes[warp] = count;
  __syncthreads();
  if (e >= m.local) return;

  const int of_warp = lane < threads / 32 ? s.warp_routes[lane] : 0;
  const int before = __reduce_add_sync(0xFFFFFFFFU, lane < warp ? of_warp : 0);
  const int all = __reduce_add_sync(0xFFFFFFFFU, of_warp);
  const int first_row = s.first_row[0];
  int row = first_row + before;
#pragma unroll 4
  for (int first = begin; first < end; first += 32) {
    const int route = first + lane;
    const bool mine = route < end && ids[route] == id;
    const unsigned its_lanes = __ballot_sync(0xFFFFFFFFU, mine);
    if (mine) {
      const int r = row + __popc(its_lanes & ((1U << lane) - 1));
      m.permuted_to_token[r] = route / m.top_k;
      m.expanded_to_permuted[route] = r;
    }
    row += __popc(its_lanes);
  }
  write_tiles(m, e, all, first_row / m.tile, thread, threads);
}

}  // namespace kerf::op::sm90
