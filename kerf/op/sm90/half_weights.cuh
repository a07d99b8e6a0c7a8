// How the GEMMs of 16-bit rows get a chunk of weights: what is copied into shared memory, and how it is
// multiplied from there. A struct for each kind of weights, with the same members; what they are is said at
// the first.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "kerf/op/sm90/half_place.h"
#include "kerf/op/sm90/half_work.h"
#include "kerf/op/sm90/wgmma_bf16.cuh"

namespace kerf::op::sm90 {

// A thread's place in its warpgroup: warp q, row g and column t of wgmma's fragments.
struct Lane {
  int q;
  int g;
  int t;
};

// A matrix of the experts' weights, [n, rows, k].
struct HalfMatrix {
  const CUtensorMap* map;
  const std::uint8_t* scales;
  int rows;
  int k;
};

// BF16, [n, K/64, rows, 64]: 64 values of K by 64 or 128 rows are one contiguous box, swizzled on its way,
// and that is what wgmma reads.
struct Bf16Chunk {
  static constexpr int k = 64;
  static constexpr int box_bytes = 128;   // a row's
  static constexpr float unscale = 1.0F;  // what sums are to be multiplied by
  // Row of eight that lane group g works at; place of value k of 64 in the tokens' operand.
  static __device__ constexpr int row_of(int g) { return g; }
  static __device__ constexpr int place(int k) { return k; }
  static constexpr int bytes(int rows) { return rows * box_bytes; }
  // Blocks that a multiprocessor is to have; chunks of a stage, for each part of the split.
  static constexpr int resident(int /*tile*/, int /*split*/) { return 2; }
  static constexpr int depth(int /*tile*/, int /*split*/) { return 1; }
  // Whether the tokens' values may come straight from x, without being gathered by all blocks first.
  static constexpr bool direct(int /*tile*/) { return false; }

  // Bytes that load() will bring.
  static __device__ std::uint32_t incoming(const HalfMatrix& /*w*/, int /*chunk*/, int rows) {
    return static_cast<std::uint32_t>(bytes(rows));
  }
  // A box that reaches past the expert's last row brings rows of the next block, which nobody looks at.
  static __device__ void load(std::uint8_t* to, const HalfMatrix& w, int expert, int chunk, int first_row,
                              int /*rows*/, std::uint64_t* barrier) {
    tensor_load(to, w.map, 0, (expert * (w.k / k) + chunk) * w.rows + first_row, barrier);
  }

  // Where a thread finds its part of 64 rows of a chunk, those from first_row on (row_of_128 in their tile of
  // 128), and the tokens: addresses within a stage that begins at 0.
  template <int split, int tile>
  struct Part {
    std::uint32_t rows;
    std::uint32_t tokens;

    __device__ Part(std::uint32_t chunk, std::uint32_t values, int first_row, int /*row_of_128*/,
                    Lane /*lane*/)
        : rows(chunk + static_cast<std::uint32_t>(first_row * box_bytes)), tokens(values) {}

    // sums += the rows times the tokens of the stage's chunk `chunk`. When it returns only what it added last
    // is still under way. blocks: of 64 values of K that there are.
    template <int blocks>
    __device__ void multiply(float (&sums)[tile / 2], std::uint32_t stage, int chunk) const {
      static_assert(blocks == 1);
      const std::uint64_t a = rows_descriptor(uniform(stage + rows) + chunk * bytes(rows_of_unit(split)));
      const std::uint64_t b = rows_descriptor(uniform(stage + tokens) + chunk * tile * 128);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) wgmma(sums, a + 2 * i, b + 2 * i);
      wgmma_commit();
      wgmma_wait<1>();
    }
  };
};

