// Expert tensor parallelism out of whole experts: reshard and probe, over all ranks of a group or inside each
// row of a grid (comm/grid.h). What one rank refuses all ranks of all rows refuse, with one reason and at the
// same point: nobody is stranded in a collective.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/comm/group.h"
#include "kerf/layout/experts.h"
#include "kerf/op/op.h"
#include "kerf/tensor/storage.h"

#pragma GCC visibility push(default)
namespace kerf::expert_tp {

// The ranks of a reshard. `all` hold the stock experts, linearly placed, and agree on what may be refused.
// `row`, tp of them that follow each other, hold the slices of the row's experts: E / rows of them, from
// row_index() * E / rows on. One row: all. The groups must outlive it.
struct Ranks {
  // A group alone is a grid of one row.
  // NOLINTNEXTLINE(google-explicit-constructor)
  Ranks(comm::Group& one) : all(one), row(one) {}
  // A grid: `part` is this rank's row of `whole`.
  Ranks(comm::Group& whole, comm::Group& part) : all(whole), row(part) {}

  comm::Group& all;
  comm::Group& row;

  // How many rows there are, and which is this rank's.
  [[nodiscard]] int rows() const { return all.size() / row.size(); }
  [[nodiscard]] int row_index() const { return all.rank() / row.size(); }
};

// The shapes of a rank's TP tensors: w13, w13_sf, w2, w2_sf, for `experts` experts of the width of slice
// `part`, 0 <= part < tp: [n, 2I', H/2], [n, 2I', H/16], [n, H, I'/2], [n, H, I'/16]. Stock and tp must be
// cuttable(), unevenly where that is allowed: otherwise its reason is thrown.
std::array<tensor::Shape, 4> final_shapes(const layout::ExpertsShape& stock, std::int64_t tp,
                                          std::int64_t experts, std::int64_t part = 0, bool uneven = false);

// What speaks against cutting `stock` into tp slices: the dtype or shape of one of the nine tensors (its
// name, got, expected), tp < 2 or not a divisor of I, slice % 64, H % 128 (with the legal tp); uneven: tp
// above I / 64 instead. tp < 1 is a usage error, all else unsupported. Empty: it can be cut. Local, not
// collective.
Verdict unsupported(const layout::Nvfp4View& stock, std::int64_t tp, bool uneven = false);

// Linear placement of num_experts over the group: ranks x experts a rank = num_experts, first expert = rank x
// experts a rank. The reason (unsupported; usage for E < 1) names the rank, the expert it holds and the one
// it should. Not collective, here and below.
Verdict misplaced(const layout::Nvfp4View& stock, int rank, int ranks, std::int64_t num_experts);

// The same for an explicit list of the experts that `rank` holds, in order: linear placement has experts rank
// * E / ranks onwards. The reason names the first expert that is not where it should be, and what would be
// right.
Verdict misplaced_experts(std::span<const std::int64_t> held, int rank, int ranks, std::int64_t num_experts);

// The same for all ranks at once (held[r]: what rank r holds); the reason also says which experts are held
// more than once, by nobody, or do not exist.
Verdict misplaced_experts(std::span<const std::vector<std::int64_t>> held, std::int64_t num_experts);

// Collective: compares the bits of a1_gscale and a2_gscale (F32 [1], in the host's memory) between ranks.
// Nothing where all agree; otherwise an unsupported reason (the same on every rank) with both ranks and both
// values.
Verdict check_global_scales(const layout::Nvfp4View& stock, comm::Group& group);

// Collective over all ranks: this rank's TP experts, slice row.rank() of the row's, cut from the stock of the
// row's ranks. Each tensor kind is exchanged at one go, straight into its final place, and the scalars are
// gathered; the row's experts stand in global order, E / rows of them of final_shapes(), from row_index() * E
// / rows on. Stock is left as it was. Checks and memory are agreed over all ranks, whose reason every rank
// throws: that of unsupported(), misplaced() and check_global_scales(); unsupported for widths, E or tp that
// differ between ranks; memory; bug for a row that is not one of equal rows. Then the group's errors.
// `memory` is of the kind that the group moves; `scalars`, where it is given, has the five tensors of
// scalars, which are in host memory in `stock` too. Both must outlive the result.
layout::Nvfp4Experts reshard(const layout::Nvfp4View& stock, const Ranks& ranks, std::int64_t num_experts,
                             tensor::Memory& memory, bool uneven = false, tensor::Memory* scalars = nullptr);

// One row a route: zeros where the route is not here (whatever the memory holds). And which routes are here.
struct RouteRows {
  std::vector<std::uint16_t> rows;  // [T*K, H] bf16
  std::vector<bool> local;          // [T*K]
};
// Of a call's finished rows (bf16). Error{bug} for a map that is not [T, K] or leads outside the rows.
RouteRows route_rows(const op::Unfinalized& output);

// Collective over all ranks: how far TP is from EP, as a rel L2 over all routes, sqrt(sum of (tp - ep)^2 /
// sum of ep^2), equal on every rank. A row's TP rows of a route are added by its group
// (numeric::rank_sum_bf16 where that is ordered()) and compared with its EP row by the rank that owns it;
// squares add up in f64, over rows and then ranks. 0 where everything is zero, infinity where EP alone is,
// NaN where a row holds one. A route that is not served by one row of ranks, the whole of it and no other:
// Error{probe} on every rank. Error{bug} where a rank's two outputs differ in T, K or H or are not finished
// rows, Error{unsupported} where the ranks' do; on every rank too.
double probe_rel_l2(const op::Unfinalized& ep, const op::Unfinalized& tp, const Ranks& ranks);

}  // namespace kerf::expert_tp
#pragma GCC visibility pop
