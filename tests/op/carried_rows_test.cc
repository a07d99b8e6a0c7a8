// Every backend that runs here against rows that were computed elsewhere.
#include "tests/support/carried_rows.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "tests/support/experts.h"

namespace kerf::op {
namespace {

std::vector<std::uint16_t> rows_of(const Backend& backend, const test::CarriedCase& c) {
  tensor::HostMemory memory;
  const auto experts = test::random_nvfp4(memory, c.shape, 0, c.seed);
  const auto bound = backend.bind(Nvfp4Args{experts.view(), c.shape.experts, c.top_k, Input::nvfp4, {}});
  const test::StepData step =
      test::random_step(c.tokens, c.top_k, c.shape.experts, c.shape.hidden, c.seed + 1);
  return test::run_op(*bound, step).rows;
}

TEST(CarriedRows, EveryBackendHasThem) {
  for (const std::string_view name : backend_names()) {
    if (name == "cuda") continue;  // W4a4OnGpu looks at them
    for (std::size_t i = 0; i < test::carried_cases.size(); ++i) {
      const std::span<const std::uint16_t> want = test::carried_rows(i);
      EXPECT_EQ(rows_of(backend(name), test::carried_cases[i]),
                std::vector<std::uint16_t>(want.begin(), want.end()))
          << name << ", case " << i;
    }
  }
}

// How tests/support/carried_rows.inc was written: --gtest_also_run_disabled_tests, output into that file.
TEST(CarriedRows, DISABLED_Write) {
  for (const test::CarriedCase& c : test::carried_cases) {
    int column = 0;
    for (const std::uint16_t value : rows_of(backend("cpu"), c))
      std::printf("0x%04X,%s", value, ++column % 16 == 0 ? "\n" : " ");
  }
}

}  // namespace
}  // namespace kerf::op
