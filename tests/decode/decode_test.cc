// The main job on synthetic checkpoints: the same digests at every run, thread count and backend; the probe;
// memory.
#include "kerf/decode/decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>

#include "kerf/base/format.h"
#include "kerf/decode/sha256.h"
#include "tests/decode/forwarding_group.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"
#include "tests/support/test_env.h"

namespace kerf::test {
namespace {

using decode::Mode;

decode::Options quick(std::vector<Mode> modes = {Mode::ep, Mode::tp}) {
  decode::Options options;
  options.modes = std::move(modes);
  options.batches = {1, 8};
  options.repetitions = 2;
  options.seconds = 0;
  return options;
}

decode::Report report_of(const checkpoint::Checkpoint& from, const decode::Options& options,
                         const RankSetup& setup) {
  std::vector<decode::Report> reports(static_cast<std::size_t>(setup.ranks));
  on_ranks(setup, [&](const decode::Rank& rank) {
    reports[static_cast<std::size_t>(rank.group.rank())] = decode::run(from, options, rank);
  });
  return reports[0];
}

std::vector<std::string> digests(const decode::Report& r) {
  std::vector<std::string> out;
  for (const decode::StepReport& s : r.steps) out.push_back(s.output_sha256);
  return out;
}

TEST(Decode, ReportsWhatItDid) {
  const decode::Report r = report_of(small_model().open(), quick(), {4, 1, {}});
  EXPECT_EQ(r.checkpoint.layers, 4);
  EXPECT_EQ(r.checkpoint.nvfp4_layers, 3);
  EXPECT_EQ(r.checkpoint.bf16_layers, 1);
  EXPECT_EQ(r.checkpoint.experts, 16);
  EXPECT_EQ(r.checkpoint.hidden, 256);
  EXPECT_EQ(r.checkpoint.intermediate, 256);
  EXPECT_EQ(r.checkpoint.top_k, 4);
  EXPECT_EQ(r.ranks, 4);
  EXPECT_EQ(r.group, "local");
  ASSERT_TRUE(r.reshard);
  // 16 experts of slices 64 wide, 3 layers: 3 * H * I' / 2 bytes of codes and an eighth of that in scales,
  // and the scalars.
  const std::int64_t weights = 3 * 256 * 64 / 2 * 9 / 8;
  EXPECT_EQ(r.reshard->bytes_per_rank, 3 * (16 * weights + (3 * 16 + 2) * 4));
  EXPECT_GT(r.reshard->seconds, 0);
  ASSERT_EQ(r.steps.size(), 4U);
  EXPECT_EQ(r.steps[0].mode, Mode::ep);
  EXPECT_EQ(r.steps[0].batch, 1);
  EXPECT_EQ(r.steps[3].mode, Mode::tp);
  EXPECT_EQ(r.steps[3].batch, 8);
  for (const decode::StepReport& s : r.steps) {
    EXPECT_GT(s.us_per_layer, 0);
    EXPECT_EQ(s.output_sha256.size(), 64U);
  }
  EXPECT_EQ(r.tactic.tile, 8);
  EXPECT_EQ(r.tactic.config, -1);
  EXPECT_FALSE(r.tactic.pinned);
  EXPECT_EQ(r.tactic.of, 0);
  // One token of top 4: TP reads four slices a rank and layer; the BF16 layer's busiest rank at least one
  // whole expert.
  EXPECT_GE(r.steps[2].busiest_rank_bytes, 3 * 4 * weights + 3 * 256 * 256 * 2);
  EXPECT_LE(r.steps[2].busiest_rank_bytes, 3 * 4 * weights + 4 * 3 * 256 * 256 * 2);
}

TEST(Decode, SameBitsAtEveryRunAndThreadCount) {
  const checkpoint::Checkpoint from = small_model().open();
  const std::vector<std::string> first = digests(report_of(from, quick(), {2, 1, {}}));
  EXPECT_EQ(std::set<std::string>(first.begin(), first.end()).size(),
            first.size());  // each step is another one
  EXPECT_EQ(digests(report_of(from, quick(), {2, 1, {}})), first);
  EXPECT_EQ(digests(report_of(from, quick(), {2, 2, {}})), first);
  EXPECT_EQ(digests(report_of(from, quick(), {2, 3, {}})), first);
  decode::Options other = quick();
  other.seed = 2;
  EXPECT_NE(digests(report_of(from, other, {2, 1, {}})), first);
}

// The block's own part has one order of sums, so that it adds nothing that threads or backends could tell.
TEST(Decode, BlocksHaveTheSameBitsEverywhere) {
  const checkpoint::Checkpoint from = small_model().open();
  decode::Options options = quick();
  options.block = decode::BlockKind::muse_spark;
  const decode::Report all = report_of(from, options, {2, 1, {}});
  EXPECT_EQ(all.block, decode::BlockKind::muse_spark);
  EXPECT_EQ(all.checkpoint.model_hidden, 512);
  EXPECT_EQ(digests(report_of(from, options, {2, 3, {}})), digests(all));
  const std::vector<std::string> bare = digests(report_of(from, quick(), {2, 1, {}}));
  for (std::size_t i = 0; i < bare.size(); ++i) EXPECT_NE(bare[i], digests(all)[i]);
  options.build.layers = {0, 2, 3};
  options.build.backend = "reference";
  const std::vector<std::string> wanted = digests(report_of(from, options, {2, 1, {}}));
  for (const std::string& backend : op::backend_names()) {
    options.build.backend = backend;
    EXPECT_EQ(digests(report_of(from, options, {2, 1, {}})), wanted) << backend;
  }
}

// What a step reads of the block (all weights, once) is counted, and the experts are timed apart.
TEST(Decode, BlocksAreCountedAndTimed) {
  const checkpoint::Checkpoint from = small_model().open();
  decode::Options options = quick({Mode::ep});
  options.build.layers = {0};
  options.block = decode::BlockKind::muse_spark;
  const decode::Report r = report_of(from, options, {1, 1, {}});
  // 16 experts of a row of 512 in F32 and a bias, two projections of 256 x 512, a gain of 256.
  const std::int64_t block = 16 * (512 * 4 + 4) + 2 * 256 * 512 * 2 + 256 * 2;
  const std::int64_t expert = 3 * 256 * 256 / 2 * 9 / 8;
  EXPECT_EQ(r.steps[0].busiest_rank_bytes, block + 4 * expert);  // one token of top 4
  EXPECT_EQ(r.footprint.block, block - 256 * 2);                 // the gain is no tensor
  for (const decode::StepReport& s : r.steps) {
    EXPECT_GT(s.experts_us_per_layer, 0);
    EXPECT_LT(s.experts_us_per_layer, s.us_per_layer);
  }
}

// Digests of NVFP4 layers are equal on all backends; batches and modes do not touch each other.
TEST(Decode, SameBitsOnEveryBackend) {
  const checkpoint::Checkpoint from = small_model().open();
  decode::Options options = quick();
  options.build.layers = {0, 2, 3};
  options.build.backend = "reference";
  const std::vector<std::string> wanted = digests(report_of(from, options, {2, 1, {}}));
  for (const std::string& backend : op::backend_names()) {
    options.build.backend = backend;
    EXPECT_EQ(digests(report_of(from, options, {2, 1, {}})), wanted) << backend;
  }
  options.batches = {8};
  options.modes = {Mode::tp};
  EXPECT_EQ(digests(report_of(from, options, {2, 1, {}})), std::vector<std::string>{wanted[3]});
}

// BF16 layers are measured on made logits and a router that is always the same: what config.json says of the
// checkpoint's own router, even where kerf could not run it, changes nothing.
TEST(Decode, TheCheckpointsRouterIsNotUsed) {
  const auto digest_of = [](const std::function<void(Onehot&)>& edit) {
    const TempDir dir;
    Onehot onehot({.layers = {checkpoint::ExpertKind::bf16, checkpoint::ExpertKind::nvfp4}});
    edit(onehot);
    onehot.write(dir.path());
    return digests(report_of(checkpoint::Checkpoint::open(dir.path()), quick({Mode::ep}), {2, 1, {}}));
  };
  const std::vector<std::string> wanted = digest_of([](Onehot&) {});
  EXPECT_EQ(digest_of([](Onehot& o) { o.config["routed_scaling_factor"] = "2.5"; }), wanted);
  EXPECT_EQ(digest_of([](Onehot& o) { o.config["norm_topk_prob"] = "false"; }), wanted);
  EXPECT_EQ(digest_of([](Onehot& o) { o.config["scoring_func"] = R"("sigmoid")"; }), wanted);
  EXPECT_EQ(digest_of([](Onehot& o) {
              o.config["n_group"] = "2";
              o.config["topk_group"] = "1";
            }),
            wanted);
}

// The digest is over the rows of the layers in ascending order, whatever order they were asked for in.
TEST(Decode, DigestsTheLayersAscending) {
  const checkpoint::Checkpoint from = small_model().open();
  decode::Options options = quick({Mode::ep});
  options.build.layers = {3, 0};
  const std::vector<std::string> both = digests(report_of(from, options, {1, 1, {}}));
  options.build.layers = {0, 3, 0};
  EXPECT_EQ(digests(report_of(from, options, {1, 1, {}})), both);

  decode::Sha256 sha;
  on_ranks({}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions building;
    building.build.layers = {0, 3};
    building.max_tokens = 1;
    const decode::Runtime runtime = decode::Runtime::build(from, building, rank);
    for (std::size_t i = 0; i < 2; ++i) {
      const decode::Inputs in = decode::make_inputs(options.seed, runtime.layers()[i].index, 1,
                                                    checkpoint::ExpertKind::nvfp4, {16, 256, 4});
      const auto rows = runtime.execute(i, Mode::ep, {1, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}});
      sha.update(std::as_bytes(rows));
    }
  });
  EXPECT_EQ(sha.hex(), both[0]);
}

