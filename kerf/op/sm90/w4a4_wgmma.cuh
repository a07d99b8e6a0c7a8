// The tensor cores' instructions as this kernel uses them.
#pragma once

#include "kerf/op/sm90/w4a4_operand.cuh"

namespace kerf::op::sm90::w4a4 {

// What describes an operand: its address in 16 bytes, 128 bytes between the two halves of K, 256 between
// groups of eight columns, no swizzle. Its lower half, which is all that differs. The instructions want it in
// uniform registers: once it is there, it is added up there.
__device__ inline std::uint32_t operand_descriptor(const void* operand) {
  return uniform(((shared_address(operand) >> 4) & 0x3FFFU) | (8U << 16));
}

// d = A * B (+ d): 64 rows by 32 values of K by 8 or 16 columns, e4m3. A in registers, B in shared memory.
template <bool add>
__device__ inline void wgmma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      ".reg .b64 b;\n"
      "setp.ne.b32 add, %9, 0;\n"
      "mov.b64 b, {%8, 16};\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, b, add, 1, "
      "1;\n"
      "}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(add ? 1 : 0));
}
template <bool add>
__device__ inline void wgmma(float (&d)[8], const std::uint32_t (&a)[4], std::uint32_t b) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      ".reg .b64 b;\n"
      "setp.ne.b32 add, %13, 0;\n"
      "mov.b64 b, {%12, 16};\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, "
      "%11}, b, add, 1, 1;\n"
      "}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(add ? 1 : 0));
}

}  // namespace kerf::op::sm90::w4a4
