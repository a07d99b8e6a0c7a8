#include "tests/support/carried_rows.h"

namespace kerf::test {
namespace {
constexpr std::uint16_t values[] = {
#include "tests/support/carried_rows.inc"
};
}  // namespace

std::span<const std::uint16_t> carried_rows(std::size_t number) {
  const auto size = [](const CarriedCase& c) {
    return static_cast<std::size_t>(c.tokens * c.top_k * c.shape.hidden);
  };
  std::size_t first = 0;
  for (std::size_t i = 0; i < number; ++i) first += size(carried_cases[i]);
  return std::span(values).subspan(first, size(carried_cases[number]));
}

}  // namespace kerf::test
