// A rank that does not come: every collective of a runtime's build and warm-up gives up in time and names the
// rank and what was awaited, in the whole group and in the parts of a grid.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "kerf/base/format.h"
#include "kerf/comm/grid.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/support.h"
#include "tests/decode/watched_group.h"
#include "tests/support/test_env.h"

namespace kerf::test {
namespace {

using namespace std::chrono_literals;

class OnehotFiles {
 public:
  OnehotFiles() { Onehot().write(dir_.path()); }
  [[nodiscard]] checkpoint::Checkpoint open() const { return checkpoint::Checkpoint::open(dir_.path()); }

 private:
  TempDir dir_;
};

// Everything that a build can exchange: expert TP, a tactic to pin, an all-reduce of its own, a block.
void build_on(const checkpoint::Checkpoint& from, comm::Group& group) {
  decode::RuntimeOptions options;
  options.expert_tp = true;
  options.block = decode::BlockKind::qwen3_moe;
  options.preferred = {{8, 0}};
  options.all_reduce.model_width = 96;
  options.all_reduce.own_step_tps = {2};
  Checked checked(group.rank());
  decode::Meter meter(checked.memory);
  decode::Runtime::build(from, options, {group, meter, Workers(1), {}}).warm_up();
}

std::vector<std::string> collectives_of_a_build(const checkpoint::Checkpoint& from) {
  std::vector<std::string> seen;
  comm::run_local(2, {}, [&](comm::Group& group) {
    Watched watched(group, [&](std::string_view what) {
      if (group.rank() == 0 && std::ranges::find(seen, what) == seen.end()) seen.emplace_back(what);
    });
    build_on(from, watched);
  });
  return seen;
}

constexpr auto kTimeout = 1s;
constexpr const char* kWithin = "within 1 s";

// What each rank of one group that is split into `rows` rows of two throws, where the last rank comes to the
// first collective of that name only after its peer gave up. Each row builds for itself.
std::vector<Verdict> late_at(const checkpoint::Checkpoint& from, const std::string& at, int rows) {
  std::vector<Verdict> seen(static_cast<std::size_t>(2 * rows));
  std::atomic<bool> gave_up{false};
  (void)attempt([&] {
    comm::run_local(2 * rows, {.timeout = kTimeout}, [&](comm::Group& group) {
      const comm::Grid grid(group, rows, 2);
      const bool late = group.rank() == group.size() - 1;
      Watched watched(grid.row(), [&](std::string_view what) {
        while (late && what == at && !gave_up) std::this_thread::sleep_for(1ms);
      });
      const auto me = static_cast<std::size_t>(group.rank());
      seen[me] = attempt([&] { build_on(from, watched); });
      if (group.rank() == group.size() - 2) gave_up = true;
      require(seen[me]);
    });
  });
  return seen;
}

// late_at() for each name, several at once: the ranks mostly sleep.
std::vector<std::vector<Verdict>> late_at_each(const checkpoint::Checkpoint& from,
                                               const std::vector<std::string>& names, int rows) {
  constexpr std::size_t kAtOnce = 10;
  std::vector<std::vector<Verdict>> seen(names.size());
  for (std::size_t first = 0; first < names.size(); first += kAtOnce) {
    std::vector<std::jthread> threads;
    for (std::size_t i = first; i < std::min(first + kAtOnce, names.size()); ++i)
      threads.emplace_back([&, i] { seen[i] = late_at(from, names[i], rows); });
  }
  return seen;
}

// Both ranks of the last row say that the last rank did not come.
void expect_named(const std::vector<Verdict>& seen, const std::string& at) {
  const std::size_t last = seen.size() - 1;
  const std::string wanted = fmt::format("rank {} did not reach '{}' {}", last, at, kWithin);
  for (const std::size_t r : {last - 1, last}) {
    ASSERT_TRUE(seen[r]) << at;
    EXPECT_EQ(seen[r]->kind, ErrorKind::peer) << seen[r]->text;
    EXPECT_NE(seen[r]->text.find(wanted), std::string::npos) << seen[r]->text << "\n  wanted: " << wanted;
  }
}

TEST(ALateRank, IsNamedAtEveryCollectiveOfABuild) {
  const OnehotFiles files;
  const checkpoint::Checkpoint from = files.open();
  const std::vector<std::string> all = collectives_of_a_build(from);
  for (const char* what :
       {"checking the checkpoint", "merging the ranks' faults", "loading layer 0", "reshard: memory", "w13",
        "g2_alphas", "probing layer 0", "pinning a tactic", "planning",
        "building the blocks around the experts", "planning the blocks", "making the warm-up's rows",
        "comparing the all-reduce", "the all-reduce", "EP tail: sum"})
    EXPECT_NE(std::ranges::find(all, what), all.end()) << what;
  const auto seen = late_at_each(from, all, 1);
  for (std::size_t i = 0; i < all.size(); ++i) expect_named(seen[i], all[i]);
}

// Rank 3 is late in the second of two rows: rank 2 calls it by its number in the whole group, and the first
// row ends as if nothing were.
TEST(ALateRank, IsNamedInItsPartOfAGrid) {
  const OnehotFiles files;
  const checkpoint::Checkpoint from = files.open();
  const std::vector<std::string> some = {"checking the checkpoint", "loading layer 0", "w13",
                                         "probing layer 0",         "planning",        "the all-reduce",
                                         "TP tail: sum of rows"};
  const auto seen = late_at_each(from, some, 2);
  for (std::size_t i = 0; i < some.size(); ++i) {
    expect_named(seen[i], some[i]);
    for (const std::size_t r : {0U, 1U}) EXPECT_FALSE(seen[i][r]) << some[i] << ": " << seen[i][r]->text;
  }
}

}  // namespace
}  // namespace kerf::test
