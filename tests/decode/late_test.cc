// A rank that does not come: every collective of a runtime's build and warm-up gives up in time and names the
// rank and what was awaited, in the whole group and in the parts of a grid.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "kerf/base/format.h"
#include "kerf/comm/grid.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/forwarding_group.h"
#include "tests/decode/support.h"
#include "tests/support/test_env.h"

namespace kerf::test {
namespace {

using namespace std::chrono_literals;

// Calls `hook` before every collective.
class Watched final : public ForwardingGroup {
 public:
  using Hook = std::function<void(std::string_view what)>;
  Watched(comm::Group& below, Hook hook) : ForwardingGroup(below), hook_(std::move(hook)) {}

 private:
  void before(std::string_view what) override { hook_(what); }
  Hook hook_;
};

class OnehotFiles {
 public:
  OnehotFiles() { Onehot().write(dir_.path()); }
  [[nodiscard]] checkpoint::Checkpoint open() const { return checkpoint::Checkpoint::open(dir_.path()); }

 private:
  TempDir dir_;
};

// Everything that a build can exchange: expert TP, a tactic to pin, an all-reduce of its own.
void build_on(const checkpoint::Checkpoint& from, comm::Group& group) {
  decode::RuntimeOptions options;
  options.expert_tp = true;
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

// What both ranks throw where rank 1 comes to the first collective of that name only after rank 0 gave up.
std::vector<Verdict> late_at(const checkpoint::Checkpoint& from, const std::string& at) {
  std::vector<Verdict> seen(2);
  std::atomic<bool> gave_up{false};
  (void)attempt([&] {
    comm::run_local(2, {.timeout = 400ms}, [&](comm::Group& group) {
      const bool late = group.rank() == 1;
      Watched watched(group, [&](std::string_view what) {
        while (late && what == at && !gave_up) std::this_thread::sleep_for(1ms);
      });
      const auto me = static_cast<std::size_t>(group.rank());
      seen[me] = attempt([&] { build_on(from, watched); });
      if (!late) gave_up = true;
      require(seen[me]);
    });
  });
  return seen;
}

TEST(ALateRank, IsNamedAtEveryCollectiveOfABuild) {
  const OnehotFiles files;
  const checkpoint::Checkpoint from = files.open();
  const std::vector<std::string> all = collectives_of_a_build(from);
  for (const char* what : {"checking the checkpoint", "merging the ranks' faults", "loading layer 0",
                           "reshard: memory", "w13", "g2_alphas", "probing layer 0", "pinning a tactic",
                           "planning", "comparing the all-reduce", "the all-reduce", "EP tail: sum"})
    EXPECT_NE(std::ranges::find(all, what), all.end()) << what;

  constexpr std::size_t kAtOnce = 8;  // they mostly sleep
  for (std::size_t first = 0; first < all.size(); first += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, all.size() - first);
    std::vector<std::vector<Verdict>> seen(count);
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < count; ++i)
        threads.emplace_back([&, i] { seen[i] = late_at(from, all[first + i]); });
    }
    for (std::size_t i = 0; i < count; ++i) {
      const std::string wanted = fmt::format("rank 1 did not reach '{}' within 0.4 s", all[first + i]);
      for (const Verdict& v : seen[i]) {
        ASSERT_TRUE(v) << all[first + i];
        EXPECT_EQ(v->kind, ErrorKind::peer) << v->text;
        EXPECT_NE(v->text.find(wanted), std::string::npos) << v->text << "\n  wanted: " << wanted;
      }
    }
  }
}

// Two rows of two ranks, each building for itself. Rank 3 is late: rank 2, which waits for it in their row,
// says so by its number in the whole group, and the other row ends as if nothing were.
TEST(ALateRank, IsNamedInItsPartOfAGrid) {
  const OnehotFiles files;
  const checkpoint::Checkpoint from = files.open();
  for (const char* at : {"checking the checkpoint", "loading layer 0", "w13", "probing layer 0", "planning",
                         "the all-reduce", "TP tail: tokens"}) {
    std::vector<Verdict> seen(4);
    std::atomic<bool> gave_up{false};
    (void)attempt([&] {
      comm::run_local(4, {.timeout = 400ms}, [&](comm::Group& group) {
        const comm::Grid grid(group, 2, 2);
        Watched watched(grid.row(), [&](std::string_view what) {
          while (group.rank() == 3 && what == at && !gave_up) std::this_thread::sleep_for(1ms);
        });
        const auto me = static_cast<std::size_t>(group.rank());
        seen[me] = attempt([&] { build_on(from, watched); });
        if (group.rank() == 2) gave_up = true;
        require(seen[me]);
      });
    });
    const std::string wanted = fmt::format("rank 3 did not reach '{}' within 0.4 s", at);
    for (const std::size_t r : {0U, 1U}) EXPECT_FALSE(seen[r]) << at << ": " << seen[r]->text;
    for (const std::size_t r : {2U, 3U}) {
      ASSERT_TRUE(seen[r]) << at;
      EXPECT_EQ(seen[r]->kind, ErrorKind::peer);
      EXPECT_NE(seen[r]->text.find(wanted), std::string::npos) << seen[r]->text << "\n  wanted: " << wanted;
    }
  }
}

}  // namespace
}  // namespace kerf::test