TEST(Decode, ProbeIsSmallAndNotZero) {
  for (const int ranks : {2, 4}) {
    const decode::Report r = report_of(small_model().open(), quick({Mode::tp}), {ranks, 1, {}});
    ASSERT_TRUE(r.reshard);
    EXPECT_GT(r.reshard->min_rel_l2, 0)
        << ranks;  // K-partials round: equal rows would mean that nothing was cut
    EXPECT_LE(r.reshard->min_rel_l2, r.reshard->max_rel_l2);
    EXPECT_LT(r.reshard->max_rel_l2, decode::probe_limit) << ranks;
  }
}

// The finished rows of TP are those of EP but for bf16 roundings; a tail that normed K-partials, or summed in
// the wrong place, would be off by about the length of a row. A rounding to bf16 (8 significant bits) moves a
// value by at most u = 2^-8 of it, and so a row by at most u of its length. With d the probe's rel L2 of a
// route's row: the gain is multiplied in and rounded in both, so that the rows which are normed are d + 2u
// apart, and a normed row moves by at most twice that of its length. K = 4 rows of like length, nearly
// orthogonal, with weights that sum to 1, make an output at least half as long as one of them: 4(d + 2u). EP
// rounds each rank's part (together at most one row's length: 2u of the output) and their sum (u), TP the sum
// alone (u).
TEST(Decode, TpRowsAreNearEpRows) {
  const checkpoint::Checkpoint from = small_model().open();
  on_ranks({4, 1, {}}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.expert_tp = true;
    const auto runtime = decode::Runtime::build(from, options, rank);
    const double u = 0x1p-8;
    const double bound = 4 * (runtime.sharding()->max_rel_l2 + 2 * u) + 4 * u;
    for (std::size_t i = 0; i < runtime.layers().size(); ++i) {
      const decode::Layer& layer = runtime.layers()[i];
      EXPECT_TRUE(layer.norm) << "the model has a norm after its experts";
      if (layer.tp == nullptr) continue;
      const decode::Inputs in = decode::make_inputs(1, layer.index, 8, layer.kind, {16, 256, 4});
      const decode::StepInputs step{8, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
      const auto ep = runtime.execute(i, Mode::ep, step);
      const std::vector<float> whole = widened({ep.begin(), ep.end()});
      const auto tp = runtime.execute(i, Mode::tp, step);
      const std::vector<float> sliced = widened({tp.begin(), tp.end()});
      double apart = 0;
      double length = 0;
      for (std::size_t j = 0; j < whole.size(); ++j) {
        apart += std::pow(double{sliced[j]} - double{whole[j]}, 2);
        length += std::pow(double{whole[j]}, 2);
      }
      EXPECT_GT(apart, 0);
      EXPECT_LT(std::sqrt(apart / length), bound) << "layer " << layer.index;
    }
  });
}

