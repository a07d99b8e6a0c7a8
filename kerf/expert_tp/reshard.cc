#include <algorithm>
#include <optional>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"
#include "kerf/expert_tp/expert_tp.h"
#include "kerf/expert_tp/internal/same.h"
#include "kerf/layout/geometry.h"
#include "kerf/layout/slice.h"

namespace kerf::expert_tp {

namespace {

constexpr std::size_t kKinds = layout::nvfp4_kind_names.size();

// What this rank sends of one tensor kind: [kind][d] goes to rank d, slice d of each expert held here.
using Slices = std::array<std::vector<tensor::StridedBytes>, kKinds>;

Slices slices_of(const layout::Nvfp4View& stock, std::int64_t tp, bool uneven) {
  Slices slices;
  for (std::int64_t d = 0; d < tp; ++d) {
    const auto views = layout::slice_views(stock, tp, d, uneven);
    for (std::size_t kind = 0; kind < kKinds; ++kind) slices[kind].push_back(views[kind]);
  }
  return slices;
}

// The group was cut into rows of equal size, of ranks that follow each other.
void check_rows(const Ranks& ranks) {
  if (ranks.all.size() % ranks.row.size() != 0 || ranks.all.rank() % ranks.row.size() != ranks.row.rank())
    fail(ErrorKind::bug, "rank {} of {} is rank {} of its row of {}", ranks.all.rank(), ranks.all.size(),
         ranks.row.rank(), ranks.row.size());
}

void check(const layout::Nvfp4View& stock, const Ranks& ranks, std::int64_t num_experts, bool uneven) {
  Verdict mine = attempt([&] { check_rows(ranks); });
  if (!mine) mine = unsupported(stock, ranks.row.size(), uneven);
  if (!mine) mine = misplaced(stock, ranks.all.rank(), ranks.all.size(), num_experts);
  require(comm::agree(ranks.all, mine, "reshard: can the experts be cut"));
  const layout::ExpertsShape shape = layout::shape_of(stock);
  const std::array<internal::Fact, 5> facts = {{{"number of experts", num_experts},
                                                {"hidden width", shape.hidden},
                                                {"intermediate width", shape.intermediate},
                                                {"size of a row", ranks.row.size()},
                                                {"leave for uneven slices", uneven ? 1 : 0}}};
  require(internal::differing(facts, ranks.all, "reshard: shapes"));
  require(check_global_scales(stock, ranks.all));
}

void gather_scalars(const tensor::TensorView& mine, const tensor::Tensor& all, comm::Group& group,
                    const char* name) {
  group.all_gather(mine.bytes, all.bytes(), name);
}

}  // namespace

std::array<tensor::Shape, 4> final_shapes(const layout::ExpertsShape& stock, std::int64_t tp,
                                          std::int64_t experts, std::int64_t part, bool uneven) {
  require(layout::cuttable(stock.hidden, stock.intermediate, tp, {uneven, false}));
  const std::int64_t h = stock.hidden;
  const std::int64_t width = layout::slice_of(stock.intermediate, tp, part).width;
  return {tensor::Shape{experts, 2 * width, h / 2}, tensor::Shape{experts, 2 * width, h / 16},
          tensor::Shape{experts, h, width / 2}, tensor::Shape{experts, h, width / 16}};
}

Verdict unsupported(const layout::Nvfp4View& stock, std::int64_t tp, bool uneven) {
  if (Verdict verdict = layout::malformed(stock)) return verdict;
  const layout::ExpertsShape shape = layout::shape_of(stock);
  if (tp == 1)
    return because(ErrorKind::unsupported, "expert TP over 1 rank cuts nothing; legal tp: {}",
                   fmt::join(layout::legal_tp(shape.intermediate), ", "));
  return layout::cuttable(shape.hidden, shape.intermediate, tp, {uneven, false});
}

layout::Nvfp4Experts reshard(const layout::Nvfp4View& stock, const Ranks& ranks, std::int64_t num_experts,
                             tensor::Memory& memory, bool uneven, tensor::Memory* scalars) {
  check(stock, ranks, num_experts, uneven);
  const layout::ExpertsShape shape = layout::shape_of(stock);
  comm::Group& row = ranks.row;

  // Everything is allocated before the first exchange: a rank without memory refuses while all can still
  // hear it.
  std::optional<layout::Nvfp4Experts> sliced;
  Slices slices;
  comm::agreed(ranks.all, "reshard: memory", [&] {
    slices = slices_of(stock, row.size(), uneven);
    const std::int64_t width = layout::slice_of(shape.intermediate, row.size(), row.rank()).width;
    const std::int64_t experts = num_experts / ranks.rows();
    sliced.emplace(memory, scalars != nullptr ? *scalars : memory,
                   layout::ExpertsShape{experts, shape.hidden, width}, ranks.row_index() * experts);
  });

  // What comes from rank s is its experts' slice, in order: all together, the row's experts in global order.
  // Slices of another rank may be of another width, but all that come here are of one.
  const std::array<const tensor::Tensor*, kKinds> targets = {&sliced->w13, &sliced->w13_sf, &sliced->w2,
                                                             &sliced->w2_sf};
  for (std::size_t kind = 0; kind < kKinds; ++kind)
    comm::all_to_all(row, slices[kind], targets[kind]->bytes(), layout::nvfp4_kind_names[kind]);
  gather_scalars(stock.g1_alphas, sliced->g1_alphas, row, "g1_alphas");
  gather_scalars(stock.g1_scale_c, sliced->g1_scale_c, row, "g1_scale_c");
  gather_scalars(stock.g2_alphas, sliced->g2_alphas, row, "g2_alphas");
  std::copy(stock.a1_gscale.bytes.begin(), stock.a1_gscale.bytes.end(), sliced->a1_gscale.bytes().begin());
  std::copy(stock.a2_gscale.bytes.begin(), stock.a2_gscale.bytes.end(), sliced->a2_gscale.bytes().begin());
  return std::move(*sliced);
}

}  // namespace kerf::expert_tp
