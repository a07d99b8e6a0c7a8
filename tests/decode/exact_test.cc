// Exact tails through the whole decode: one checkpoint has one digest, wherever its experts are.
#include "kerf/decode/exact.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "kerf/base/format.h"
#include "kerf/decode/decode.h"
#include "tests/decode/forwarding_group.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

using decode::Mode;
using tail::Kind;

// Two layers of small experts, with (muse-spark) or without (qwen3-moe) a norm after the experts.
class Model {
 public:
  Model(bool norm, std::int64_t experts, std::int64_t intermediate,
        std::vector<std::int64_t> bf16_layers = {}) {
    tools::SynthOptions options =
        tools::synth_defaults(norm ? tools::SynthModel::muse_spark : tools::SynthModel::qwen3_moe);
    options.experts = experts;
    options.hidden = 128;
    options.intermediate = intermediate;
    options.layers = 2;
    options.top_k = 3;
    options.bf16_layers = std::move(bf16_layers);
    options.seed = 11;
    tools::synth(dir_.path(), options, Workers(1));
  }
  [[nodiscard]] checkpoint::Checkpoint open() const { return checkpoint::Checkpoint::open(dir_.path()); }

 private:
  TempDir dir_;
};

struct Setup {
  int ranks;
  bool tp;
};

decode::Options exact_options(const Setup& setup) {
  decode::Options options;
  options.modes = setup.tp ? std::vector{Mode::ep, Mode::tp} : std::vector{Mode::ep};
  options.batches = {1, 3, 9};
  options.repetitions = 2;
  options.seconds = 0;
  options.tails = {Kind::exact};
  return options;
}

decode::Report report_of(const checkpoint::Checkpoint& from, const decode::Options& options, int ranks) {
  std::optional<decode::Report> report;
  on_ranks({ranks, 1, {}}, [&](const decode::Rank& rank) {
    decode::Report mine = decode::run(from, options, rank);
    if (rank.group.rank() == 0) report = std::move(mine);
  });
  return *report;
}

// Digests by batch, of each mode; they must be the same for all modes of one report.
std::vector<std::string> digests(const decode::Report& r, Mode mode, Kind kind) {
  std::vector<std::string> out;
  for (const decode::StepReport& s : r.steps)
    if (s.mode == mode && s.tail == kind) out.push_back(s.output_sha256);
  return out;
}

void expect_one_digest(const checkpoint::Checkpoint& from, const std::vector<Setup>& setups,
                       const decode::BuildOptions& build = {}) {
  decode::Options options = exact_options({1, false});
  options.build = build;
  const auto want = digests(report_of(from, options, 1), Mode::ep, Kind::exact);
  ASSERT_EQ(std::set<std::string>(want.begin(), want.end()).size(), 3U);
  for (const Setup& setup : setups) {
    options = exact_options(setup);
    options.build = build;
    const decode::Report r = report_of(from, options, setup.ranks);
    for (const Mode mode : options.modes)
      EXPECT_EQ(digests(r, mode, Kind::exact), want) << decode::name(mode) << " on " << setup.ranks;
  }
}

TEST(Exact, OneDigestForEp124And8AndTp24And8) {
  for (const bool norm : {true, false}) {
    const Model model(norm, 8, 4096);
    EXPECT_EQ(model.open().config().post_norm.has_value(), norm);
    expect_one_digest(model.open(), {{2, true}, {4, true}, {8, true}});
  }
}

TEST(Exact, OneDigestForOtherWidthsWhoseSlicesAreNodes) {
  for (const bool norm : {true, false}) {
    expect_one_digest(Model(norm, 8, 2048).open(), {{2, true}, {4, true}, {8, false}});
    expect_one_digest(Model(norm, 6, 3072).open(), {{2, false}, {3, true}, {6, true}});
  }
}

TEST(Exact, OneDigestOnEveryBackend) {
  const Model model(true, 4, 1024);
  const checkpoint::Checkpoint from = model.open();
  decode::Options options = exact_options({1, false});
  const auto want = digests(report_of(from, options, 1), Mode::ep, Kind::exact);
  for (const std::string& backend : op::backend_names()) {
    options = exact_options({2, true});
    options.build.backend = backend;
    const decode::Report r = report_of(from, options, 2);
    EXPECT_EQ(digests(r, Mode::ep, Kind::exact), want) << backend;
    EXPECT_EQ(digests(r, Mode::tp, Kind::exact), want) << backend;
  }
}

// BF16 layers stay EP, and their rows are finished: one backend gives them the same bits on any rank.
TEST(Exact, Bf16LayersHaveOneDigestToo) {
  expect_one_digest(Model(true, 8, 1024, {1}).open(), {{2, true}, {4, false}, {8, false}});
}

