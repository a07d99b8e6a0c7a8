// Expert tensor parallelism from experts that were loaded whole: reshard and probe. Every check runs on every
// rank and is agreed before any rank throws, so a refusal never leaves another rank waiting in a collective.
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

namespace kerf::expert_tp {

// The shapes of a rank's TP tensors: w13, w13_sf, w2, w2_sf, for all E experts at width I'.
std::array<tensor::Shape, 4> final_shapes(const layout::ExpertsShape& stock, std::int64_t tp,
                                          std::int64_t num_experts);

// Why `stock` cannot be cut tp ways: dtype or shape of one of the nine tensors (its name, got, expected), tp
// < 2 or not a divisor of I, slice % 64, H % 128 (with the legal tp). Nothing: it can. Local, not collective.
Verdict unsupported(const layout::Nvfp4View& stock, std::int64_t tp);

// Linear placement of num_experts over the group: ranks x experts a rank = num_experts, first expert = rank x
// experts a rank. The reason names the rank, the expert it holds and the one it should.
Verdict misplaced(const layout::Nvfp4View& stock, int rank, int ranks, std::int64_t num_experts);

// The same for an explicit list of the experts that `rank` holds, in order: linear placement has experts rank
// * E / ranks onwards. The reason names the first expert that is not where it should be, and what would be
// right.
Verdict misplaced_experts(std::span<const std::int64_t> held, int rank, int ranks, std::int64_t num_experts);

// The same for all ranks at once (held[r]: what rank r holds); the reason also says which experts are held
// more than once, by nobody, or do not exist.
Verdict misplaced_experts(std::span<const std::vector<std::int64_t>> held, std::int64_t num_experts);

// Collective: nothing where a1_gscale and a2_gscale are the same 32-bit patterns on every rank; otherwise a
// reason (the same on every rank) with both ranks and both values.
Verdict check_global_scales(const layout::Nvfp4View& stock, comm::Group& group);

// Collective over `group` (its size is tp): this rank's TP experts, cut from every rank's stock. One
// all-to-all a tensor kind into the final tensors, three all-gathers of scalars; experts in global order,
// first_expert 0. The stock tensors stay valid. Throws the agreed reason on every rank.
layout::Nvfp4Experts reshard(const layout::Nvfp4View& stock, comm::Group& group, std::int64_t num_experts,
                             tensor::Memory& memory);

// Rows of all routes in route order [T*K, H], zero where the route is not here (whatever the memory holds),
// and which routes are here.
struct RouteRows {
  std::vector<std::uint16_t> rows;
  std::vector<bool> local;
};
RouteRows route_rows(const op::Unfinalized& output);

// Collective: rel L2 of the TP rows (summed over ranks in f32, one rounding to bf16) against the EP rows that
// each rank owns, over all routes; squared sums in f64, summed over ranks; every rank returns the same value.
// Both sums zero: 0; NaN where a row holds one. A route that the TP op did not serve: Error{probe} on every
// rank.
double probe_rel_l2(const op::Unfinalized& ep, const op::Unfinalized& tp, comm::Group& group);

}  // namespace kerf::expert_tp
