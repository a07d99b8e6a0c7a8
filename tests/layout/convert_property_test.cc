// The fast conversion on every instruction set that this processor has, and of random widths.
#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <rapidcheck/gtest.h>

#include <utility>

#include "tests/layout/layout_oracle.h"

namespace kerf::layout {
namespace {

using namespace test_support;

// The processor's best instruction set serves the other tests; here all that it has are made to serve.
TEST(ConvertNvfp4, EveryInstructionSetGivesTheSameBytes) {
  const std::int64_t every = hwy::SupportedTargets();
  int tried = 0;
  for (std::int64_t left = every; left != 0; left &= left - 1, ++tried) {
    const std::int64_t target = left & -left;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    for (const auto& [hidden, intermediate] : {std::pair<std::int64_t, std::int64_t>{128, 64}, {384, 1216}}) {
      EXPECT_TRUE(goes_and_comes_back(hidden, intermediate, 11));
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(every);
  EXPECT_GT(tried, 0);
}

RC_GTEST_PROP(ConvertNvfp4, RestoreUndoesIt, ()) {
  const std::int64_t hidden = 128 * *rc::gen::inRange(1, 6);
  const std::int64_t intermediate = 64 * *rc::gen::inRange(1, 10);
  RC_ASSERT(
      static_cast<bool>(goes_and_comes_back(hidden, intermediate, *rc::gen::arbitrary<std::uint32_t>())));
}

}  // namespace
}  // namespace kerf::layout
