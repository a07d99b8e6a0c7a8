// Dots of a chunk by the tensor cores, exact, and the canonical sum around them (docs/numerics.md): what a
// lane's accumulators hold are dots of single blocks, every other operation is an f32 operation written here.
#pragma once

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
  __device__ void add(const std::byte* chunk, std::uint64_t operand, const float* token_scales,
                      std::uint64_t* release) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x / 32) % 4;
    const int g = lane / 4;
    const int t = lane % 4;
    const std::byte* const codes = chunk + (32 * warp + g) * 64 + t * 16;
    const std::byte* const scales =
        chunk + chunk_code_bytes + (t / 2) * half_scale_bytes + g * 16 + warp * 4 + (t % 2) * 2;
    constexpr int step = 16 * pairs;  // descriptors count 16 bytes

    std::uint16_t row_scales[4];  // of rows g, g + 8, ...: two blocks each
#pragma unroll
    for (int i = 0; i < 4; ++i) row_scales[i] = *reinterpret_cast<const std::uint16_t*>(scales + i * 128);
    float d[2][2][4 * pairs];
    std::uint32_t a[2][4][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const uint4 x = *reinterpret_cast<const uint4*>(codes + m * 1024);
      const uint4 y = *reinterpret_cast<const uint4*>(codes + m * 1024 + 512);
      const std::uint32_t upper[4] = {x.x, x.y, x.z, x.w};
      const std::uint32_t lower[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        expand(upper[i], a[m][i][2], a[m][i][0]);
        expand(lower[i], a[m][i][3], a[m][i][1]);
      }
      wgmma_fence();
      wgmma<false>(d[m][0], a[m][0], operand);
      wgmma<true>(d[m][0], a[m][1], operand + step);
      wgmma<false>(d[m][1], a[m][2], operand + 2 * step);
      wgmma<true>(d[m][1], a[m][3], operand + 3 * step);
      wgmma_commit();
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(release);

    float2 first[pairs], second[pairs];  // the tokens' scales, of this lane's two blocks
#pragma unroll
    for (int q = 0; q < pairs; ++q) {
      first[q] = *reinterpret_cast<const float2*>(token_scales + (2 * q) * 32 + 2 * t);
      second[q] = *reinterpret_cast<const float2*>(token_scales + (2 * q + 1) * 32 + 2 * t);
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float2 w0 = scales_of(row_scales[2 * m]);
      const float2 w1 = scales_of(row_scales[2 * m + 1]);
      float s[2][4 * pairs];
#pragma unroll
      for (int q = 0; q < pairs; ++q) {
        s[0][4 * q] = w0.x * first[q].x;
        s[0][4 * q + 1] = w0.x * second[q].x;
        s[0][4 * q + 2] = w1.x * first[q].x;
        s[0][4 * q + 3] = w1.x * second[q].x;
        s[1][4 * q] = w0.y * first[q].y;
        s[1][4 * q + 1] = w0.y * second[q].y;
        s[1][4 * q + 2] = w1.y * first[q].y;
        s[1][4 * q + 3] = w1.y * second[q].y;
      }
      if (m == 0)
        wgmma_wait<1>();
      else
        wgmma_wait<0>();
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < 4 * pairs; ++j) {
          asm volatile("" : "+f"(d[m][h][j])::"memory");  // not read before the wait
          c[m][h][j] = __fmaf_rn(d[m][h][j], s[h][j], c[m][h][j]);
        }
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
};

// The balanced sum over a part's segments (numeric::BalancedSum), for `values` sums at once. A single segment
// waits in a register, larger nodes in the thread's own words of shared memory.
template <int values>
class SegmentSums {
 public:
  __device__ explicit SegmentSums(const Shared& shared) : stack_(shared.stack + threadIdx.x) {}

  // Adds a segment; where it is the last, v becomes the sum and the next one begins.
  __device__ void add(float (&v)[values], bool last) {
    const unsigned before = count_++;
    if ((before & 1) != 0) {
#pragma unroll
      for (int j = 0; j < values; ++j) v[j] = __fadd_rn(kept_[j], v[j]);
      for (unsigned bits = before >> 1; (bits & 1) != 0; bits >>= 1) pop(v);
      if (!last) push(v);
    } else if (!last) {
#pragma unroll
      for (int j = 0; j < values; ++j) kept_[j] = v[j];
    }
    if (!last) return;
    while (depth_ > 0) pop(v);
    count_ = 0;
  }

 private:
  __device__ void pop(float (&v)[values]) {
    --depth_;
#pragma unroll
    for (int j = 0; j < values; ++j) v[j] = __fadd_rn(stack_[(depth_ * values + j) * consumers], v[j]);
  }
  __device__ void push(const float (&v)[values]) {
#pragma unroll
    for (int j = 0; j < values; ++j) stack_[(depth_ * values + j) * consumers] = v[j];
    ++depth_;
  }

  float* stack_;
  float kept_[values];
  unsigned count_ = 0;
  int depth_ = 0;
};

}  // namespace kerf::op::sm90::w4a4
