// The floating point mode of a program built with -ffast-math, for the thread and scope it lives in.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kerf::test {

class Flushing {
 public:
#if defined(__x86_64__)
  Flushing() : saved_(_mm_getcsr()) { _mm_setcsr(static_cast<unsigned>(saved_) | 0x8040U); }  // FTZ, DAZ
  ~Flushing() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#elif defined(__aarch64__)
  Flushing() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ | (std::uint64_t{1} << 24)));  // FZ
  }
  ~Flushing() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }
#endif
  Flushing(const Flushing&) = delete;
  Flushing& operator=(const Flushing&) = delete;
  Flushing(Flushing&&) = delete;
  Flushing& operator=(Flushing&&) = delete;

  // Whether this thread flushes subnormals now.
  static bool now() {
    volatile float small = 0x1p-126F;
    volatile float half = 0.5F;
    return small * half == 0.0F;
  }

 private:
  std::uint64_t saved_ = 0;
};

}  // namespace kerf::test
