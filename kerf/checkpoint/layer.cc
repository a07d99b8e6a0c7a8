#include "kerf/checkpoint/internal/layer.h"

#include <algorithm>

#include "kerf/base/format.h"
#include "kerf/checkpoint/internal/file.h"
#include "kerf/checkpoint/internal/scan.h"
#include "kerf/numeric/e4m3.h"
#include "kerf/numeric/nvfp4.h"

namespace kerf::checkpoint::internal {

std::optional<tensor::TensorView> Layer::find(std::string_view suffix) const {
  const Located* located = find_full(source_.prefix + std::string(suffix));
  if (located == nullptr) return std::nullopt;
  return source_.table.view(*located);
}

std::int64_t Layer::expert_bytes() const {
  const std::int64_t weights = 3 * source_.hidden * source_.intermediate;
  return kind_ == ExpertKind::bf16 ? weights * 2 : weights / 2 + weights / numeric::nvfp4_block;
}

void Layer::scan_block_scales(std::int64_t e, Faults& faults) const {
  expect_expert(e);
  if (kind_ != ExpertKind::nvfp4)
    fail(ErrorKind::bug, "layer {} has BF16 experts, which have no block scales", index());
  const ExpertViews views = expert(e);
  const std::array<const tensor::TensorView*, 3> scales = {&views.gate_sf, &views.up_sf, &views.down_sf};
  for (const Projection p : all_projections) {
    const tensor::TensorView& view = *scales[static_cast<std::size_t>(p)];
    if (!usable_block_scales(view.bytes)) walk_block_scales(view, p, e, faults);
  }
}

void Layer::walk_block_scales(const tensor::TensorView& view, Projection p, std::int64_t e,
                              Faults& faults) const {
  const std::string name = tensor_name(p, Part::block_scale, e);
  const auto row_bytes = static_cast<std::size_t>(view.shape[1]);
  // A damaged file may hold nothing but faults: places beyond the kept ones are not spelt out.
  const auto add = [&](const std::string& kind, std::size_t at) {
    const auto group = std::find_if(faults.groups().begin(), faults.groups().end(),
                                    [&](const FaultGroup& g) { return g.kind == kind; });
    const bool full = group != faults.groups().end() && group->first.size() >= Faults::kept;
    faults.add(kind, full ? std::string()
                          : fmt::format("layer {}, {}, expert {}, row {}, block {}, byte 0x{:02X}", index(),
                                        name, e, first_row(p) + static_cast<std::int64_t>(at / row_bytes),
                                        at % row_bytes, static_cast<unsigned>(view.bytes[at])));
  };
  const std::string nan_kind = "NaN block scale";
  const std::string negative_kind = "negative block scale";
  for (std::size_t at = 0; at < view.bytes.size(); ++at) {
    if (usable_block_scale(view.bytes[at])) continue;
    add(numeric::e4m3_is_nan(static_cast<std::uint8_t>(view.bytes[at])) ? nan_kind : negative_kind, at);
  }
}

ExpertKind Layer::kind_of_weight(const std::string& name, const Located& located) const {
  if (located.entry->dtype == tensor::Dtype::u8) return ExpertKind::nvfp4;
  if (located.entry->dtype == tensor::Dtype::bf16) return ExpertKind::bf16;
  fail(ErrorKind::checkpoint, "{}: got {} {}, wanted U8 (NVFP4, two codes a byte) or BF16",
       where(name, located), tensor::name(located.entry->dtype), located.entry->shape.text());
}

void Layer::expect(const std::string& name, const Located& located, tensor::Dtype dtype,
                   const tensor::Shape& shape) const {
  expect_dtype(name, located, dtype);
  if (located.entry->shape != shape)
    fail(ErrorKind::checkpoint,
         "{}: got {} {}, wanted {} ({} experts, hidden {}, intermediate {} of config.json)",
         where(name, located), tensor::name(dtype), located.entry->shape.text(), shape.text(),
         source_.experts, source_.hidden, source_.intermediate);
}

void Layer::expect_dtype(const std::string& name, const Located& located, tensor::Dtype dtype) const {
  if (located.entry->dtype != dtype)
    fail(ErrorKind::checkpoint, "{}: got {} {}, wanted {}", where(name, located),
         tensor::name(located.entry->dtype), located.entry->shape.text(), tensor::name(dtype));
}

std::string Layer::where(const std::string& name, const Located& located) const {
  return fmt::format("layer {}: {} in {}", index(), shown(name), source_.table.file(located));
}

void Layer::expect_expert(std::int64_t e) const {
  if (e < 0 || e >= source_.experts)
    fail(ErrorKind::usage, "layer {}: got expert {}, wanted 0 to {}", index(), e, source_.experts - 1);
}

void Layer::expect_blocks() const {
  if (source_.quant_algo.empty())
    fail(ErrorKind::checkpoint,
         "layer {} has NVFP4 experts, but neither hf_quant_config.json nor config.json gives a quant_algo",
         index());
  for (const std::int64_t width : {source_.hidden, source_.intermediate})
    if (width % numeric::nvfp4_block != 0)
      fail(ErrorKind::unsupported, "layer {}: NVFP4 experts of width {}, wanted a multiple of {}", index(),
           width, numeric::nvfp4_block);
}

}  // namespace kerf::checkpoint::internal
