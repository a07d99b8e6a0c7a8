// Compiles the vector kernels once per instruction set and lists the tables that this CPU can run.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "kerf/numeric/bf16.h"
#include "kerf/numeric/nvfp4.h"
#include "kerf/numeric/segment_tree.h"
#include "kerf/op/cpu/dotprod_kernels.h"
#include "kerf/op/cpu/kernels.h"

// Three targets have kernels: AVX2, AVX-512 together with VNNI and VBMI, and NEON on AArch64. The portable
// layer's AVX-512 target lacks VNNI and VBMI, so they are added to its compiler flags and asked for
// separately below. Targets without a fused multiply-add would need two roundings where canonical arithmetic
// has one: they run the scalar table. dotprod_kernels.cc has one more that the portable layer has no name
// for.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kerf/op/cpu/kernels.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 ",avx512vnni,avx512vbmi"
#endif

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON

HWY_BEFORE_NAMESPACE();
namespace kerf::op::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Twice each e2m1 value plus 12: never negative, so that it can be the unsigned side of a byte multiply-add.
alignas(16) inline constexpr std::uint8_t kOffsetDoubled[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                                12, 11, 10, 9,  8,  6,  4,  0};

}  // namespace kerf::op::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

// clang-format off
#if HWY_TARGET == HWY_AVX3
#include "kerf/op/cpu/avx512-inl.h"
#elif HWY_TARGET == HWY_AVX2
#include "kerf/op/cpu/avx2-inl.h"
#else
#include "kerf/op/cpu/neon-inl.h"
#include "kerf/op/cpu/neon_products-inl.h"
#endif
// After the pieces: it uses them.
#include "kerf/op/cpu/table-inl.h"
// clang-format on
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
    [[maybe_unused]] const auto here = hwy::SupportedTargets();
#if HWY_TARGETS & HWY_AVX3
    const bool bytes = __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512vbmi") != 0;
    if ((here & HWY_AVX3) != 0 && bytes) out.tables[out.count++] = &N_AVX3::Table();
#endif
#if HWY_TARGETS & HWY_AVX2
    if ((here & HWY_AVX2) != 0) out.tables[out.count++] = &N_AVX2::Table();
#endif
#if HWY_TARGETS & HWY_NEON
    if (const Kernels* dotprod = dotprod_kernels()) out.tables[out.count++] = dotprod;
    // Not asked for: what the portable layer means by it includes AES, which these kernels do without.
    out.tables[out.count++] = &N_NEON::Table();
#endif
    return out;
  }();
  return {list.tables.data(), list.count};
}

}  // namespace kerf::op::cpu

#endif  // HWY_ONCE
