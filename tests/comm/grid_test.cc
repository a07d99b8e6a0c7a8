// The grid of EP x TP ranks: who stands with whom.
#include "kerf/comm/grid.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "kerf/comm/agree.h"
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

// A reason that one rank has in its row reaches that row, with its number in the whole group; the other row
// agrees that there is none.
TEST(Grid, AReasonStaysInItsRowAndNamesTheRankOfTheWhole) {
  std::vector<Verdict> seen(6);
  run_local(6, {}, [&](Group& group) {
    const Grid grid(group, 2, 3);
    EXPECT_EQ(grid.row().number(grid.row().rank()), group.rank());
    EXPECT_EQ(grid.column()->number(grid.column()->rank()), group.rank());
    const Verdict mine =
        group.rank() == 4 ? Verdict(Reason{ErrorKind::memory, "no room for slices"}) : std::nullopt;
    seen[static_cast<std::size_t>(group.rank())] = agree(grid.row(), mine, "checks");
    group.barrier("the whole group goes on");
  });
  for (const std::size_t r : {0U, 1U, 2U}) EXPECT_FALSE(seen[r]);
  for (const std::size_t r : {3U, 4U, 5U})
    EXPECT_EQ(seen[r], (Reason{ErrorKind::memory, "rank 4: no room for slices"}));
}

// A rank that does not come to its row is named by its number in the whole group, and the other row goes on;
// nor does anybody wait for ever for one that does not come to be placed.
TEST(Grid, ALateRankIsNamedInItsRowAndColumn) {
  const auto texts = [](const std::function<void(Group&, const Grid&)>& body) {
    std::vector<std::string> out(4);
    (void)attempt([&] {
      run_local(4, {.timeout = std::chrono::milliseconds{200}}, [&](Group& group) {
        const Grid grid(group, 2, 2);
        const Verdict v = attempt([&] { body(group, grid); });
        out[static_cast<std::size_t>(group.rank())] = v ? v->text : "";
        require(v);
      });
    });
    return out;
  };
  std::atomic<int> waiting{1};
  const auto in_row = texts([&](Group& group, const Grid& grid) {
    while (group.rank() == 3 && waiting != 0) std::this_thread::sleep_for(std::chrono::milliseconds{1});
    const Verdict v = attempt([&] { grid.row().barrier("slices"); });
    if (group.rank() == 2) --waiting;
    require(v);
  });
  const std::string late = "rank 3 did not reach 'slices' within 0.2 s";
  EXPECT_EQ(in_row, (std::vector<std::string>{"", "", late, late}));
  waiting = 1;
  const auto in_column = texts([&](Group& group, const Grid& grid) {
    while (group.rank() == 3 && waiting != 0) std::this_thread::sleep_for(std::chrono::milliseconds{1});
    const Verdict v = attempt([&] { agreed(*grid.column(), "slices", [] {}); });
    if (group.rank() == 1) --waiting;
    require(v);
  });
  EXPECT_EQ(in_column, (std::vector<std::string>{"", late, "", late}));

  std::atomic<int> unplaced{3};
  const Verdict placing = attempt([&] {
    run_local(4, {.timeout = std::chrono::milliseconds{200}}, [&](Group& group) {
      while (group.rank() == 3 && unplaced != 0) std::this_thread::sleep_for(std::chrono::milliseconds{1});
      const Verdict v = attempt([&] { const Grid grid(group, 2, 2); });
      --unplaced;
      require(v);
    });
  });
  EXPECT_EQ(placing,
            (Reason{ErrorKind::peer, "rank 3 did not reach 'splitting into rows of slices' within 0.2 s"}));
}

}  // namespace
}  // namespace kerf::comm
