// How many ranks stand in a row and in a column, from what was asked for (comm/grid.h is the grid itself).
#pragma once

#include <cstdint>
#include <optional>

#pragma GCC visibility push(default)
namespace kerf::decode {

// Ranks as a grid: ep rows, that share the experts between them, of tp ranks, that share each as slices.
struct GridShape {
  std::int64_t ep = 1;
  std::int64_t tp = 1;
};

// ep x tp = ranks, ranks at least 1: what is not given follows from what is; neither: one row. Error{usage}
// with all numbers where they do not multiply.
GridShape grid_shape(std::int64_t ranks, std::optional<std::int64_t> ep, std::optional<std::int64_t> tp);

}  // namespace kerf::decode
#pragma GCC visibility pop
