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
    for (int chunk = 0; chunk < chunks; ++chunk) {
      std::uint16_t& entry = table[chunk * m.local + e];
      const int here = entry;
      entry = static_cast<std::uint16_t>(count);
      count += here;
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

// Many tokens: a warp an expert, which reads all ids twice. ids are in device memory.
__device__ inline void count_routes(const MetadataOut& m, const std::int32_t* ids, int e) {
  int count = 0;
  if (m.here(e))
    for (int route = static_cast<int>(threadIdx.x) % 32; route < m.routes; route += 32)
      count += ids[route] == e ? 1 : 0;
  count = __reduce_add_sync(0xFFFFFFFFU, count);
  if (threadIdx.x % 32 == 0) m.tokens_per_expert[e] = count;
}

// After the counts are written. All threads of each block, at least as many as experts; the first warps of a
// block place the routes of an expert each.
__device__ inline void place_routes(const MetadataOut& m, const std::int32_t* ids, int experts_of_block,
                                    MetadataShared& s) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int block = static_cast<int>(blockIdx.x);
  const int count = thread < m.local ? m.tokens_per_expert[m.offset + thread] : 0;
  const Tiles tiles = place_tiles((count + m.tile - 1) / m.tile, s.warp_tiles);
  if (thread < m.local) s.first_row[thread] = tiles.first * m.tile;
  if (block == 0) {
    if (thread < m.local) m.histogram[thread] = tiles.first * m.tile + count;
    if (thread == 0) write_totals(m, tiles.all);
  }
  const int threads = static_cast<int>(blockDim.x);
  for (int route = block * threads + thread; route < m.routes; route += static_cast<int>(gridDim.x) * threads)
    if (!m.here(ids[route])) m.expanded_to_permuted[route] = -1;
  __syncthreads();

  const int e = block * experts_of_block + thread / 32;
  if (thread / 32 >= experts_of_block || e >= m.local) return;
  const std::int32_t id = m.offset + e;
  const int first_row = s.first_row[e];
  int row = first_row;
#pragma unroll 4
  for (int first = 0; first < m.routes; first += 32) {
    const int route = first + lane;
    const bool mine = route < m.routes && ids[route] == id;
    const unsigned all = __ballot_sync(0xFFFFFFFFU, mine);
    if (mine) {
      const int r = row + __popc(all & ((1U << lane) - 1));
      m.permuted_to_token[r] = route / m.top_k;
      m.expanded_to_permuted[route] = r;
    }
    row += __popc(all);
  }
  write_tiles(m, e, row - first_row, first_row / m.tile, lane, 32);
}

}  // namespace kerf::op::sm90
