#include "kerf/decode/grid_shape.h"

#include <utility>

#include "kerf/base/format.h"
#include "kerf/layout/geometry.h"

namespace kerf::decode {

GridShape grid_shape(std::int64_t ranks, std::optional<std::int64_t> ep, std::optional<std::int64_t> tp) {
  if (ranks < 1) fail(ErrorKind::usage, "{} ranks; wanted 1 or more", ranks);
  const auto in_words = [&] { return ranks == 1 ? std::string("1 rank") : fmt::format("{} ranks", ranks); };
  for (const auto& [name, value] : {std::pair{"ep", ep}, std::pair{"tp", tp}})
    if (value && (*value < 1 || ranks % *value != 0))
      fail(ErrorKind::usage, "{} {} does not divide {}; wanted one of: {}", name, *value, in_words(),
           fmt::join(layout::legal_ep(ranks), ", "));
  const std::int64_t rows = ep.value_or(tp ? ranks / *tp : 1);
  const std::int64_t slices = tp.value_or(ranks / rows);
  if (rows != ranks / slices)
    fail(ErrorKind::usage, "ep {} x tp {} is not {}; wanted ep {} or tp {}", rows, slices, in_words(),
         ranks / slices, ranks / rows);
  return {rows, slices};
}

}  // namespace kerf::decode
