// Rows times a weight, in one order on every machine: y[t, n] is the f32 dot of x[t] and w[n] by 256 partial
// sums, p_m = fma(w_h, x_h, p_m) over h = m, m + 256, ... ascending from +0, which are then halved (p_m +=
// p_{m+128}, then 64, ... 1). So instruction set, number of threads, rank and the other tokens of the step
// make no difference to a bit. A NaN comes out as the one quiet NaN.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "kerf/base/threads.h"

#pragma GCC visibility push(default)
namespace kerf::block {

// [rows, columns], row-major, f32 or bf16 (raw bits); somebody else's.
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::variant<std::span<const float>, std::span<const std::uint16_t>> values;
};

// x [T, columns] bf16 -> out [T, rows], as f32 or rounded once to bf16, T = `tokens`. Each weight row is read
// once and serves all tokens. Error{bug} where sizes do not fit, before anything is written. Allocates
// nothing.
void project(const Matrix& weight, std::int64_t tokens, std::span<const std::uint16_t> x,
             const Workers& workers, std::span<float> out);
void project(const Matrix& weight, std::int64_t tokens, std::span<const std::uint16_t> x,
             const Workers& workers, std::span<std::uint16_t> out);

}  // namespace kerf::block
#pragma GCC visibility pop
