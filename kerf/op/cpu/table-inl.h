// The generic kernels over one target's pieces, and the table of them all. Included after those pieces, once
// per target: on purpose without a guard.

// clang-format off
#include "kerf/numeric/lanes-inl.h"
#include "kerf/op/cpu/expand-inl.h"
#include "kerf/op/cpu/nvfp4_dot-inl.h"
#include "kerf/op/cpu/bf16_dot-inl.h"
#include "kerf/op/cpu/gated-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kerf::op::cpu::HWY_NAMESPACE {
namespace {  // two files have a table of the same target

const Kernels& Table() {
  static constexpr Kernels table = {
      kIsa,       kOrder,   Expand,  DotsByCount<Chunk>, DotsByCount<WideChunk>, DotsBf16,
      Requantise, Activate, WriteRow};
  return table;
}

}  // namespace
}  // namespace kerf::op::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
