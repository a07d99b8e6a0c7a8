#include "kerf/base/fp_guard.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kerf {

// The mode registers have no portable name, so this file (alone) asks which processor it is built for.
#if defined(__x86_64__)
namespace {
constexpr unsigned kFlushToZero = 0x8000;
constexpr unsigned kDenormalsAreZero = 0x0040;
constexpr unsigned kRounding = 0x6000;  // both bits clear: to nearest even
constexpr unsigned kMode = kFlushToZero | kDenormalsAreZero | kRounding;
}  // namespace

FpGuard::FpGuard() noexcept : saved_(_mm_getcsr()) {
  if ((saved_ & kMode) != 0) _mm_setcsr(static_cast<unsigned>(saved_) & ~kMode);
}

FpGuard::~FpGuard() {
  if ((saved_ & kMode) != 0) _mm_setcsr(static_cast<unsigned>(saved_));
}
#elif defined(__aarch64__)
namespace {
constexpr std::uint64_t kFlushToZero = std::uint64_t{1} << 24;
constexpr std::uint64_t kFlushHalvesToZero = std::uint64_t{1} << 19;
constexpr std::uint64_t kRounding = std::uint64_t{3} << 22;  // both bits clear: to nearest even
constexpr std::uint64_t kAlternate = 7;  // Armv8.7: inputs flushed to zero, other rules for NaN, lanes kept
constexpr std::uint64_t kMode = kFlushToZero | kFlushHalvesToZero | kRounding | kAlternate;
void set(std::uint64_t fpcr) { asm volatile("msr fpcr, %0" : : "r"(fpcr)); }
}  // namespace

FpGuard::FpGuard() noexcept : saved_(0) {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  if ((saved_ & kMode) != 0) set(saved_ & ~kMode);
}

FpGuard::~FpGuard() {
  if ((saved_ & kMode) != 0) set(saved_);
}
#else
#error "kerf knows the floating point mode of x86-64 and AArch64 only"
#endif

}  // namespace kerf
