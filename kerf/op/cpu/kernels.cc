// Compiles the vector kernels once per instruction set and lists the tables that this CPU can run.
#include <array>
#include <cstdint>
#include <limits>

#include "kerf/numeric/bf16.h"
#include "kerf/numeric/nvfp4.h"
#include "kerf/numeric/segment_tree.h"
#include "kerf/op/cpu/kernels.h"

// Two targets have kernels: AVX2, and AVX-512 together with VNNI and VBMI. The portable layer's AVX-512
// target lacks the latter two, so they are added to its compiler flags and asked for separately below.
// Targets without a fused multiply-add would need two roundings where canonical arithmetic has one: they run
// the scalar table.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kerf/op/cpu/kernels.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 ",avx512vnni,avx512vbmi"
#endif

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#include "kerf/op/cpu/byte_dot-inl.h"
// After it: they use its order of lanes.
#include "kerf/op/cpu/gated-inl.h"
// clang-format off
#include "kerf/op/cpu/float_dot-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kerf::op::cpu::HWY_NAMESPACE {

const Kernels& Table() {
  static constexpr Kernels table = {kIsa, kOrder, DotsNvfp4, DotsW4a16, DotsBf16, Requantise, Activate};
  return table;
}

}  // namespace kerf::op::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE

namespace kerf::op::cpu {

std::span<const Kernels* const> vector_kernels() {
  struct List {
    std::array<const Kernels*, 2> tables{};
    std::size_t count = 0;
  };
  static const List list = [] {
    List out;
    const auto here = hwy::SupportedTargets();
#if HWY_TARGETS & HWY_AVX3
    const bool bytes = __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512vbmi") != 0;
    if ((here & HWY_AVX3) != 0 && bytes) out.tables[out.count++] = &N_AVX3::Table();
#endif
#if HWY_TARGETS & HWY_AVX2
    if ((here & HWY_AVX2) != 0) out.tables[out.count++] = &N_AVX2::Table();
#endif
    return out;
  }();
  return {list.tables.data(), list.count};
}

}  // namespace kerf::op::cpu

#endif  // HWY_ONCE