TEST(Decode, ProbeOfBf16RowsIsSmallToo) {
  decode::Options options = quick({Mode::tp});
  options.build.input = op::Input::bf16;
  const decode::Report r = report_of(small_model().open(), options, {4, 1, {}});
  EXPECT_GT(r.reshard->min_rel_l2, 0);
  EXPECT_LT(r.reshard->max_rel_l2, decode::probe_limit);
}

// Beyond the TP tensors, a reshard holds one kind packed for sending and little else.
TEST(Decode, ReshardPeaksAtOnePackedKind) {
  const Synthetic model(64, 512, 256, {}, 3);
  const decode::Report r = report_of(model.open(), quick({Mode::tp}), {4, 1, {}});
  const std::int64_t packed = 64 * (2 * 64) * (512 / 2);  // w13, the largest kind: [E, 2I', H/2]
  EXPECT_GE(r.reshard->peak_extra_bytes, r.reshard->bytes_per_rank);
  EXPECT_LE(r.reshard->peak_extra_bytes, r.reshard->bytes_per_rank + packed + (2 << 20));
}

// At a shape of real models' proportions: the cut is right, the reshard stays within its memory, and neither
// the number of threads nor another run changes a bit.
TEST(Decode, FourLayersOf64ExpertsOnFourRanks) {
  const Synthetic model(64, 1024, 512, {1}, 4);
  const checkpoint::Checkpoint from = model.open();
  decode::Options options = quick();
  options.repetitions = 1;
  const std::int64_t packed = 64 * (2 * 512 / 4) * (1024 / 2);  // a layer's w13: [E, 2I', H/2]
  std::vector<std::string> wanted;
  for (const int threads : {1, 1, 2, 4}) {
    const decode::Report r = report_of(from, options, {4, threads, {}});
    ASSERT_TRUE(r.reshard);
    EXPECT_EQ(r.reshard->nvfp4_layers, 3);
    EXPECT_GT(r.reshard->min_rel_l2, 0);
    EXPECT_LT(r.reshard->max_rel_l2, 0.01);
    EXPECT_GE(r.reshard->peak_extra_bytes, r.reshard->bytes_per_rank);
    EXPECT_LE(r.reshard->peak_extra_bytes, r.reshard->bytes_per_rank + packed + (2 << 20));
    if (wanted.empty()) wanted = digests(r);
    EXPECT_EQ(digests(r), wanted) << threads << " threads a rank";
  }
}

