// Dots of a segment by the tensor cores, exact, and the canonical sum around them (docs/numerics.md): what a
// lane's accumulators hold are dots of single blocks, every other operation is an f32 operation written here.
#pragma once

#include "kerf/op/sm90/w4a4_wgmma.cuh"

namespace kerf::op::sm90::w4a4 {

// Where a lane finds its part of a chunk: addresses in shared memory. The chunk: codes [128 rows][64 bytes],
// scales in two 128x4 tiles. Lane 4g + t of a warp has two blocks of each row g + 8i of the warp's 32.
struct ChunkPlace {
  std::uint32_t codes;
  std::uint32_t scales;

  __device__ explicit ChunkPlace(std::uint32_t chunk) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x / 32) % 4;
    const int g = lane / 4;
    const int t = lane % 4;
    codes = chunk + static_cast<std::uint32_t>((32 * warp + g) * 64 + t * 16);
    scales = chunk + static_cast<std::uint32_t>(chunk_code_bytes + (t / 2) * half_scale_bytes + g * 16 +
                                                warp * 4 + (t % 2) * 2);
  }
  __device__ void move(std::uint32_t bytes) {
    codes += bytes;
    scales += bytes;
  }
};

// Half of a warp's 32 rows in a chunk: of a lane two blocks of rows g and g + 8, codes and scales.
struct HalfRows {
  uint4 codes[2];
  float2 scales[2];

  // From row 16 * half on.
  __device__ void load(ChunkPlace chunk, int half) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto eight = static_cast<std::uint32_t>(2 * half + i);  // rows
      codes[i] = shared_value<uint4>(chunk.codes + eight * (8 * 64));
      scales[i] = scales_of(shared_value<std::uint16_t>(chunk.scales + eight * (8 * 16)));
    }
  }
};

// Each token's scales of a lane's blocks in a chunk: four floats at a time, which are both blocks' of two
// tokens or one block's of four.
template <int pairs>
struct TokenScales {
  float4 four;

  // From what place() said of a chunk's [8 blocks][2 * pairs] on. Before block h's.
  __device__ void load(std::uint32_t chunk, int h) {
    if (pairs == 2 || h == 0) four = shared_value<float4>(chunk + static_cast<std::uint32_t>(h) * 16);
  }
  __device__ static std::uint32_t place(const float* scales) {
    return shared_address(scales + threadIdx.x % 4 * 4 * pairs);
  }
  [[nodiscard]] __device__ float of(int h, int token) const {
    const int i = pairs == 1 ? 2 * h + token : token;
    return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
  }
};

// Products of such rows with one of each lane's blocks. Started, waited for (wgmma_wait), then finished.
template <int pairs>
struct Products {
  std::uint32_t a[2][4];
  float d[4 * pairs];

  __device__ void start(const HalfRows& rows, int h, std::uint32_t operand) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 codes = rows.codes[i];
      const uint2 words = h == 0 ? uint2{codes.x, codes.y} : uint2{codes.z, codes.w};
      expand(words.x, a[0][2 + i], a[0][i]);
      expand(words.y, a[1][2 + i], a[1][i]);
    }
    constexpr int step = 256 * pairs / 16;  // descriptors count 16 bytes
    wgmma_fence();
    wgmma<false>(d, a[0], operand + 2 * h * step);
    wgmma<true>(d, a[1], operand + (2 * h + 1) * step);
    wgmma_commit();
  }

  // One fma an output, into the chains of the block.
  __device__ void finish(const HalfRows& rows, int h, float (&chains)[4 * pairs],
                         const TokenScales<pairs>& token_scales) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float w = h == 0 ? rows.scales[i].x : rows.scales[i].y;
#pragma unroll
      for (int token = 0; token < 2 * pairs; ++token) {
        const int j = token / 2 * 4 + token % 2 + 2 * i;
        add_product(chains[j], d[j], w * token_scales.of(h, token));
      }
    }
  }

 private:
  __device__ static void add_product(float& chain, float& dot, float scale) {
    asm volatile("" : "+f"(dot));  // not read before the wait
    chain = __fmaf_rn(dot, scale, chain);
  }
};

// The eight chains of 32 rows of a warp, for 2 * pairs tokens: lane 4g + t has chains 2t and 2t + 1 (second
// index) of rows g and g + 8 (0-15 of the rows for first index 0, 16-31 for 1), by pair: row g's two tokens,
// then row g + 8's.
template <int pairs>
struct Chains {
  float c[2][2][4 * pairs];

