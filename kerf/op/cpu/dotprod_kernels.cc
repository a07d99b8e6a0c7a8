// The NEON kernels once more, for CPUs with the dot product instructions of Armv8.2. The portable layer has
// no such target: this file compiles its NEON one with the instructions added. Only built for AArch64.
#include <sys/auxv.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "kerf/numeric/bf16.h"
#include "kerf/numeric/nvfp4.h"
#include "kerf/numeric/segment_tree.h"
#include "kerf/op/cpu/dotprod_kernels.h"

#define HWY_COMPILE_ONLY_STATIC  // one pass over this file
#include <hwy/highway.h>

#undef HWY_TARGET_STR
#define HWY_TARGET_STR "arch=armv8.2-a+dotprod+crypto"  // crypto: what the layer compiles its own target with

HWY_BEFORE_NAMESPACE();
namespace kerf::op::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

}  // namespace
}  // namespace kerf::op::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

// clang-format off
#include "kerf/op/cpu/neon-inl.h"
#include "kerf/op/cpu/neon_dotprod-inl.h"
// After the pieces: they use them.
#include "kerf/op/cpu/nvfp4_dot-inl.h"
#include "kerf/op/cpu/bf16_dot-inl.h"
#include "kerf/op/cpu/gated-inl.h"
// clang-format on

namespace kerf::op::cpu {

const Kernels* dotprod_kernels() {
  using namespace HWY_NAMESPACE;
  static constexpr Kernels table = {kIsa,       kOrder,  DotsByCount<Chunk>, DotsByCount<WideChunk>, DotsBf16,
                                    Requantise, Activate};
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0 ? &table : nullptr;
}

}  // namespace kerf::op::cpu