TEST(Exact, WeightOnlyLayersHaveOneDigestInEpAndAreNotCut) {
  const Model model(true, 8, 1024);
  decode::BuildOptions build;
  build.input = op::Input::bf16;
  expect_one_digest(model.open(), {{2, false}, {4, false}}, build);

  const checkpoint::Checkpoint from = model.open();
  decode::Options options = exact_options({2, true});
  options.build = build;
  expect_all_refuse(
      thrown_on({2, 1, {}}, [&](const decode::Rank& rank) { (void)decode::run(from, options, rank); }),
      ErrorKind::unsupported, {"layer 0", "W4A16", "canonical sums", "EP is exact"});
}

// The fast tails' digests are one for each placement: an exact tail that was only fast would not pass above.
TEST(Exact, FastTailsTellPlacementsApart) {
  const Model model(true, 8, 4096);
  const checkpoint::Checkpoint from = model.open();
  std::set<std::string> seen;
  std::set<std::string> exact;
  for (const int ranks : {1, 2, 4, 8}) {
    decode::Options options = exact_options({ranks, ranks > 1});
    options.tails = {Kind::fast, Kind::exact};
    options.batches = {9};
    const decode::Report r = report_of(from, options, ranks);
    for (const decode::StepReport& s : r.steps) (s.tail == Kind::fast ? seen : exact).insert(s.output_sha256);
    // What --tail fast alone gives is what it gives beside exact.
    options.tails = {Kind::fast};
    const decode::Report alone = report_of(from, options, ranks);
    for (const Mode mode : options.modes)
      EXPECT_EQ(digests(alone, mode, Kind::fast), digests(r, mode, Kind::fast));
  }
  EXPECT_GE(seen.size(), 6U);
  EXPECT_EQ(exact.size(), 1U);
}

TEST(Exact, SlicesThatAreNoNodesAreRefusedBeforeAnythingIsLoaded) {
  const Model model(true, 6, 3072);
  const checkpoint::Checkpoint from = model.open();
  decode::RuntimeOptions options;
  options.expert_tp = true;
  options.tail.kind = Kind::exact;
  expect_all_refuse(thrown_on({2, 1, {}},
                              [&](const decode::Rank& rank) {
                                const Verdict v =
                                    attempt([&] { (void)decode::Runtime::build(from, options, rank); });
                                EXPECT_EQ(rank.memory.peak(), 0);
                                require(v);
                              }),
                    ErrorKind::unsupported,
                    {"2 slices of I = 3072 do not", "512 times a power of two", "exact tp: 1, 3, 6;"});
  EXPECT_FALSE(decode::exact_refused(4096, 8));
  EXPECT_FALSE(decode::exact_refused(3072, 6));
  EXPECT_TRUE(decode::exact_refused(4096, 16));
  EXPECT_FALSE(decode::exact_refused(from, from.moe_layers(), op::Input::bf16, 1));
}

// Rows of another engine: with routes to nowhere, whose weights are nothing at all.
TEST(Exact, OneLayersOutputIsTheSameEverywhere) {
  const Model model(true, 8, 1024);
  const checkpoint::Checkpoint from = model.open();
  for (const std::int64_t tokens : {1, 3, 6}) {
    decode::LayerInputs in;
    in.rows_name = "x";
    in.routes_name = "topk_ids";
    in.tokens = tokens;
    in.x = decode::unit_rows(3, tokens, 128);
    for (std::int64_t i = 0; i < tokens * 3; ++i) {
      in.ids.push_back(i % 4 == 1 ? -1 : static_cast<std::int32_t>((5 * i + i / 3) % 8));
      in.weights.push_back(in.ids.back() < 0 ? std::numeric_limits<float>::quiet_NaN()
                                             : 0.125F * static_cast<float>(i + 1));
    }
    decode::LayerOptions options;
    options.tail = Kind::exact;
    const std::vector<std::uint16_t> want = run_on({"EP1", 1, Mode::ep}, from, in, options).y;
    EXPECT_TRUE(std::ranges::none_of(want, [](std::uint16_t v) { return v == numeric::bf16_nan; }));
    for (const Placement& p :
         {Placement{"EP2", 2, Mode::ep}, {"EP4", 4, Mode::ep}, {"EP8", 8, Mode::ep}, {"TP2", 2, Mode::tp}}) {
      options.unfinalized = p.ranks == 2;
      const decode::LayerResult r = run_on(p, from, in, options);
      EXPECT_EQ(r.y, want) << p.label << ", " << tokens << " tokens";
      for (const decode::RankRows& rank : r.ranks) {
        EXPECT_EQ(rank.rows.empty(), p.mode == Mode::tp);
        EXPECT_EQ(rank.sums.empty(), p.mode == Mode::ep);
      }
    }
  }
}