// NVFP4, codes [n, rows, K/2] with 128x4 scales: 128 values of K by 64 or 128 rows of codes, and 1024 bytes
// of scales, which are of 128 rows.
//
// Weights become bf16 without error. A code s e e m put at bits 15, 8, 7 and 6 of a bf16 reads as v * 2^-126
// (e2m1's exponent bias is 1, bf16's is 127; 0.5, e2m1's subnormal, is the subnormal 2^-127). The factor is s
// * 2^119 with s the block's scale: e4m3 has 4 significant bits and |s| <= 1.75 * 2^8, so the factor is a
// bf16 below 2^128, and where s is not zero at least 2^110. The product v * s * 2^-7 has at most 2 + 4
// significant bits of bf16's 8, and lies between 2^-17 and 21, or is zero: it is exact. Sums are multiplied
// by 2^7 in the end, which is exact too. A scale of NaN makes the factor NaN, and all that it multiplies.
struct Fp4Chunk {
  static constexpr int k = 128;
  static constexpr int box_bytes = 64;
  static constexpr int scale_bytes = 512;  // of 128 rows, 64 values of K
  static constexpr float unscale = 128.0F;
  // Eight lanes read the codes of rows whose 64-byte swizzles together cover all banks.
  static __device__ constexpr int row_of(int g) { return (g & 1) | (g & 2) << 1 | (g & 4) >> 1; }
  static __device__ constexpr int place(int k) { return decoded_place(k); }
  static constexpr int bytes(int rows) { return rows * box_bytes + 2 * scale_bytes; }
  // Decoding takes registers: 64 tokens' sums in two parts leave too few for two blocks.
  static constexpr int resident(int tile, int split) { return tile == 64 && split == 2 ? 1 : 2; }
  // Waiting takes instructions that decoding wants too: with two chunks a stage there is half as much of it.
  static constexpr int depth(int tile, int /*split*/) { return tile <= 16 ? 2 : 1; }
  // A tile of few rows is little for each unit to put in order for itself, and nobody waits for others then.
  static constexpr bool direct(int tile) { return tile == 8; }
  // Values 8 p to 8 p + 7 of the 64 of a row, into their places in a block [tile, 64].
  static __device__ void put(std::uint8_t* block, int row, int p, uint4 values) {
    static_assert(decoded_place(0) + 1 == decoded_place(4) && decoded_place(3) + 1 == decoded_place(7));
    const std::uint32_t pairs[4] = {
        __byte_perm(values.x, values.z, 0x5410), __byte_perm(values.x, values.z, 0x7632),
        __byte_perm(values.y, values.w, 0x5410), __byte_perm(values.y, values.w, 0x7632)};
#pragma unroll
    for (int n = 0; n < 4; ++n)  // values n and n + 4 are neighbours
      *reinterpret_cast<std::uint32_t*>(block + 2 * swizzled(row, place(8 * p + n))) = pairs[n];
  }

  static __device__ int scale_tiles(const HalfMatrix& w, int chunk) { return min(2, w.k / 64 - 2 * chunk); }
  static __device__ std::uint32_t incoming(const HalfMatrix& w, int chunk, int rows) {
    return static_cast<std::uint32_t>(rows * box_bytes + scale_tiles(w, chunk) * scale_bytes);
  }
  static __device__ void load(std::uint8_t* to, const HalfMatrix& w, int expert, int chunk, int first_row,
                              int rows, std::uint64_t* barrier) {
    tensor_load(to, w.map, chunk * box_bytes, expert * w.rows + first_row, barrier);
    const std::int64_t tile = static_cast<std::int64_t>(expert) * (w.rows / 128) + first_row / 128;
    bulk_load(to + rows * box_bytes, w.scales + (tile * (w.k / 64) + 2 * chunk) * scale_bytes,
              static_cast<std::uint32_t>(scale_tiles(w, chunk) * scale_bytes), barrier);
  }

