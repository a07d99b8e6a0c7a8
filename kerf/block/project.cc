#include "kerf/block/project.h"

#include <algorithm>
#include <array>
#include <limits>

#include "kerf/base/format.h"
#include "kerf/block/internal/kernels.h"
#include "kerf/numeric/bf16.h"

namespace kerf::block {

namespace {

constexpr std::int64_t rows_a_task = 32;

void stored(float value, float& to) { to = value != value ? std::numeric_limits<float>::quiet_NaN() : value; }
void stored(float value, std::uint16_t& to) { to = numeric::f32_to_bf16(value); }

void check(const Matrix& w, std::int64_t tokens, std::size_t x, std::size_t out) {
  const std::size_t held = std::visit([](const auto& values) { return values.size(); }, w.values);
  const auto wanted = [](std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); };
  if (w.rows < 1 || w.columns < 1 || tokens < 0 || held != wanted(w.rows, w.columns) ||
      x != wanted(tokens, w.columns) || out != wanted(tokens, w.rows))
    fail(ErrorKind::bug, "projection by a [{}, {}] weight of {} values: {} tokens, {} values in, {} out",
         w.rows, w.columns, held, tokens, x, out);
}

// One weight row with all tokens, a few at a time: the row stays in the first-level cache meanwhile.
template <typename W, typename Dots, typename Out>
void project_row(const W* row, const Matrix& w, std::int64_t n, std::int64_t tokens, const std::uint16_t* x,
                 Dots dots, Out* out) {
  constexpr std::int64_t most = internal::most_tokens_a_pass;
  std::array<const std::uint16_t*, most> rows{};
  std::array<float, most> values{};
  for (std::int64_t first = 0; first < tokens; first += most) {
    const std::int64_t count = std::min(most, tokens - first);
    for (std::int64_t t = 0; t < count; ++t) rows[static_cast<std::size_t>(t)] = x + (first + t) * w.columns;
    dots(row, w.columns, rows.data(), static_cast<int>(count), values.data());
    for (std::int64_t t = 0; t < count; ++t)
      stored(values[static_cast<std::size_t>(t)], out[(first + t) * w.rows + n]);
  }
}

template <typename Out>
void project_all(const Matrix& w, std::int64_t tokens, std::span<const std::uint16_t> x,
                 const Workers& workers, std::span<Out> out) {
  check(w, tokens, x.size(), out.size());
  if (tokens == 0) return;
  const internal::Kernels& kernels = internal::best_kernels();
  const auto tasks = static_cast<std::size_t>((w.rows + rows_a_task - 1) / rows_a_task);
  workers.for_each(tasks, [&](std::size_t task, int /*worker*/) {
    const std::int64_t begin = static_cast<std::int64_t>(task) * rows_a_task;
    for (std::int64_t n = begin; n < std::min(begin + rows_a_task, w.rows); ++n) {
      if (const auto* f32 = std::get_if<0>(&w.values))
        project_row(f32->data() + n * w.columns, w, n, tokens, x.data(), kernels.dots_f32, out.data());
      else
        project_row(std::get<1>(w.values).data() + n * w.columns, w, n, tokens, x.data(), kernels.dots_bf16,
                    out.data());
    }
  });
}

}  // namespace

void project(const Matrix& weight, std::int64_t tokens, std::span<const std::uint16_t> x,
             const Workers& workers, std::span<float> out) {
  project_all(weight, tokens, x, workers, out);
}
void project(const Matrix& weight, std::int64_t tokens, std::span<const std::uint16_t> x,
             const Workers& workers, std::span<std::uint16_t> out) {
  project_all(weight, tokens, x, workers, out);
}

}  // namespace kerf::block