// What a run says, one line each.
struct Said {
  std::vector<std::string> warnings;
  std::string info;
};

Said said_by(const decode::Options& options, int ranks) {
  std::mutex mutex;
  Said said;
  const Log log([&](LogLevel level, const std::string& line) {
    const std::lock_guard lock(mutex);
    if (level == LogLevel::warning)
      said.warnings.push_back(line);
    else
      said.info += line + "\n";
  });
  (void)report_of(small_model().open(), options, {ranks, 1, log});
  return said;
}

TEST(Decode, OneWarningForTheMissingTactics) {
  const Said said = said_by(quick({Mode::tp}), 2);
  ASSERT_EQ(said.warnings.size(), 1U);
  EXPECT_NE(said.warnings[0].find("default"), std::string::npos) << said.warnings[0];
  EXPECT_EQ(said_by(quick({Mode::ep}), 2).warnings.size(), 0U);
}

class Unordered : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;
  [[nodiscard]] bool ordered() const override { return false; }
};

TEST(Decode, OneWarningForAGroupThatSumsInItsOwnOrder) {
  const checkpoint::Checkpoint from = small_model().open();
  std::mutex mutex;
  std::vector<std::string> warnings;
  const Log log([&](LogLevel level, const std::string& line) {
    const std::lock_guard lock(mutex);
    if (level == LogLevel::warning) warnings.push_back(line);
  });
  on_ranks({2, 1, log}, [&](const decode::Rank& rank) {
    Unordered group(rank.group);
    (void)decode::run(from, quick({Mode::ep}), {group, rank.memory, rank.workers, rank.log});
  });
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("does not sum ranks in their order"), std::string::npos) << warnings[0];
}

// The line that tells of the TP build, from what is said at level info; empty for none, and there is one.
std::string tp_line(const std::string& info) {
  const std::size_t at = info.find("expert TP over");
  if (at == std::string::npos) return {};
  EXPECT_EQ(info.find("expert TP over", at + 1), std::string::npos) << info;
  return info.substr(at, info.find('\n', at) - at);
}

