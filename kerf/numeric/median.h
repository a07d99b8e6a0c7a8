// The median of measured values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace kerf::numeric {

// Of an even number of values the mean of the middle two. At least one value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace kerf::numeric
