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
// After the pieces: it uses them.
#include "kerf/op/cpu/table-inl.h"
// clang-format on

namespace kerf::op::cpu {

const Kernels* dotprod_kernels() {
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0 ? &HWY_NAMESPACE::Table() : nullptr;
}

}  // namespace kerf::op::cpu
