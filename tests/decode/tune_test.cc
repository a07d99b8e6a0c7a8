// The tuner of stock experts: who wins, what the cache does, and that all ranks end with the same.
#include "kerf/decode/tune.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "kerf/decode/decode.h"
#include "kerf/decode/inputs.h"
#include "kerf/decode/runtime.h"
#include "kerf/tactics/cache.h"
#include "kerf/tactics/choose.h"
#include "kerf/tools/synth.h"
#include "tests/decode/forwarding_experts.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"
#include "tests/decode/warnings.h"
#include "tests/support/test_env.h"

namespace kerf::test {
namespace {

using decode::Layer;
using decode::Mode;
using decode::TunedTactic;
using decode::TuneOptions;
using decode::TuneReport;
using op::Tactic;

// Slow at some tactics.
class SlowExperts : public ForwardingExperts {
 public:
  SlowExperts(std::unique_ptr<op::RoutedExperts> below, std::vector<Tactic> slow, int ms = 10)
      : ForwardingExperts(std::move(below)), slow_(std::move(slow)), ms_(ms) {}
  void body(const op::Tokens& tokens, const routing::MetadataShape& shape, const routing::Metadata& metadata,
            Tactic tactic, const Workers& workers, std::span<std::byte> workspace,
            const op::RowBuffer& rows) const override {
    if (std::find(slow_.begin(), slow_.end(), tactic) != slow_.end())
      std::this_thread::sleep_for(std::chrono::milliseconds(ms_));
    ForwardingExperts::body(tokens, shape, metadata, tactic, workers, workspace, rows);
  }

