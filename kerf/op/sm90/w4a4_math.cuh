// Dots of a chunk by the tensor cores, exact, and the canonical sum around them (docs/numerics.md): what a
// lane's accumulators hold are dots of single blocks, every other operation is an f32 operation written here.
#pragma once

#include <type_traits>

#include "kerf/op/sm90/w4a4_operand.cuh"

namespace kerf::op::sm90::w4a4 {

// d = A * B (+ d): 64 rows by 32 values of K by 8 or 16 columns, e4m3. A in registers, B described in shared
// memory.
template <bool add>
__device__ inline void wgmma(float (&d)[4], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %9, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, add, 1, "
      "1;\n"
      "}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(add ? 1 : 0));
}
template <bool add>
__device__ inline void wgmma(float (&d)[8], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, "
      "%11}, %12, add, 1, 1;\n"
      "}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(add ? 1 : 0));
}

// B pieces without a swizzle: 128 bytes between the two halves of K, 256 between groups of eight columns.
__device__ inline std::uint64_t operand_descriptor(const void* operand) {
  return ((shared_address(operand) >> 4) & 0x3FFFU) | (std::uint64_t{8} << 16) | (std::uint64_t{16} << 32);
}

// The eight chains of 32 rows of a warp, for 2 * pairs tokens: lane 4g + t has chains 2t and 2t + 1 (second
// index) of rows g and g + 8 (0-15 of the rows for first index 0, 16-31 for 1), by pair: row g's two tokens,
// then row g + 8's.
template <int pairs>
struct Chains {
  float c[2][2][4 * pairs];

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < 4 * pairs; ++j) c[m][h][j] = 0.0F;
  }

  // Adds a chunk: its codes [128 rows][64 bytes] and scales (two 128x4 tiles), the chunk's piece of the
  // operand, and the tokens' scales of its blocks [2 * pairs][32]. Releases the chunk once it is read.
  __device__ void add(const std::byte* chunk, const std::byte* operand, const float* token_scales,
                      std::uint64_t* release) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x / 32) % 4;
    const int g = lane / 4;
    const int t = lane % 4;
    const std::byte* const codes = chunk + (32 * warp + g) * 64 + t * 16;
    const std::byte* const scales =
        chunk + chunk_code_bytes + (t / 2) * half_scale_bytes + g * 16 + warp * 4 + (t % 2) * 2;
    // A few products after the others: registers are short, and the other warpgroups keep the pipes busy.
    constexpr int blocks = pairs == 1 ? 2 : 1;
    Products<blocks> products;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int h = 0; h < 2; h += blocks) {
        products.start(codes + m * 1024 + h * 8, scales + m * 256, h, operand);
        if (m == 1 && h + blocks == 2) {
          __syncwarp();
          if (lane == 0) barrier_arrive(release);
        }
        wgmma_wait<0>();
        products.finish(c[m], h, token_scales + 2 * t);
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
  // Products of 16 rows with one or both of a lane's blocks, from block h on: of eight rows, and of the next
  // eight, whose codes are 512 bytes on and scales 128.
  template <int blocks>
  struct Products {
    std::uint32_t a[2 * blocks][4];
    float d[blocks][4 * pairs];
    std::uint16_t row_scales[2];  // of rows g and g + 8: two blocks each

    __device__ void start(const std::byte* codes, const std::byte* scales, int h, const std::byte* operand) {
      constexpr int step = 16 * pairs;  // descriptors count 16 bytes
      row_scales[0] = *reinterpret_cast<const std::uint16_t*>(scales);
      row_scales[1] = *reinterpret_cast<const std::uint16_t*>(scales + 128);
      using Words = std::conditional_t<blocks == 2, uint4, uint2>;
      const Words x = *reinterpret_cast<const Words*>(codes);
      const Words y = *reinterpret_cast<const Words*>(codes + 512);
      expand(x.x, a[0][2], a[0][0]);
      expand(y.x, a[0][3], a[0][1]);
      expand(x.y, a[1][2], a[1][0]);
      expand(y.y, a[1][3], a[1][1]);
      if constexpr (blocks == 2) {
        expand(x.z, a[2][2], a[2][0]);
        expand(y.z, a[2][3], a[2][1]);
        expand(x.w, a[3][2], a[3][0]);
        expand(y.w, a[3][3], a[3][1]);
      }
      const std::uint64_t b = operand_descriptor(operand) + 2 * h * step;
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < blocks; ++i) {
        wgmma<false>(d[i], a[2 * i], b + 2 * i * step);
        wgmma<true>(d[i], a[2 * i + 1], b + (2 * i + 1) * step);
      }
      wgmma_commit();
    }

    // After the wait: one fma an output and block. The tokens' scales of this lane's two blocks, 32 a token.
    __device__ void finish(float (&chains)[2][4 * pairs], int h, const float* token_scales) {
      const float2 w0 = scales_of(row_scales[0]);
      const float2 w8 = scales_of(row_scales[1]);
#pragma unroll
      for (int token = 0; token < 2 * pairs; ++token) {
        const float2 s = *reinterpret_cast<const float2*>(token_scales + token * 32);
        const int j = token / 2 * 4 + token % 2;
#pragma unroll
        for (int i = 0; i < blocks; ++i) {
          const bool first = h + i == 0;
          add_product(chains[h + i][j], d[i][j], (first ? w0.x : w0.y) * (first ? s.x : s.y));
          add_product(chains[h + i][j + 2], d[i][j + 2], (first ? w8.x : w8.y) * (first ? s.x : s.y));
        }
      }
    }

    __device__ static void add_product(float& chain, float& dot, float scale) {
      asm volatile("" : "+f"(dot));  // not read before the wait
      chain = __fmaf_rn(dot, scale, chain);
    }
  };
};

// The balanced sum over a part's segments (numeric::BalancedSum), for 2 * pairs sums at once: finished
// subtrees wait in the thread's own words of shared memory.
template <int pairs>
class SegmentSums {
 public:
  static constexpr int values = 2 * pairs;

  // Adds segment `index` of the part; where it is the last, v becomes the part's sum.
  __device__ static void add(const Params& p, float (&v)[values], unsigned index, bool last) {
    float* top = Shared<pairs>::stack(p) + threadIdx.x + __popc(index) * values * consumers;
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
