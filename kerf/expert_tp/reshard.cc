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

Slices slices_of(const layout::Nvfp4View& stock, std::int64_t tp) {
  Slices slices;
  for (std::int64_t d = 0; d < tp; ++d) {
    const auto views = layout::slice_views(stock, tp, d);
    for (std::size_t kind = 0; kind < kKinds; ++kind) slices[kind].push_back(views[kind]);
  }
  return slices;
}

void check(const layout::Nvfp4View& stock, comm::Group& group, std::int64_t num_experts) {
  Verdict mine = unsupported(stock, group.size());
  if (!mine) mine = misplaced(stock, group.rank(), group.size(), num_experts);
  require(comm::agree(group, mine, "reshard: can the experts be cut"));
  const layout::ExpertsShape shape = layout::shape_of(stock);
  const std::array<internal::Fact, 3> facts = {{{"number of experts", num_experts},
                                                {"hidden width", shape.hidden},
                                                {"intermediate width", shape.intermediate}}};
  require(internal::differing(facts, group, "reshard: shapes"));
  require(check_global_scales(stock, group));
}

void gather_scalars(const tensor::TensorView& mine, const tensor::Tensor& all, comm::Group& group,
                    const char* name) {
  group.all_gather(mine.bytes, all.bytes(), name);
}

}  // namespace

std::array<tensor::Shape, 4> final_shapes(const layout::ExpertsShape& stock, std::int64_t tp,
                                          std::int64_t num_experts) {
  require(layout::cuttable(stock.hidden, stock.intermediate, tp));
  const std::int64_t h = stock.hidden;
  const std::int64_t width = stock.intermediate / tp;
  return {tensor::Shape{num_experts, 2 * width, h / 2}, tensor::Shape{num_experts, 2 * width, h / 16},
          tensor::Shape{num_experts, h, width / 2}, tensor::Shape{num_experts, h, width / 16}};
}

Verdict unsupported(const layout::Nvfp4View& stock, std::int64_t tp) {
  if (Verdict verdict = layout::malformed(stock)) return verdict;
  const layout::ExpertsShape shape = layout::shape_of(stock);
  if (tp == 1)
    return because(ErrorKind::unsupported, "expert TP over 1 rank cuts nothing; legal tp: {}",
                   fmt::join(layout::legal_tp(shape.intermediate), ", "));
  return layout::cuttable(shape.hidden, shape.intermediate, tp);
}

layout::Nvfp4Experts reshard(const layout::Nvfp4View& stock, comm::Group& group, std::int64_t num_experts,
                             tensor::Memory& memory) {
  check(stock, group, num_experts);
  const layout::ExpertsShape shape = layout::shape_of(stock);

  // Everything is allocated before the first exchange: a rank without memory refuses while all can still
  // hear it.
  std::optional<layout::Nvfp4Experts> sliced;
  Slices slices;
  comm::agreed(group, "reshard: memory", [&] {
    slices = slices_of(stock, group.size());
    sliced.emplace(memory, layout::ExpertsShape{num_experts, shape.hidden, shape.intermediate / group.size()},
                   0);
  });

  // What comes from rank s is its experts' slice, in order: all together, experts in global order.
  const std::array<const tensor::Tensor*, kKinds> targets = {&sliced->w13, &sliced->w13_sf, &sliced->w2,
                                                             &sliced->w2_sf};
  for (std::size_t kind = 0; kind < kKinds; ++kind)
    comm::all_to_all(group, slices[kind], targets[kind]->bytes(), layout::nvfp4_kind_names[kind]);
  gather_scalars(stock.g1_alphas, sliced->g1_alphas, group, "g1_alphas");
  gather_scalars(stock.g1_scale_c, sliced->g1_scale_c, group, "g1_scale_c");
  gather_scalars(stock.g2_alphas, sliced->g2_alphas, group, "g2_alphas");
  std::copy(stock.a1_gscale.bytes.begin(), stock.a1_gscale.bytes.end(), sliced->a1_gscale.bytes().begin());
  std::copy(stock.a2_gscale.bytes.begin(), stock.a2_gscale.bytes.end(), sliced->a2_gscale.bytes().begin());
  return std::move(*sliced);
}

}  // namespace kerf::expert_tp