 private:
  std::vector<Tactic> slow_;
  int ms_;
};

struct Outcome {
  TuneReport report;
  std::vector<TunedTactic> tuned;  // of the first layer's kind
  std::vector<TunedTactic> last;   // of the last layer's
};

// tune() on two ranks of 8 experts each. All ranks must end with the same.
Outcome tuned(const TuneOptions& options, std::int64_t max_tokens, Warnings& warnings,
              const std::function<void(int rank, std::vector<Layer>&)>& edit = {}, int ranks = 2,
              const std::vector<std::int64_t>& indices = {0, 1, 2}) {
  std::vector<Outcome> all(static_cast<std::size_t>(ranks));
  on_ranks({ranks, 1, warnings.log()}, [&](const decode::Rank& rank) {
    std::vector<Layer> layers =
        decode::build(small_model().open(), {indices, op::Input::nvfp4, "cpu", {}}, rank);
    if (edit) edit(rank.group.rank(), layers);
    decode::Plan plan = decode::make_plan(layers, {max_tokens, 64}, rank);
    Outcome& mine = all[static_cast<std::size_t>(rank.group.rank())];
    mine.report = decode::tune(plan, layers, "cpu", options, rank);
    mine.tuned = plan.prepared_for(layers.front(), Mode::ep).tuned;
    mine.last = plan.prepared_for(layers.back(), Mode::ep).tuned;
    // What was found is what steps run.
    for (const TunedTactic& t : mine.tuned) {
      EXPECT_EQ(plan.resolve(layers.front(), Mode::ep, t.tokens), t.tactic);
      EXPECT_EQ(plan.body_tactic(layers.front(), Mode::ep, tactics::first_in(t.tokens)), t.tactic);
    }
  });
  for (const Outcome& o : all) {
    EXPECT_EQ(o.tuned, all[0].tuned);
    EXPECT_EQ(o.last, all[0].last);
    EXPECT_EQ(o.report.timed, all[0].report.timed);
    EXPECT_EQ(o.report.cached, all[0].report.cached);
    EXPECT_EQ(o.report.left, all[0].report.left);
  }
  return all[0];
}

std::string text_in(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(Tuner, WithoutSecondsAndCacheDoesNothing) {
  Warnings warnings;
  const Outcome o = tuned({}, 8, warnings);
  EXPECT_TRUE(o.tuned.empty());
  EXPECT_EQ(o.report.timed + o.report.cached + o.report.left, 0);
}

// The time that counts is the slowest rank's: {8, 0} is slow on rank 0, {8, 1} on rank 1.
TEST(Tuner, TheFastestOnTheSlowestRankWins) {
  Warnings warnings;
  const Outcome o = tuned({0.01, {}}, 1, warnings, [](int rank, std::vector<Layer>& layers) {
    for (Layer& layer : layers) wrap<SlowExperts>(layer.ep, std::vector<Tactic>{{8, rank == 0 ? 0 : 1}});
  });
  EXPECT_EQ(o.tuned, (std::vector<TunedTactic>{{1, {8, 2}}}));
  EXPECT_EQ(o.last, o.tuned);
  EXPECT_EQ(o.report.timed, 2);  // a bucket of NVFP4 and one of BF16 experts
}

// All are slow alike: a tie, which the first of the op's list wins. Of several rounds the least counts, and
// what a tie allows is some milliseconds: a busy machine does not decide it.
TEST(Tuner, ATieGoesToTheFirstOfTheList) {
  Warnings warnings;
  const Outcome o = tuned({1.5, {}}, 1, warnings,
                          [](int, std::vector<Layer>& layers) {
                            wrap<SlowExperts>(layers[0].ep, std::vector<Tactic>{{8, 0}, {8, 1}, {8, 2}}, 120);
                          },
                          1, {0});
  EXPECT_EQ(o.tuned, (std::vector<TunedTactic>{{1, {8, 0}}}));
}

// A bucket's tactic is valid for all of its counts and has a body on every rank.
TEST(Tuner, EveryBucketGetsATacticThatRunsAllOfIt) {
  Warnings warnings;
  const Outcome o = tuned({0.01, {}}, 40, warnings, [](int rank, std::vector<Layer>& layers) {
    if (rank == 1)
      for (Layer& layer : layers)
        wrap<LackingExperts>(layer.ep, std::vector<Tactic>{{8, 0}, {8, 1}, {16, 0}});
  });
  ASSERT_EQ(o.tuned.size(), 7U);  // 1, 2, 4, 8, 16, 32, 40
  EXPECT_EQ(o.tuned.back().tokens, 40);
  for (const TunedTactic& t : o.tuned) {
    EXPECT_NE(t.tactic, (Tactic{8, 0}));
    EXPECT_NE(t.tactic, (Tactic{8, 1}));
    EXPECT_NE(t.tactic, (Tactic{16, 0}));
    if (t.tokens <= 8) {
      EXPECT_EQ(t.tactic, (Tactic{8, 2})) << t.tokens;
    }
  }
}

TEST(Tuner, RowsDoNotDependOnIt) {
  const checkpoint::Checkpoint from = small_model().open();
  std::vector<std::vector<std::uint16_t>> rows;
  for (const double seconds : {0.0, 0.05}) {
    on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
      decode::RuntimeOptions options;
      options.max_tokens = 20;
      options.tune.seconds = seconds;
      const auto runtime = decode::Runtime::build(from, options, rank);
      EXPECT_EQ(runtime.tuning().timed, seconds > 0 ? 12 : 0);  // 6 buckets of two kinds
      if (rank.group.rank() == 0) rows.emplace_back();
      for (const std::int64_t tokens : {1, 8, 20}) {
        const decode::Inputs in =
            decode::make_inputs(1, 0, tokens, checkpoint::ExpertKind::nvfp4, {16, 256, 4});
        const auto y =
            runtime.execute(0, Mode::ep, {tokens, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}});
        if (rank.group.rank() == 0) rows.back().insert(rows.back().end(), y.begin(), y.end());
      }
    });
  }
  EXPECT_EQ(rows[0], rows[1]);
}

