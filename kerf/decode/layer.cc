#include "kerf/decode/layer.h"

#include "kerf/base/format.h"

namespace kerf::decode {

std::string_view name(Mode mode) { return mode == Mode::ep ? "ep" : "tp"; }

const layout::Nvfp4Experts& Layer::nvfp4() const {
  const auto* experts = std::get_if<layout::Nvfp4Experts>(&stock);
  if (experts == nullptr) fail(ErrorKind::bug, "layer {} does not hold NVFP4 experts", index);
  return *experts;
}

std::int64_t Layer::stock_bytes() const {
  if (const auto* experts = std::get_if<layout::Nvfp4Experts>(&stock)) return experts->bytes();
  if (const auto* experts = std::get_if<layout::Bf16Experts>(&stock)) return experts->bytes();
  return 0;
}

std::int64_t expert_bytes(checkpoint::ExpertKind kind, std::int64_t hidden, std::int64_t intermediate) {
  const std::int64_t weights = 3 * hidden * intermediate;
  return kind == checkpoint::ExpertKind::bf16 ? 2 * weights : weights / 2 + weights / 16;
}

}  // namespace kerf::decode
