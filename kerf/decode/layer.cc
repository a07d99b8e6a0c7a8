#include "kerf/decode/layer.h"

#include "kerf/base/format.h"

namespace kerf::decode {

std::string_view name(Mode mode) { return mode == Mode::ep ? "ep" : "tp"; }

op::Arithmetic arithmetic_of(checkpoint::ExpertKind kind, op::Input input) {
  if (kind == checkpoint::ExpertKind::bf16) return op::Arithmetic::bf16;
  return input == op::Input::nvfp4 ? op::Arithmetic::w4a4 : op::Arithmetic::w4a16;
}

layout::Nvfp4View Layer::nvfp4() const {
  if (const auto* owned = std::get_if<layout::Nvfp4Experts>(&stock)) return owned->view();
  if (const auto* adopted = std::get_if<layout::Nvfp4View>(&stock)) return *adopted;
  fail(ErrorKind::bug, "layer {} does not hold NVFP4 experts", index);
}

layout::Bf16View Layer::bf16() const {
  if (const auto* owned = std::get_if<layout::Bf16Experts>(&stock)) return owned->view();
  if (const auto* adopted = std::get_if<layout::Bf16View>(&stock)) return *adopted;
  fail(ErrorKind::bug, "layer {} does not hold BF16 experts", index);
}

bool Layer::adopted() const {
  return std::holds_alternative<layout::Nvfp4View>(stock) || std::holds_alternative<layout::Bf16View>(stock);
}

float Layer::input_scale() const { return (sliced ? sliced->view() : nvfp4()).a1_gscale.as<float>()[0]; }

std::int64_t Layer::expert_bytes(Mode mode) const {
  std::size_t bytes = 0;
  if (kind == checkpoint::ExpertKind::bf16) {
    const layout::Bf16View held = bf16();
    bytes = held.w13.bytes.size() + held.w2.bytes.size();
  } else {
    const layout::Nvfp4View held = sliced_in(mode) ? sliced->view() : nvfp4();
    for (const tensor::TensorView* t : {&held.w13, &held.w13_sf, &held.w2, &held.w2_sf})
      bytes += t->bytes.size();
  }
  return static_cast<std::int64_t>(bytes) / experts(mode).shape().experts;
}

}  // namespace kerf::decode