// The report names who chose, and every kind of stock experts with its arithmetic.
TEST(Tuner, TheReportNamesIt) {
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    decode::Options options;
    options.batches = {8};
    options.repetitions = 1;
    options.seconds = 0;
    decode::Report r = decode::run(small_model().open(), options, rank);
    EXPECT_FALSE(r.tactic.tuned || r.tactic.pinned);
    EXPECT_TRUE(r.stock_tactics.tuned.empty());
    options.tune.seconds = 0.01;
    r = decode::run(small_model().open(), options, rank);
    EXPECT_TRUE(r.tactic.tuned);
    EXPECT_FALSE(r.tactic.pinned);
    ASSERT_EQ(r.stock_tactics.tuned.size(), 2U);
    std::vector<op::Arithmetic> kinds;
    for (const decode::TunedKind& kind : r.stock_tactics.tuned) {
      kinds.push_back(kind.arithmetic);
      EXPECT_EQ(kind.shape.experts, 8);
      EXPECT_EQ(kind.tactics.size(), 4U);  // 1, 2, 4, 8
    }
    EXPECT_NE(std::find(kinds.begin(), kinds.end(), op::Arithmetic::w4a4), kinds.end());
    EXPECT_NE(std::find(kinds.begin(), kinds.end(), op::Arithmetic::bf16), kinds.end());
    EXPECT_EQ(r.tactic.tile, r.stock_tactics.tuned.front().tactics.back().tactic.tile);
    EXPECT_EQ(r.tactic.config, r.stock_tactics.tuned.front().tactics.back().tactic.config);
    options.modes = {Mode::tp};  // sliced experts are not the tuner's
    EXPECT_FALSE(decode::run(small_model().open(), options, rank).tactic.tuned);
  });
}

class TunerCacheOf : public ::testing::Test {
 protected:
  // A first start that times and writes.
  Outcome first(std::int64_t max_tokens = 8) {
    Warnings warnings;
    Outcome o = tuned({0.01, path_}, max_tokens, warnings);
    EXPECT_TRUE(warnings.lines().empty());
    return o;
  }
  [[nodiscard]] static tactics::CacheSetting setting() {
    return tactics::cache_setting(op::backend("cpu"), 16, 4, 1);
  }
  static constexpr layout::ExpertsShape shape = {8, 256, 256};  // on each of two ranks

  TempDir dir_;
  std::filesystem::path path_ = dir_.path() / "cache.json";
};

TEST_F(TunerCacheOf, TheNextStartTimesNothing) {
  const Outcome one = first();
  EXPECT_EQ(one.report.timed, 8);  // 1, 2, 4, 8 of NVFP4 and BF16 experts
  const std::string written = text_in(path_);
  Warnings warnings;
  for (const double seconds : {0.01, 0.0}) {
    const Outcome two = tuned({seconds, path_}, 8, warnings);
    EXPECT_EQ(two.report.timed, 0);
    EXPECT_EQ(two.report.cached, 8);
    EXPECT_EQ(two.report.left, 0);
    EXPECT_EQ(two.tuned, one.tuned);
    EXPECT_EQ(two.last, one.last);
  }
  EXPECT_EQ(text_in(path_), written);
  EXPECT_TRUE(warnings.lines().empty());
}

// What the file says is what runs, whatever would be faster.
TEST_F(TunerCacheOf, IsBelieved) {
  write_cache(path_, setting(),
              {{op::Arithmetic::w4a4, shape, 1, {8, 2}}, {op::Arithmetic::w4a4, shape, 2, {8, 1}}});
  Warnings warnings;
  const Outcome o = tuned({0, path_}, 2, warnings, {}, 2, {0});
  EXPECT_EQ(o.tuned, (std::vector<TunedTactic>{{1, {8, 2}}, {2, {8, 1}}}));
  EXPECT_EQ(o.report.cached, 2);
}

// More tokens than the first time: new buckets are timed and added, the others stay.
TEST_F(TunerCacheOf, GrowsByTheBucketsThatAreNew) {
  const Outcome one = first(8);
  Warnings warnings;
  const Outcome two = tuned({0.01, path_}, 32, warnings);
  EXPECT_EQ(two.report.cached, 8);
  EXPECT_EQ(two.report.timed, 4);  // 16 and 32
  EXPECT_TRUE(std::equal(one.tuned.begin(), one.tuned.end(), two.tuned.begin()));
  EXPECT_EQ(tuned({0, path_}, 32, warnings).report.cached, 12);
  EXPECT_TRUE(warnings.lines().empty());
}