TEST(Decode, OneLineTellsHowTheTpBuildWent) {
  const decode::Options options = quick({Mode::tp});
  const std::string line = tp_line(said_by(options, 2).info);
  const decode::Report r = report_of(small_model().open(), options, {2, 1, {}});
  ASSERT_LT(r.reshard->min_rel_l2, r.reshard->max_rel_l2);
  for (const std::string& word :
       {std::string("over 2 ranks"), std::string("3 NVFP4 layers (1 BF16 layers stay EP)"),
        std::string("16 experts of width 128 on each rank"),
        fmt::format("{:.3f} GiB added a rank", static_cast<double>(r.reshard->bytes_per_rank) / (1U << 30U)),
        fmt::format("probe rel L2 {:.6f} to {:.6f}", r.reshard->min_rel_l2, r.reshard->max_rel_l2),
        std::string("tactic at 1 tokens: tile 8, config -1"), std::string("the op's default")})
    EXPECT_NE(line.find(word), std::string::npos) << word << " in: " << line;
  EXPECT_THAT(line, testing::ContainsRegex("; [0-9]+\\.[0-9]+ s$"));
  EXPECT_EQ(tp_line(said_by(quick({Mode::ep}), 2).info), "");
}

TEST(Decode, TheLineOfATpBuildTellsWhichPreferenceWasPinned) {
  decode::Options options = quick({Mode::tp});
  op::Tactic valid;
  on_ranks({}, [&](const decode::Rank& rank) {
    decode::BuildOptions building;
    building.layers = {0};
    valid = decode::build(small_model().open(), building, rank)[0].ep->tactics(8).back();
  });
  options.preferred = {{12345, 0}, {12346, 0}, valid, {12347, 0}};
  const std::string line = tp_line(said_by(options, 2).info);
  EXPECT_NE(line.find(fmt::format("tile {}, config {}, pinned, preference 3 of 4", valid.tile, valid.config)),
            std::string::npos)
      << line;
}

TEST(Decode, PinsTheFirstPreferredTacticThatAlwaysRuns) {
  const checkpoint::Checkpoint from = small_model().open();
  std::vector<op::Tactic> valid;
  on_ranks({}, [&](const decode::Rank& rank) {
    valid = decode::build(from, {{0}, op::Input::nvfp4, "cpu", {}}, rank)[0].ep->tactics(8);
  });
  ASSERT_FALSE(valid.empty());
  decode::Options options = quick({Mode::tp});
  options.preferred = {{12345, 0}, valid.back()};
  const decode::Report r = report_of(from, options, {2, 1, {}});
  EXPECT_TRUE(r.tactic.pinned);
  EXPECT_EQ(r.tactic.preference, 1);
  EXPECT_EQ(r.tactic.of, 2);
  EXPECT_EQ(r.tactic.tile, valid.back().tile);
  // Whatever the tactic, the rows are the same.
  EXPECT_EQ(digests(r), digests(report_of(from, quick({Mode::tp}), {2, 1, {}})));
  options.preferred = {{12345, 0}};
  EXPECT_FALSE(report_of(from, options, {2, 1, {}}).tactic.pinned);
}

TEST(Decode, RefusesEmptyAndImpossibleLists) {
  const checkpoint::Checkpoint from = small_model().open();
  const auto refused = [&](decode::Options options) {
    return thrown_on({2, 1, {}}, [&](const decode::Rank& rank) { (void)decode::run(from, options, rank); });
  };
  expect_all_refuse(refused(quick({})), ErrorKind::usage, {"mode"});
  decode::Options options = quick();
  options.batches = {};
  expect_all_refuse(refused(options), ErrorKind::usage, {"batch"});
  options.batches = {0};
  expect_all_refuse(refused(options), ErrorKind::usage, {"0 tokens"});
  options.batches = {8, decode::most_tokens + 1};
  expect_all_refuse(refused(options), ErrorKind::usage, {"65537", "65536"});
  options = quick();
  options.build.layers = {0, 9};
  expect_all_refuse(refused(options), ErrorKind::usage, {"9"});
  options = quick();
  options.build.backend = "abacus";
  expect_all_refuse(refused(options), ErrorKind::usage, {"abacus", "reference"});
}

}  // namespace
}  // namespace kerf::test
