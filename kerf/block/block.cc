#include "kerf/block/block.h"

#include <algorithm>

#include "kerf/base/format.h"
#include "kerf/numeric/bf16.h"

namespace kerf::block {

namespace {

std::int64_t bytes_of(const Matrix& m) {
  return m.rows * m.columns * (std::holds_alternative<std::span<const float>>(m.values) ? 4 : 2);
}

template <typename T>
std::span<T> room(const char* name, const tensor::Tensor& tensor, std::int64_t count) {
  const std::span<T> all = tensor.as<T>();
  if (std::ssize(all) < count)
    fail(ErrorKind::bug, "block: scratch {} has {} values, {} wanted", name, all.size(), count);
  return all.first(static_cast<std::size_t>(count));
}

// rows [T, H] normed in place, a row a task.
void norm_rows(const tail::RouteNorm& norm, std::int64_t tokens, std::int64_t hidden, const Workers& workers,
               const Scratch& scratch, std::span<std::uint16_t> rows) {
  const auto h = static_cast<std::size_t>(hidden);
  const auto values = room<float>("values", scratch.values, workers.size() * hidden);
  workers.for_each(static_cast<std::size_t>(tokens), [&](std::size_t t, int worker) {
    const auto row = rows.subspan(t * h, h);
    const auto normed = values.subspan(static_cast<std::size_t>(worker) * h, h);
    tail::norm_row(row, norm, normed);
    std::transform(normed.begin(), normed.end(), row.begin(), numeric::f32_to_bf16);
  });
}

}  // namespace

std::int64_t Weights::bytes() const {
  const auto vectors = static_cast<std::int64_t>(bias.size_bytes());
  if (!pool) return bytes_of(gate) + vectors;
  return bytes_of(gate) + vectors + bytes_of(pool->pre) + bytes_of(pool->post) + 2 * hidden();
}

Verdict unsupported(const Weights& w) {
  if (Verdict v = routing::unsupported(w.router)) return v;
  if (w.router.experts != w.gate.rows)
    return because(ErrorKind::bug, "block: a router of {} experts, a weight of {}", w.router.experts,
                   w.gate.rows);
  if (!w.bias.empty() && std::ssize(w.bias) != w.gate.rows)
    return because(ErrorKind::bug, "block: a bias of {} values for {} experts", w.bias.size(), w.gate.rows);
  if (!w.pool) return std::nullopt;
  const Pool& p = *w.pool;
  if (p.pre.columns != w.gate.columns || p.post.rows != w.gate.columns || p.post.columns != p.pre.rows ||
      std::ssize(p.norm.gain) != p.pre.rows)
    return because(ErrorKind::bug,
                   "block: a projection [{}, {}], a gain of {} and a projection [{}, {}] at model width {}",
                   p.pre.rows, p.pre.columns, p.norm.gain.size(), p.post.rows, p.post.columns,
                   w.gate.columns);
  return std::nullopt;
}

Scratch::Scratch(tensor::Memory& memory, const Weights& like, std::int64_t tokens, int workers) {
  using tensor::Dtype;
  logits = tensor::Tensor(memory, Dtype::f32, {tokens, like.experts()});
  if (!like.pool) return;
  pooled = tensor::Tensor(memory, Dtype::bf16, {tokens, like.hidden()});
  values = tensor::Tensor(memory, Dtype::f32, {workers, like.hidden()});
  out = tensor::Tensor(memory, Dtype::bf16, {tokens, like.model_hidden()});
}

Entered enter(const Weights& weights, std::int64_t tokens, std::span<const std::uint16_t> x,
              const Workers& workers, const Scratch& scratch) {
  const auto logits = room<float>("logits", scratch.logits, tokens * weights.experts());
  project(weights.gate, tokens, x, workers, logits);
  if (!weights.pool) return {logits, x};
  const auto rows = room<std::uint16_t>("pooled", scratch.pooled, tokens * weights.hidden());
  project(weights.pool->pre, tokens, x, workers, rows);
  norm_rows(weights.pool->norm, tokens, weights.hidden(), workers, scratch, rows);
  return {logits, rows};
}

std::span<const std::uint16_t> leave(const Weights& weights, std::int64_t tokens,
                                     std::span<const std::uint16_t> m, const Workers& workers,
                                     const Scratch& scratch) {
  if (!weights.pool) return m;
  const auto out = room<std::uint16_t>("out", scratch.out, tokens * weights.model_hidden());
  project(weights.pool->post, tokens, m, workers, out);
  return out;
}

}  // namespace kerf::block