// An entry that this program cannot run, or not on every rank, is timed again.
TEST_F(TunerCacheOf, EntriesThatCannotRunAreNotBelieved) {
  write_cache(path_, setting(),
              {{op::Arithmetic::w4a4, shape, 1, {24, 0}},
               {op::Arithmetic::w4a4, shape, 2, {16, 0}},
               {op::Arithmetic::w4a4, shape, 4, {8, 2}}});
  Warnings warnings;
  const auto edit = [](int rank, std::vector<Layer>& layers) {
    if (rank == 1) wrap<LackingExperts>(layers[0].ep, std::vector<Tactic>{{8, 2}});
  };
  const Outcome idle = tuned({0, path_}, 4, warnings, edit, 2, {0});
  EXPECT_TRUE(idle.tuned.empty());
  EXPECT_EQ(idle.report.left, 3);
  const Outcome timed = tuned({0.01, path_}, 4, warnings, edit, 2, {0});
  EXPECT_EQ(timed.report.timed, 3);
  const tactics::CacheRead now = tactics::read_cache(path_, setting());
  ASSERT_EQ(now.entries.size(), 3U);
  for (const tactics::CacheEntry& e : now.entries) EXPECT_EQ(e.tactic.tile, 8);
}

TEST_F(TunerCacheOf, ForeignOnesAreRefusedInWordsAndStay) {
  struct Case {
    std::function<void(tactics::CacheSetting&)> edit;
    const char* words;
  };
  const std::vector<Case> cases = {
      {[](tactics::CacheSetting& s) { s.package = "cpu-other-9"; }, "kernel package 'cpu-other-9'"},
      {[](tactics::CacheSetting& s) { s.device = "another machine"; }, "device 'another machine'"},
      {[](tactics::CacheSetting& s) { s.workers = 3; }, "workers a rank: 3, here: 1"}};
  for (const Case& c : cases) {
    tactics::CacheSetting other = setting();
    c.edit(other);
    write_cache(path_, other, {{op::Arithmetic::w4a4, shape, 1, {8, 2}}});
    const std::string before = text_in(path_);
    Warnings warnings;
    const Outcome o = tuned({0.01, path_}, 1, warnings);
    EXPECT_EQ(o.report.cached, 0);
    EXPECT_EQ(o.report.timed, 2);
    ASSERT_EQ(warnings.lines().size(), 1U);
    EXPECT_EQ(warnings.with(c.words), 1U) << warnings.lines()[0];
    EXPECT_EQ(warnings.with("stays as it is"), 1U) << warnings.lines()[0];
    EXPECT_EQ(text_in(path_), before);
  }
}

TEST_F(TunerCacheOf, DamagedOnesAreReportedAndReplaced) {
  (void)first(1);
  const std::string whole = text_in(path_);
  for (const std::string& text : {std::string(), whole.substr(0, whole.size() / 2), whole.substr(0, 40)}) {
    std::ofstream(path_, std::ios::binary) << text;
    Warnings warnings;
    const Outcome o = tuned({0.01, path_}, 1, warnings);
    EXPECT_EQ(o.report.timed, 2);
    ASSERT_EQ(warnings.lines().size(), 1U) << text;
    EXPECT_EQ(warnings.with(path_.string()), 1U) << warnings.lines()[0];
    EXPECT_EQ(warnings.with("will be replaced"), 1U) << warnings.lines()[0];
    EXPECT_EQ(tactics::read_cache(path_, setting()).entries.size(), 2U);
  }
}

// An engine may hand over any path: what is there and is no cache stays.
TEST_F(TunerCacheOf, FilesThatAreNoCacheStay) {
  for (const std::string& text : {std::string("no JSON at all"), std::string("{}")}) {
    std::ofstream(path_, std::ios::binary) << text;
    Warnings warnings;
    EXPECT_EQ(tuned({0.01, path_}, 1, warnings).report.timed, 2);
    ASSERT_EQ(warnings.lines().size(), 1U) << text;
    EXPECT_EQ(warnings.with("stays as it is"), 1U) << warnings.lines()[0];
    EXPECT_EQ(text_in(path_), text);
  }
}

