// The tail: from unfinalised rows to [T, H]. Each row is normed if the model has a per-route RMSNorm; then a
// token's rows are weighted and added up, from k = 0 on, by fma in f32 and with one rounding to bf16. Routes
// that a rank does not have it passes over. docs/numerics.md has the exact arithmetic.
//   fast, EP: every rank does this for the routes it has, and then the ranks' [T, H] are added.
//   fast, TP: a rank's rows are K-partials in bf16, so the ranks' rows of each route are added before
//             anything else.
//   exact:    every route's row is made as one rank with whole experts would make it, and one sum goes over
//             all of a token's routes: the same bits on one rank, EP n and TP n.
//
// All of it is in the host's memory. A tail throws Error{bug}, on its rank alone, where spans, map entries or
// the scratch do not fit (weights and map [T, K], out [T, H], gain [H], a scratch that was made for such a
// step or a larger one), and the group's errors. It allocates nothing of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kerf/base/threads.h"
#include "kerf/comm/group.h"
#include "kerf/op/op.h"

#pragma GCC visibility push(default)
namespace kerf::tail {

// Per-route RMSNorm. gain: the effective gain in bf16 (raw bits) [H], or empty for none.
struct RouteNorm {
  std::vector<std::uint16_t> gain;
  // t = bf16(row * gain), then the norm; otherwise the norm, then * gain in f32
  bool gain_before_norm = true;
  float eps = 1e-8F;  // added to the mean of the squares
};

// The effective gain bf16(center + w), raw bits [H], of a stored offset w (raw bf16 bits) [H].
std::vector<std::uint16_t> effective_gain(std::span<const std::uint16_t> w, float center);

// Norms one row of H bf16 values (raw bits) into H of f32: y = t / sqrt(mean of t^2 + eps) (canonical:
// power-of-two scaled, 256 partial sums, IEEE sqrt and division). Error{bug} for a gain or an output of
// another size.
void norm_row(std::span<const std::uint16_t> row, const RouteNorm& norm, std::span<float> out);

// Which of the two.
enum class Kind : std::uint8_t { fast, exact };
std::string_view name(Kind kind);  // "fast", "exact"

// How the fast TP tail adds the ranks' rows; the same bits either way where the group is ordered().
//   all_reduce      every rank gets the sums of all rows, and ends all tokens itself
//   reduce_scatter  a rank gets the sums of its own tokens' rows, ends these and hands them round; where
//                   there are fewer tokens than ranks it owns routes, and the summed rows are handed round
//   in_place        a rank adds, for its part of the tokens (or of their columns), the ranks' rows where they
//                   lie, ends them and writes them to all; where the ranks do not share memory or are more
//                   than 64, or a row must be normed whole and there are fewer tokens than ranks,
//                   reduce_scatter
enum class RowSum : std::uint8_t { all_reduce, reduce_scatter, in_place };
std::string_view name(RowSum way);  // "all-reduce", "reduce-scatter", "in place"

// What tails are prepared for.
struct Options {
  Kind kind = Kind::fast;
  RowSum row_sum = RowSum::in_place;
};

// What a scratch is for: steps of up to `tokens` tokens.
struct Extent {
  std::int64_t tokens = 0;
  std::int64_t top_k = 0;
  std::int64_t hidden = 0;
  std::int64_t ranks = 1;    // of the whole group
  std::int64_t workers = 1;  // of one rank
  std::int64_t slices = 1;   // most ranks that share an expert; 1: no expert TP
  Options options{};         // Kind::exact: for fast tails too
};

// Bytes that a Scratch allocates. Error{bug} for fewer than 0 tokens or 1 of anything else.
std::int64_t scratch_bytes(const Extent& extent);

// Memory of the tails, made once, reused by every layer. padded = T rounded up to ranks, share = padded /
// ranks.
struct Scratch {
  Scratch() = default;
  // scratch_bytes() of `memory`, which must outlive it. Error{memory}; Error{bug} as scratch_bytes().
  Scratch(tensor::Memory& memory, const Extent& extent);
  tensor::Tensor rows;  // [padded * K, H] bf16: rows in route order
  // [ceil(T / slices) * K, H] bf16, or of T / ranks where nothing is sliced; [T * K, H] at least for
  // RowSum::all_reduce
  tensor::Tensor reduced;
  tensor::Tensor partial;  // [padded, H] bf16
  tensor::Tensor values;   // [workers, 2, H] f32
  // Exact tails alone.
  tensor::Tensor owned;                 // [n * K, H] bf16: of up to n = max(share, min(T, ranks - 1)) tokens
  tensor::Tensor routes;                // [2, T * K] i32: lists of routes, places of their rows
  tensor::Tensor sums_sent, sums_here;  // [T * K, H], [padded * K, H] f32: K-partials of slices
  struct Blocks {                       // one a rank
    std::vector<tensor::StridedBytes> sent;
    std::vector<std::span<std::byte>> received;
  };
  std::unique_ptr<Blocks> blocks;
};

// Local part of the EP tail, not collective: weighted sum of the routes that are here, out [T, H] bf16 (raw
// bits). A token without local routes gets exact zeros. `rows` must be finished rows, here and for the fast
// tails.
void finalize(const op::Unfinalized& rows, const std::optional<RouteNorm>& norm, const Workers& workers,
              const Scratch& scratch, std::span<std::uint16_t> out);

// Collective tails; all ranks end with the same bits in out, [T, H] bf16 (raw bits). All ranks bring the same
// T, K, H, weights and norm; for tp_tail() also the same routes in `map`, and the same `way`. Sums over ranks
// are the group's.
void ep_tail(const op::Unfinalized& rows, const std::optional<RouteNorm>& norm, comm::Group& group,
             const Workers& workers, const Scratch& scratch, std::span<std::uint16_t> out);
void tp_tail(const op::Unfinalized& rows, const std::optional<RouteNorm>& norm, comm::Group& group,
             const Workers& workers, const Scratch& scratch, std::span<std::uint16_t> out,
             RowSum way = RowSum::in_place);

// Where the experts are: E of them, linear, over rows of ranks, whose number divides E. The ranks of a row
// hold the slices of the same experts, those of a column the same slice of different ones: rank r of the
// group is in row r / slices.
struct Where {
  comm::Group& group;             // all ranks
  comm::Group* row = nullptr;     // null: experts are whole
  comm::Group* column = nullptr;  // null: one row has all experts
  std::int64_t experts = 0;       // E
  // [E / rows] of this row's experts, where they are sliced
  std::span<const float> g2_alphas{};
};

// The exact tail, collective over all the groups. Sliced experts' rows must be sums, whole experts' finished;
// rows.ids says where each route's row is. The ranks' sums of a route go to one rank of the row, which adds
// them by the tree's rule (numeric/segment_tree.h), multiplies by g2_alpha and rounds: the row of the uncut
// expert, if numeric::slices_are_nodes(I, slices). Finished rows go to the rank that owns the token, or to
// all ranks where there are fewer tokens than ranks. All ranks end with the same bits in out, [T, H] bf16, on
// any group. The scratch is one for Kind::exact.
void exact_tail(const op::Unfinalized& rows, const Where& where, const std::optional<RouteNorm>& norm,
                const Workers& workers, const Scratch& scratch, std::span<std::uint16_t> out);

}  // namespace kerf::tail
#pragma GCC visibility pop
