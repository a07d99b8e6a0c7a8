// The grid of EP x TP ranks: who stands with whom.
#include "kerf/comm/grid.h"

#include <gtest/gtest.h>

#include "kerf/comm/local.h"

namespace kerf::comm {
namespace {

TEST(Grid, RowsAndColumns) {
  run_local(6, {}, [](Group& group) {
    const Grid grid(group, 2, 3);
    EXPECT_EQ(grid.row().size(), 3);
    EXPECT_EQ(grid.row().rank(), group.rank() % 3);
    ASSERT_NE(grid.column(), nullptr);
    EXPECT_EQ(grid.column()->size(), 2);
    EXPECT_EQ(grid.column()->rank(), group.rank() / 3);
  });
}

TEST(Grid, OneRowIsTheWholeGroup) {
  run_local(3, {}, [](Group& group) {
    const Grid grid(group, 1, 3);
    EXPECT_EQ(&grid.row(), &group);
    EXPECT_EQ(grid.column(), nullptr);
  });
}

TEST(Grid, RefusesOtherNumbersOfRanks) {
  run_local(4, {}, [](Group& group) {
    for (const auto& [ep, tp] :
         {std::pair{2, 3}, {0, 4}, {4, 0}, {-2, -2}, {8, 1}, {3, 1}, {1 << 16, 1 << 16}}) {
      const Verdict verdict = attempt([&, e = ep, t = tp] { const Grid grid(group, e, t); });
      ASSERT_TRUE(verdict.has_value());
      EXPECT_EQ(verdict->kind, ErrorKind::usage);
    }
  });
}

}  // namespace
}  // namespace kerf::comm
