#include "kerf/decode/layer.h"

#include "kerf/base/format.h"

namespace kerf::decode {

std::string_view name(Mode mode) { return mode == Mode::ep ? "ep" : "tp"; }

const layout::Nvfp4Experts& Layer::nvfp4() const {
  const auto* experts = std::get_if<layout::Nvfp4Experts>(&stock);
  if (experts == nullptr) fail(ErrorKind::bug, "layer {} does not hold NVFP4 experts", index);
  return *experts;
}

std::int64_t Layer::expert_bytes(Mode mode) const {
  std::size_t bytes = 0;
  if (const auto* bf16 = std::get_if<layout::Bf16Experts>(&stock)) {
    bytes = bf16->w13.bytes().size() + bf16->w2.bytes().size();
  } else {
    const layout::Nvfp4Experts& held = sliced_in(mode) ? *sliced : nvfp4();
    for (const tensor::Tensor* t : {&held.w13, &held.w13_sf, &held.w2, &held.w2_sf})
      bytes += t->bytes().size();
  }
  return static_cast<std::int64_t>(bytes) / experts(mode).shape().experts;
}

}  // namespace kerf::decode