decode::StepInputs step_of(const decode::Inputs& in) {
  return {in.tokens, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
}

TEST(Exact, ARuntimeRunsWhatItWasBuiltFor) {
  const Model model(true, 8, 1024);
  const checkpoint::Checkpoint from = model.open();
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.expert_tp = true;
    options.max_tokens = 4;
    const auto fast = decode::Runtime::build(from, options, rank);
    options.tail.kind = Kind::exact;
    const auto exact = decode::Runtime::build(from, options, rank);
    exact.warm_up();
    const decode::Inputs in = decode::make_inputs(1, 0, 4, checkpoint::ExpertKind::nvfp4, {8, 128, 3});
    const auto rows = [&](const decode::Runtime& runtime, Mode mode, decode::TailKind kind = {}) {
      const auto out = runtime.execute(0, mode, step_of(in), kind);
      return std::vector<std::uint16_t>(out.begin(), out.end());
    };
    EXPECT_EQ(rows(exact, Mode::ep), rows(exact, Mode::tp));
    EXPECT_EQ(rows(exact, Mode::tp, Kind::fast), rows(fast, Mode::tp));
    EXPECT_NE(rows(exact, Mode::tp), rows(fast, Mode::tp));
    const Verdict refused = attempt([&] { (void)rows(fast, Mode::ep, Kind::exact); });
    EXPECT_TRUE(refused && refused->kind == ErrorKind::usage);

    // More tokens than prepared: exact too.
    const decode::Inputs more = decode::make_inputs(1, 0, 11, checkpoint::ExpertKind::nvfp4, {8, 128, 3});
    options.max_tokens = 11;
    const auto large = decode::Runtime::build(from, options, rank);
    const auto prepared = large.execute(0, Mode::tp, step_of(more));
    EXPECT_EQ(exact.execute_unprepared(0, step_of(more)),
              std::vector<std::uint16_t>(prepared.begin(), prepared.end()));
  });
}

// The two ways of adding TP rows have the same bits, in steps of fewer and of more tokens than ranks.
TEST(Exact, TheFastTpTailsTwoWaysAgree) {
  const Model model(true, 8, 1024);
  const checkpoint::Checkpoint from = model.open();
  on_ranks({4, 1, {}}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.expert_tp = true;
    options.max_tokens = 7;
    options.tail.row_sum = tail::RowSum::all_reduce;
    const auto one = decode::Runtime::build(from, options, rank);
    options.tail.row_sum = tail::RowSum::reduce_scatter;
    const auto other = decode::Runtime::build(from, options, rank);
    for (const std::int64_t tokens : {1, 3, 4, 7}) {
      const decode::Inputs in = decode::make_inputs(1, 0, tokens, checkpoint::ExpertKind::nvfp4, {8, 128, 3});
      const auto a = one.execute(0, Mode::tp, step_of(in));
      const auto b = other.execute(0, Mode::tp, step_of(in));
      EXPECT_TRUE(std::ranges::equal(a, b)) << tokens;
    }
  });
}

// A group that can add nothing: exact steps do not ask it to, so they are exact on groups that sum in their
// own order as well.
class Sumless : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;
  bool armed = false;
  [[nodiscard]] bool shares_memory() const override { return false; }  // or fast tails add rows themselves
  void all_reduce_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum,
                      std::string_view what) override {
    refuse(what);
    ForwardingGroup::all_reduce_sum(mine, sum, what);
  }
  void reduce_scatter_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> part,
                          std::string_view what) override {
    refuse(what);
    ForwardingGroup::reduce_scatter_sum(mine, part, what);
  }

 private:
  void refuse(std::string_view what) const {
    if (armed) fail(ErrorKind::bug, "a sum over ranks: {}", what);
  }
};

TEST(Exact, NoSumOverRanksIsLeftToTheGroup) {
  const Model model(true, 8, 1024);
  const checkpoint::Checkpoint from = model.open();
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    Sumless group(rank.group);
    decode::RuntimeOptions options;
    options.expert_tp = true;
    options.tail.kind = Kind::exact;
    const auto runtime = decode::Runtime::build(from, options, {group, rank.memory, rank.workers, rank.log});
    group.armed = true;
    for (const std::int64_t tokens : {1, 5}) {
      const decode::Inputs in = decode::make_inputs(1, 0, tokens, checkpoint::ExpertKind::nvfp4, {8, 128, 3});
      for (const Mode mode : {Mode::ep, Mode::tp})
        EXPECT_NO_THROW((void)runtime.execute(0, mode, step_of(in)));
    }
    const decode::Inputs in = decode::make_inputs(1, 0, 5, checkpoint::ExpertKind::nvfp4, {8, 128, 3});
    EXPECT_THROW((void)runtime.execute(0, Mode::tp, step_of(in), Kind::fast), Error);
  });
}

}  // namespace
}  // namespace kerf::test
