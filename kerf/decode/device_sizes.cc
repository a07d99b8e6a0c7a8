#include "kerf/decode/device_sizes.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "kerf/base/function_ref.h"
#include "kerf/op/device_sizes.h"
#include "kerf/tactics/tactics.h"

namespace kerf::decode {

namespace {

using tensor::Dtype;

std::int64_t sum(std::initializer_list<std::pair<Dtype, const tensor::Shape*>> tensors) {
  std::int64_t bytes = 0;
  for (const auto& [dtype, shape] : tensors) bytes += tensor::bytes_of(dtype, *shape);
  return bytes;
}

// Every step that can come: any number of tokens, any tactic that it can run at, any kind of experts.
void for_each_step(std::span<const DeviceKind> kinds, const DeviceExtent& extent,
                   FunctionRef<void(const DeviceKind&, const routing::MetadataShape&)> visit) {
  const op::Backend& backend = op::planning_backend("cuda");
  for (std::int64_t t = 1; t <= extent.tokens; ++t) {
    const std::vector<op::Tactic> valid = backend.tactics(t);
    for (const DeviceKind& kind : kinds) {
      std::vector<op::Tactic> keys =
          tactics::tactic_keys(valid, t, extent.top_k, kind.shape.experts, PlanOptions().largest_tile);
      keys.push_back({op::tiles.front(), -1});  // without a body: the op's default
      for (const op::Tactic key : keys)
        visit(kind, {t, extent.top_k, extent.experts, 0, kind.shape.experts, key.tile});
    }
  }
}

}  // namespace

DeviceLayerShapes::DeviceLayerShapes(const DeviceExtent& e, bool quantised, bool norm, bool sliced)
    : x{e.tokens, e.hidden},
      logits{e.tokens, e.experts},
      bias{e.experts},
      ids{e.tokens, e.top_k},
      weights{e.tokens, e.top_k},
      out{e.tokens, e.hidden} {
  if (quantised) gs = {1};
  if (norm) gain = {e.hidden};
  if (sliced) g2_alphas = {e.experts};
}

std::int64_t DeviceLayerShapes::bytes() const {
  return sum({{Dtype::f32, &gs},
              {Dtype::bf16, &gain},
              {Dtype::f32, &g2_alphas},
              {Dtype::bf16, &x},
              {Dtype::f32, &logits},
              {Dtype::f32, &bias},
              {Dtype::i32, &ids},
              {Dtype::f32, &weights},
              {Dtype::bf16, &out}});
}

DeviceStepShapes::DeviceStepShapes(std::span<const DeviceKind> kinds, const DeviceExtent& e, bool with_sums)
    : codes{e.tokens, e.hidden / 2},
      scales{e.tokens, e.hidden / 16},
      ids{e.tokens, e.top_k},
      weights{e.tokens, e.top_k},
      partial{e.tokens, e.hidden} {
  StepSizes sizes;
  std::int64_t words = 0;
  std::int64_t kept_bytes = 0;
  for_each_step(kinds, e, [&](const DeviceKind& kind, const routing::MetadataShape& step) {
    sizes.cover({routing::metadata_words(step), op::gemm2_rows(step, e.hidden),
                 op::device_scratch_bytes(kind.arithmetic, kind.shape, step)});
    words = std::max(words, op::device_counter_words(kind.arithmetic, step));
    kept_bytes = std::max(kept_bytes, op::device_kept_bytes(kind.arithmetic, kind.shape, step));
  });
  metadata = {sizes.metadata_words};
  scratch = {sizes.workspace};
  counters = {words};
  kept = {kept_bytes};
  rows = {sizes.rows, e.hidden};
  if (with_sums) sums = {sizes.rows, e.hidden};
}

std::int64_t DeviceStepShapes::bytes() const {
  return sum({{Dtype::i32, &metadata},
              {Dtype::u8, &codes},
              {Dtype::f8_e4m3, &scales},
              {Dtype::i32, &ids},
              {Dtype::f32, &weights},
              {Dtype::u8, &scratch},
              {Dtype::i32, &counters},
              {Dtype::u8, &kept},
              {Dtype::bf16, &rows},
              {Dtype::f32, &sums},
              {Dtype::bf16, &partial}});
}

std::int64_t device_run_bytes(std::span<const DeviceKind> kinds, const DeviceExtent& extent, bool sums) {
  std::int64_t most = 0;
  for_each_step(kinds, extent, [&](const DeviceKind& kind, const routing::MetadataShape& step) {
    most = std::max(most, op::device_body_bytes(kind.arithmetic, kind.shape, step, sums));
  });
  return most;
}

}  // namespace kerf::decode