// Entries are of a shape: those of other widths neither serve nor make the file foreign.
TEST_F(TunerCacheOf, EntriesOfOtherShapesStayBesideNewOnes) {
  const tactics::CacheEntry narrow{op::Arithmetic::w4a4, {8, 256, 128}, 1, {8, 2}};
  const tactics::CacheEntry whole{op::Arithmetic::w4a4, {16, 256, 256}, 1, {8, 2}};
  write_cache(path_, setting(), {narrow, whole});
  Warnings warnings;
  EXPECT_EQ(tuned({0.01, path_}, 1, warnings, {}, 2, {0}).report.timed, 1);
  const tactics::CacheRead now = tactics::read_cache(path_, setting());
  ASSERT_EQ(now.entries.size(), 3U);
  EXPECT_EQ(now.entries[0], narrow);
  EXPECT_EQ(now.entries[1], whole);
  EXPECT_EQ(now.entries[2].shape, shape);
  EXPECT_TRUE(warnings.lines().empty());
}

// Padded for two slices, NVFP4 experts are held wider than BF16 ones; which layer comes first says nothing.
TEST_F(TunerCacheOf, DoesNotDependOnTheLayersOrder) {
  const TempDir files;
  tools::SynthOptions synth = tools::synth_defaults(tools::SynthModel::tiny);
  synth.intermediate = 192;
  synth.layers = 2;
  synth.bf16_layers = {1};
  tools::synth(files.path(), synth, Workers(1));
  const auto from = checkpoint::Checkpoint::open(files.path());
  const auto start = [&](std::vector<std::int64_t> order) {
    TuneReport report;
    Warnings warnings;
    on_ranks({2, 1, warnings.log()}, [&](const decode::Rank& rank) {
      decode::BuildOptions building;
      building.layers = {0, 1};
      building.fit.pad = true;
      building.slices = 2;
      std::vector<Layer> built = decode::build(from, building, rank);
      std::vector<Layer> layers;
      for (const std::int64_t i : order) layers.push_back(std::move(built[static_cast<std::size_t>(i)]));
      decode::Plan plan = decode::make_plan(layers, {1, 64}, rank);
      const TuneReport mine = decode::tune(plan, layers, "cpu", {0.01, path_}, rank);
      if (rank.group.rank() == 0) report = mine;
    });
    EXPECT_TRUE(warnings.lines().empty());
    return report;
  };
  EXPECT_EQ(start({0, 1}).timed, 2);
  const tactics::CacheSetting here =
      tactics::cache_setting(op::backend("cpu"), synth.experts, synth.top_k, 1);
  const tactics::CacheRead written = tactics::read_cache(path_, here);
  ASSERT_EQ(written.entries.size(), 2U);
  EXPECT_EQ(written.entries[0].shape.intermediate, 256);  // 2 x 64 x 2
  EXPECT_EQ(written.entries[1].shape.intermediate, 192);
  EXPECT_EQ(start({1, 0}).cached, 2);
}

TEST_F(TunerCacheOf, APlaceThatCannotBeWrittenIsAWarning) {
  Warnings warnings;
  const Outcome o = tuned({0.01, dir_.path() / "none" / "cache.json"}, 1, warnings);
  EXPECT_EQ(o.report.timed, 2);
  EXPECT_FALSE(o.tuned.empty());
  ASSERT_EQ(warnings.lines().size(), 1U);
  EXPECT_EQ(warnings.with("the tactic cache is not written"), 1U) << warnings.lines()[0];
}

// Sliced experts are pinned, never tuned.
TEST(Tuner, LeavesSlicedExpertsAlone) {
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    std::vector<Layer> layers = decode::build(small_model().open(), {{0}, op::Input::nvfp4, "cpu", {}}, rank);
    (void)decode::shard(layers, {}, rank);
    wrap<SlowExperts>(layers[0].tp, std::vector<Tactic>{{8, -1}});
    decode::Plan plan = decode::make_plan(layers, {8, 64}, rank);
    (void)decode::tune(plan, layers, "cpu", {0.01, {}}, rank);
    EXPECT_TRUE(plan.prepared_for(layers[0], Mode::tp).tuned.empty());
    EXPECT_FALSE(plan.prepared_for(layers[0], Mode::ep).tuned.empty());
    EXPECT_EQ(plan.resolve(layers[0], Mode::tp, 8), (Tactic{8, -1}));
  });
}

}  // namespace
}  // namespace kerf::test