  // Two bf16 from the codes n and n + 4 of eight, n = 0 .. 3.
  static __device__ void decode(std::uint32_t codes, std::uint32_t (&out)[4]) {
    constexpr std::uint32_t bits = 0x81C081C0;  // s at 15, e e m at 8 .. 6
    const std::uint32_t upper = codes >> 8;
    // One product puts a code at both places; what it puts between them is masked.
    out[0] = ((codes & 0x000F000FU) * 0x1040U) & bits;
    out[1] = ((codes & 0x00F000F0U) * 0x0104U) & bits;
    out[2] = ((upper & 0x000F000FU) * 0x1040U) & bits;
    out[3] = ((upper & 0x00F000F0U) * 0x0104U) & bits;
  }
  // Two bf16 products.
  static __device__ std::uint32_t times(std::uint32_t values, std::uint32_t factors) {
    std::uint32_t out;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(values), "r"(factors));
    return out;
  }
  // The factors of two rows' blocks, each twice, from their scales.
  static __device__ void factors(std::uint32_t low, std::uint32_t high, std::uint32_t (&out)[2]) {
    constexpr std::uint32_t two_to_119 = 0x7B007B00;
    const auto both = static_cast<__nv_fp8x2_storage_t>(low | high << 8);
    const float2 s = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(both, __NV_E4M3)));
    std::uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(s.y), "f"(s.x));
    pair = times(pair, two_to_119);
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; mov.b32 %0, {l, l}; mov.b32 %1, {h, h}; }"
        : "=r"(out[0]), "=r"(out[1])
        : "r"(pair));
  }

  template <int split, int tile>
  struct Part {
    static constexpr std::uint32_t block_bytes = tile * 128;  // [tile, 64] bf16
    // Of row r of a warp's 16; 8 rows on are row r + 8's. Of a row of codes the 16 bytes c lie at c ^ (r / 2
    // % 4), of both rows alike.
    std::uint32_t codes[2];  // of each 64 values of K
    std::uint32_t scales;
    std::uint32_t tokens;

    __device__ Part(std::uint32_t chunk, std::uint32_t values, int first_row, int row_of_128, Lane lane)
        : tokens(values) {
      const int row = 16 * lane.q + row_of(lane.g);
      for (int block = 0; block < 2; ++block)
        codes[block] = chunk + static_cast<std::uint32_t>((first_row + row) * box_bytes + 8 * (lane.t & 1) +
                                                          16 * ((2 * block + lane.t / 2) ^ (row / 2 % 4)));
      const int of_128 = row_of_128 + row;
      scales = chunk + static_cast<std::uint32_t>(rows_of_unit(split) * box_bytes + of_128 % 32 * 16 +
                                                  of_128 / 32 * 4 + lane.t);
    }

    // No branch within: ptxas lets products run on across loops, not across forks.
    template <int blocks>
    __device__ void multiply(float (&sums)[tile / 2], std::uint32_t stage, int chunk) const {
      uint2 code[blocks][2];  // [64 values of K][row]
      std::uint32_t scale[blocks][2];
      const auto read = [&](int block) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          code[block][r] =
              shared_pair(stage + codes[block] + chunk * bytes(rows_of_unit(split)) + 8 * box_bytes * r);
          scale[block][r] = shared_byte(stage + scales + chunk * bytes(rows_of_unit(split)) +
                                        scale_bytes * block + 8 * 16 * r);
        }
      };
      const std::uint32_t first_tokens = uniform(stage + tokens) + 2 * chunk * block_bytes;
      constexpr bool ahead = tile <= 32;  // while registers are enough
      if constexpr (ahead)
#pragma unroll
        for (int block = 0; block < blocks; ++block) read(block);
#pragma unroll
      for (int block = 0; block < blocks; ++block) {
        if constexpr (!ahead) read(block);
        std::uint32_t factor[2];
        factors(scale[block][0], scale[block][1], factor);
        std::uint32_t w[4][4];  // [product of 16 places][fragment]
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
          for (int word = 0; word < 2; ++word) {
            std::uint32_t pairs[4];
            decode(word == 0 ? code[block][r].x : code[block][r].y, pairs);
#pragma unroll
            for (int i = 0; i < 4; ++i) w[2 * word + i / 2][2 * (i % 2) + r] = times(pairs[i], factor[r]);
          }
        const std::uint64_t b = rows_descriptor(first_tokens + block * block_bytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) settle(w[i]);
        wgmma_wait<0>();  // those before ran while these were decoded
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i) wgmma(sums, w[i], b + 2 * i);
        wgmma_commit();
      }
    }
  };
};

}  // namespace kerf::op::sm90
