// splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014, with the constants of
// Vigna's splitmix64.c) by counter, and a bell-shaped integer from one of its words. Integer arithmetic
// alone: what is made from it has the same bits on every machine.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace kerf::numeric {

// Value i of the stream is what splitmix64 yields at its (i + 1)-th call from this state; it does not need
// the values before it, so any thread can make any part.
class SplitMix {
 public:
  // The stream of one seed.
  explicit constexpr SplitMix(std::uint64_t state) : state_(state) {}

  // Its number i.
  [[nodiscard]] constexpr std::uint64_t operator[](std::uint64_t i) const {
    std::uint64_t z = state_ + (i + 1) * 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

// A word is taken as four 16-bit numbers; their sum less its mean: an integer in [-131070, 131070],
// bell-shaped, with standard deviation 2^16 / sqrt(3), which is bell_deviation to the nearest integer.
constexpr std::int32_t bell(std::uint64_t word) {
  return static_cast<std::int32_t>((word & 0xFFFFU) + ((word >> 16) & 0xFFFFU) + ((word >> 32) & 0xFFFFU) +
                                   (word >> 48)) -
         131070;
}
inline constexpr float bell_deviation = 37837.0F;

}  // namespace kerf::numeric
#pragma GCC visibility pop
