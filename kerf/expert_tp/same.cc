#include <bit>
#include <cstring>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"
#include "kerf/expert_tp/expert_tp.h"
#include "kerf/expert_tp/internal/same.h"

namespace kerf::expert_tp {

namespace {

// The value's bits, and whether the tensor holds exactly one.
struct ScalarBits {
  std::uint32_t bits = 0;
  std::uint32_t usable = 0;
};
ScalarBits scalar_bits(const tensor::TensorView& view) {
  ScalarBits scalar;
  if (view.bytes.size() != sizeof scalar.bits) return scalar;
  std::memcpy(&scalar.bits, view.bytes.data(), sizeof scalar.bits);
  scalar.usable = 1;
  return scalar;
}

std::string text(ScalarBits scalar) {
  if (scalar.usable == 0) return "no single f32";
  return fmt::format("{} (0x{:08X})", std::bit_cast<float>(scalar.bits), scalar.bits);
}

}  // namespace

Verdict internal::differing(std::span<const Fact> facts, comm::Group& group, std::string_view what) {
  std::vector<std::int64_t> mine;
  mine.reserve(facts.size());
  for (const Fact& fact : facts) mine.push_back(fact.value);
  const auto all = comm::gathered(group, std::span<const std::int64_t>(mine), what);
  for (std::size_t at = mine.size(); at < all.size(); ++at)
    if (const std::size_t i = at % mine.size(); all[at] != all[i])
      return because(ErrorKind::unsupported, "{} differs: rank {} has {}, rank {} has {}", facts[i].name,
                     group.number(0), all[i], group.number(static_cast<int>(at / mine.size())), all[at]);
  return std::nullopt;
}

Verdict check_global_scales(const layout::Nvfp4View& stock, comm::Group& group) {
  constexpr std::array<const char*, 2> kNames = {"a1_gscale", "a2_gscale"};
  const std::array<ScalarBits, 2> mine = {scalar_bits(stock.a1_gscale), scalar_bits(stock.a2_gscale)};
  const auto all = comm::gathered(group, std::span<const ScalarBits>(mine), "global scales");
  for (std::size_t at = 0; at < all.size(); ++at) {
    const ScalarBits first = all[at % 2];
    if (all[at].usable != 0 && all[at].bits == first.bits && first.usable != 0) continue;
    return because(ErrorKind::unsupported,
                   "{} must have the same bits on every rank: rank {} has {}, rank {} has {}", kNames[at % 2],
                   group.number(0), text(first), group.number(static_cast<int>(at / 2)), text(all[at]));
  }
  return std::nullopt;
}

}  // namespace kerf::expert_tp
