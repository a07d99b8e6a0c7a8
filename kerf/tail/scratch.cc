// How large the tails' memory is: stated once, for those who allocate and for those who plan.
#include <algorithm>
#include <string_view>

#include "kerf/base/format.h"
#include "kerf/tail/internal/finish.h"

namespace kerf::tail {

namespace {

// Rows of width H, but for routes (elements).
struct Counts {
  std::int64_t rows, reduced, partial, values, owned, routes, sums_sent, sums_here;
};

Counts counts_of(const Extent& e) {
  if (e.tokens < 0 || e.top_k < 1 || e.hidden < 1 || e.ranks < 1 || e.workers < 1 || e.slices < 1)
    fail(ErrorKind::bug, "tail scratch for {} tokens of {} routes, width {}, {} ranks, {} workers, {} slices",
         e.tokens, e.top_k, e.hidden, e.ranks, e.workers, e.slices);
  const std::int64_t routes = e.tokens * e.top_k;
  const std::int64_t padded = internal::round_up(e.tokens, e.ranks);
  const std::int64_t share = padded / e.ranks;
  // The fast TP tail shares tokens among the ranks of a row, who are fewer than all in a grid.
  const std::int64_t reduced = e.slices > 1 ? internal::round_up(e.tokens, e.slices) / e.slices : share;
  Counts c{padded * e.top_k, reduced * e.top_k, padded, e.workers * 2, 0, 0, 0, 0};
  if (e.options.row_sum == RowSum::all_reduce) c.reduced = std::max(c.reduced, routes);
  if (e.options.kind == Kind::fast) return c;
  // A step of fewer tokens than ranks brings every rank all rows; a larger one those of its share.
  if (e.ranks > 1) c.owned = std::max(std::min(e.tokens, e.ranks - 1), share) * e.top_k;
  c.routes = 2 * routes;
  if (e.slices > 1) {
    c.sums_sent = routes;
    c.sums_here = padded * e.top_k;
  }
  return c;
}

}  // namespace

std::string_view name(Kind kind) { return kind == Kind::fast ? "fast" : "exact"; }
std::string_view name(RowSum way) {
  switch (way) {
    case RowSum::all_reduce:
      return "all-reduce";
    case RowSum::reduce_scatter:
      return "reduce-scatter";
    case RowSum::in_place:
      break;
  }
  return "in place";
}

std::int64_t scratch_bytes(const Extent& e) {
  const Counts c = counts_of(e);
  return 2 * e.hidden * (c.rows + c.reduced + c.partial + c.owned) +
         4 * e.hidden * (c.values + c.sums_sent + c.sums_here) + 4 * c.routes;
}

Scratch::Scratch(tensor::Memory& memory, const Extent& e) {
  using tensor::Dtype;
  const Counts c = counts_of(e);
  rows = tensor::Tensor(memory, Dtype::bf16, {c.rows, e.hidden});
  reduced = tensor::Tensor(memory, Dtype::bf16, {c.reduced, e.hidden});
  partial = tensor::Tensor(memory, Dtype::bf16, {c.partial, e.hidden});
  values = tensor::Tensor(memory, Dtype::f32, {c.values, e.hidden});
  if (e.options.kind == Kind::fast) return;
  owned = tensor::Tensor(memory, Dtype::bf16, {c.owned, e.hidden});
  routes = tensor::Tensor(memory, Dtype::i32, {c.routes});
  if (e.slices > 1) {
    sums_sent = tensor::Tensor(memory, Dtype::f32, {c.sums_sent, e.hidden});
    sums_here = tensor::Tensor(memory, Dtype::f32, {c.sums_here, e.hidden});
  }
  blocks = std::make_unique<Blocks>();
  blocks->sent.resize(static_cast<std::size_t>(e.ranks));
  blocks->received.resize(static_cast<std::size_t>(e.ranks));
}

}  // namespace kerf::tail
