#include "kerf/decode/exact.h"

#include <vector>

#include "kerf/base/format.h"
#include "kerf/layout/geometry.h"
#include "kerf/numeric/segment_tree.h"

namespace kerf::decode {

namespace {

Verdict no_canonical_sums(std::int64_t layer) {
  return because(ErrorKind::unsupported,
                 "layer {}: exact tails of sliced experts need canonical sums, which only quantised rows "
                 "(W4A4) have, and here rows are bf16 (W4A16); EP is exact on any number of ranks",
                 layer);
}

}  // namespace

Verdict exact_refused(std::int64_t intermediate, std::int64_t slices) {
  if (slices < 1) return because(ErrorKind::usage, "{} slices, wanted 1 or more", slices);
  if (numeric::slices_are_nodes(intermediate, slices)) return std::nullopt;
  std::vector<std::int64_t> legal = layout::legal_tp(intermediate);
  std::erase_if(legal, [&](std::int64_t n) { return !numeric::slices_are_nodes(intermediate, n); });
  return because(
      ErrorKind::unsupported,
      "exact tails add up slices, and {} slices of I = {} do not add up to the whole's "
      "bits: a slice must be {} times a power of two wide; exact tp: {}; EP is exact on any number "
      "of ranks",
      slices, intermediate, numeric::values_per_segment, fmt::join(legal, ", "));
}

Verdict exact_refused(const checkpoint::Checkpoint& from, std::span<const std::int64_t> layers,
                      op::Input input, std::int64_t slices, const layout::Fit& fit) {
  if (slices == 1) return std::nullopt;
  bool cut = false;
  for (const std::int64_t index : layers) {
    const checkpoint::MoeLayer& layer = from.layer(index);
    if (layer.kind() != checkpoint::ExpertKind::nvfp4) continue;
    cut = true;
    if (input == op::Input::bf16 || layer.weight_only()) return no_canonical_sums(index);
  }
  return cut ? exact_refused(layout::converted_width(from.config().intermediate, slices, fit), slices)
             : std::nullopt;
}

Verdict exact_refused(std::span<const Layer> layers, std::int64_t slices) {
  if (slices == 1) return std::nullopt;
  for (const Layer& layer : layers) {
    if (layer.kind != checkpoint::ExpertKind::nvfp4) continue;
    if (layer.input == op::Input::bf16) return no_canonical_sums(layer.index);
    if (Verdict v = exact_refused(layer.width(), slices)) return v;
  }
  return std::nullopt;
}

}  // namespace kerf::decode
