// The floating point mode that canonical arithmetic needs: round to nearest, subnormals kept (no flush to
// zero, no denormals-are-zero). Building a program with -ffast-math switches both off for all of it, so
// every task sets the mode and puts the caller's back.
#pragma once

#include <cstdint>

namespace kerf {

// Sets the mode of the calling thread, and puts the one before back at the end of its scope, on the same
// thread.
class FpGuard {
 public:
  FpGuard() noexcept;
  ~FpGuard();
  FpGuard(const FpGuard&) = delete;
  FpGuard& operator=(const FpGuard&) = delete;
  FpGuard(FpGuard&&) = delete;
  FpGuard& operator=(FpGuard&&) = delete;

 private:
  std::uint64_t saved_;
};

}  // namespace kerf