  // Adds up a segment from its chunks. ring.wait() gives the next chunk of the ring once it is there,
  // ring.release() gives it back; operand (a descriptor) and token_scales [32][2 * pairs] are the segment's.
  template <typename Ring>
  __device__ void multiply(int chunks, Ring& ring, std::uint32_t operand, const float* token_scales) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < 4 * pairs; ++j) c[m][h][j] = 0.0F;
    std::uint32_t scales = TokenScales<pairs>::place(token_scales);
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) {
      add(ring, operand, scales);
      operand += operand_step;
      scales += scales_step;
    }
  }

  // The segment's sums, one for each 16 rows and pair of tokens: lane 4g + t has row g + 8 * (t % 2) + 16 * m
  // and token 2q + t / 2 in [m * pairs + q].
  __device__ void sum(float (&out)[2 * pairs]) const {
    const int t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int q = 0; q < pairs; ++q) {
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = __fadd_rn(c[m][0][4 * q + j], c[m][1][4 * q + j]);
        // Of its neighbour's sums and its own a lane adds those of one row, then those of one token.
        const bool odd = (t & 1) != 0;
        const float row0 = __fadd_rn(odd ? v[2] : v[0], __shfl_xor_sync(~0U, odd ? v[0] : v[2], 1));
        const float row1 = __fadd_rn(odd ? v[3] : v[1], __shfl_xor_sync(~0U, odd ? v[1] : v[3], 1));
        const bool upper = (t & 2) != 0;
        out[m * pairs + q] = __fadd_rn(upper ? row1 : row0, __shfl_xor_sync(~0U, upper ? row0 : row1, 2));
      }
  }

 private:
  static constexpr int pieces = 4;  // of a chunk: two halves of the rows by two blocks
  // From chunk to chunk: of the operand's descriptor, and of the tokens' scales in bytes.
  static constexpr std::uint32_t operand_step = operand_bytes * pairs / segment_chunks / 16;
  static constexpr std::uint32_t scales_step = chunk_values / 16 * 2 * pairs * 4;

  // Adds a chunk, which is read at once, so that its place in the ring is free when its products begin. While
  // a piece's products are added, those of the next are under way; not so over the loop's end, where the
  // assembler would not let them be, but fetching straight code for several chunks costs more than it saves.
  template <typename Ring>
  __device__ void add(Ring& ring, std::uint32_t operand, std::uint32_t token_scales) {
    Products<pairs> under_way[2];
    HalfRows rows[2];
    TokenScales<pairs> scales;
    ring.wait();
#pragma unroll
    for (int half = 0; half < 2; ++half) rows[half].load(ring.chunk(), half);
    ring.release();
    const auto start = [&](int n) { under_way[n % 2].start(rows[n / 2], n % 2, operand); };
    start(0);
#pragma unroll
    for (int n = 0; n < pieces; ++n) {
      if (n + 1 < pieces) start(n + 1);
      if (n == 0 || pairs == 2) scales.load(token_scales, n % 2);
      if (n + 1 < pieces)
        wgmma_wait<1>();
      else
        wgmma_wait<0>();
      under_way[n % 2].finish(rows[n / 2], n % 2, c[n / 2][n % 2], scales);
    }
  }
};

// The balanced sum over a part's segments (numeric::BalancedSum), for 2 * pairs sums at once: finished
// subtrees wait in the thread's own words of shared memory.
template <int pairs>
class SegmentSums {
 public:
  static constexpr int values = 2 * pairs;

  // Adds segment `index` of the part; where it is the last, v becomes the part's sum.
  // stack: the block's words.
  __device__ static void add(float* stack, float (&v)[values], unsigned index, bool last) {
    float* top = stack + threadIdx.x + __popc(index) * values * consumers;
    for (unsigned bits = index; last ? bits != 0 : (bits & 1) != 0;
         bits = last ? bits & (bits - 1) : bits >> 1) {
      top -= values * consumers;
#pragma unroll
      for (int j = 0; j < values; ++j) v[j] = __fadd_rn(top[j * consumers], v[j]);
    }
    if (last) return;
#pragma unroll
    for (int j = 0; j < values; ++j) top[j * consumers] = v[j];
  }
};

}  // namespace kerf::op::sm90::w4a4
