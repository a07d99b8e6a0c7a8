// The f32 functions whose bits must not depend on where they run, for host and device.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kerf/numeric/bf16.h"
#include "kerf/numeric/e2m1.h"
#include "kerf/numeric/e4m3.h"
#include "kerf/numeric/exp.h"

namespace kerf::test {

enum class Numeric : std::uint8_t {
  exp,
  sigmoid,
  quotient,
  root,
  product,
  sum,
  fused,
  bf16,
  e4m3,
  e2m1,
  from_e4m3
};

// The result's bits, with one NaN.
constexpr std::uint32_t evaluate(Numeric function, float x, float y) {
  const auto bits = [](float v) { return v == v ? std::bit_cast<std::uint32_t>(v) : 0x7FFFFFFFU; };
  switch (function) {
    case Numeric::exp:
      return bits(numeric::exp_f32(x));
    case Numeric::sigmoid:
      return bits(numeric::sigmoid_f32(x));
    case Numeric::quotient:
      return bits(x / y);
    case Numeric::root:
      return bits(std::sqrt(x));
    case Numeric::product:
      return bits(x * y);
    case Numeric::sum:
      return bits(x * y + x);  // two roundings
    case Numeric::fused:
      return bits(std::fma(x, y, x));
    case Numeric::bf16:
      return numeric::f32_to_bf16(x);
    case Numeric::e4m3:
      return numeric::f32_to_e4m3(x);
    case Numeric::e2m1:
      return numeric::f32_to_e2m1(x);
    case Numeric::from_e4m3:
      return bits(numeric::e4m3_to_f32(static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(x) & 255U)));
  }
  return 0;
}

// evaluate() of each pair, on the device. Spans of host memory, of the same size.
std::vector<std::uint32_t> evaluate_on_device(Numeric function, std::span<const float> x,
                                              std::span<const float> y);

}  // namespace kerf::test
