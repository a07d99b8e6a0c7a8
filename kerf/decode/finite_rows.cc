#include "kerf/decode/finite_rows.h"

#include <algorithm>

#include "kerf/base/format.h"
#include "kerf/numeric/bf16.h"

namespace kerf::decode {

std::string not_finite_text(std::span<const std::uint16_t> rows, std::int64_t hidden) {
  const auto width = static_cast<std::size_t>(hidden);
  std::size_t bad = 0;
  for (std::size_t t = 0; t < rows.size(); t += width)
    bad += std::ranges::all_of(rows.subspan(t, width), numeric::bf16_is_finite) ? 0U : 1U;
  if (bad == 0) return {};
  return fmt::format("{} of {} output rows are not finite (NaN or infinity in them)", bad,
                     rows.size() / width);
}

}  // namespace kerf::decode
