// The one-hot checkpoint end to end: from files to output rows, which are known exactly, at every placement
// and on both kinds of backend. Each test alters one thing, in the checkpoint or in the routes.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>

#include "kerf/base/format.h"
#include "kerf/checkpoint/checkpoint.h"
#include "kerf/decode/run_layer.h"
#include "kerf/numeric/bf16.h"
#include "tests/decode/support.h"
#include "tests/support/test_env.h"

namespace kerf::test {
namespace {

using checkpoint::Checkpoint;

const decode::LayerInputs& five_tokens() {
  static const decode::LayerInputs in =
      onehot_tokens({0, 1, -1, -1, 2, -1, 3, 3, 1, 0}, {0.5F, 0.5F, 0.7F, 0.3F, 1, 9, 0.25F, 0.5F, 0, 1});
  return in;
}

// A one-hot checkpoint on disk, changed by `edit`.
class Written {
 public:
  explicit Written(const std::function<void(Onehot&)>& edit = {}, const OnehotOptions& options = {}) {
    Onehot onehot(options);
    if (edit) edit(onehot);
    onehot.write(dir_.path());
  }
  [[nodiscard]] Checkpoint open() const { return Checkpoint::open(dir_.path()); }
  [[nodiscard]] const std::filesystem::path& path() const { return dir_.path(); }

 private:
  TempDir dir_;
};

// All placements and backends give the rows.
void expect_rows(const Checkpoint& from, const decode::LayerInputs& in, const std::vector<float>& wanted) {
  for (const Placement& p : placements()) {
    for (const char* backend : {"reference", "cpu"}) {
      decode::LayerOptions options;
      options.backend = backend;
      EXPECT_EQ(widened(run_on(p, from, in, options).y), wanted) << p.label << " on " << backend;
    }
  }
}

TEST(OnehotRuns, RowsAreExactEverywhere) {
  const Written onehot;
  expect_rows(onehot.open(), five_tokens(), onehot_rows(five_tokens()));
}

// The same numbers, written down instead of computed.
TEST(OnehotRuns, RowsBeginAsListed) {
  const Written onehot;
  const std::vector<float> y = widened(run_on(placements()[3], onehot.open(), five_tokens()).y);
  const std::vector<std::vector<float>> wanted = {{378, 486, 162, 352, 324, 108, 540, 243},
                                                  {0, 0, 0, 0, 0, 0, 0, 0},
                                                  {216, 54, 432, 162, 648, 324, 108, 648},
                                                  {324, 121.5F, 486, 243, 81, 486, 162, 40.5F},
                                                  {648, 324, 108, 648, 216, 54, 432, 162}};
  for (std::size_t t = 0; t < wanted.size(); ++t)
    for (std::size_t h = 0; h < 8; ++h) EXPECT_EQ(y[256 * t + h], wanted[t][h]) << t << " " << h;
}

TEST(OnehotRuns, AnUnroutedTokenIsPlusZero) {
  const Written onehot;
  for (const Placement& p : placements()) {
    const decode::LayerResult r = run_on(p, onehot.open(), five_tokens());
    for (std::size_t h = 0; h < 256; ++h) ASSERT_EQ(r.y[256 + h], 0) << p.label;
  }
}

// Gate and up scales that differ: factors 1, 0.25, 0.5, 0.25, not those of one scale for both.
TEST(OnehotRuns, GateAndUpScalesStayApart) {
  const Written onehot([](Onehot& o) { o.differ_gate_up(); });
  const decode::LayerInputs in = onehot_tokens({0, 1, 2, 3}, {0.5F, 0.5F, 0.5F, 0.5F});
  const std::vector<float> wanted = onehot_rows(in, {1, 0.25F, 0.5F, 0.25F});
  const std::vector<float> first = {338, 243, 81, 330, 162, 47.25F, 296, 121.5F};
  const std::vector<float> second = {108, 33.75F, 189, 81, 176, 162, 54, 169};
  EXPECT_TRUE(std::equal(first.begin(), first.end(), wanted.begin()));
  EXPECT_TRUE(std::equal(second.begin(), second.end(), wanted.begin() + 256));
  expect_rows(onehot.open(), in, wanted);
}

TEST(OnehotRuns, GateAndUpScalesThatDifferAreReportedOnce) {
  const Written onehot([](Onehot& o) { o.differ_gate_up(); });
  std::mutex mutex;
  std::vector<std::string> lines;
  const Log log([&](LogLevel, const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  });
  (void)run_on(placements()[1], onehot.open(), five_tokens(), {}, log);
  EXPECT_EQ(
      std::count(
          lines.begin(), lines.end(),
          "layer 0: 3 of 4 experts have different gate/up global scales, largest ratio 4, kept separate"),
      1);
}

// The fused names and a BF16 layer stand for the same experts where the values are the same.
TEST(OnehotRuns, FusedNamesGiveTheSameRows) {
  const Written onehot({}, {.prefix = "model.language_model.", .fused = true});
  expect_rows(onehot.open(), five_tokens(), onehot_rows(five_tokens()));
}

// BF16 experts hold the same values, and every product and sum of them is exact in bf16 too. They are never
// sliced.
TEST(OnehotRuns, Bf16ExpertsGiveTheSameRows) {
  const Written onehot({}, {.layers = {checkpoint::ExpertKind::bf16, checkpoint::ExpertKind::nvfp4}});
  const Checkpoint from = onehot.open();
  decode::LayerInputs logits = onehot_tokens({0, 1, 1, 3}, {0.5F, 0.5F, 0.5F, 0.5F});
  const std::vector<float> routed = onehot_rows(logits);
  logits.ids.clear();
  logits.weights.clear();
  logits.routes_name = "router_logits";
  logits.logits = {3, 3, 0, 0, 0, 1, 0, 1};  // softmax over the two chosen: a half each, exact in bf16
  for (const Placement& p : placements()) {
    if (p.mode == decode::Mode::tp) continue;
    for (const char* backend : {"reference", "cpu"}) {
      decode::LayerOptions options;
      options.backend = backend;
      EXPECT_EQ(widened(run_on(p, from, five_tokens(), options).y), onehot_rows(five_tokens()))
          << p.label << backend;
      EXPECT_EQ(widened(run_on(p, from, logits, options).y), routed) << p.label << " " << backend;
      options.layer = 1;
      EXPECT_EQ(widened(run_on(p, from, logits, options).y), routed) << p.label << " " << backend;
    }
  }
  decode::LayerOptions tp;
  tp.mode = decode::Mode::tp;
  expect_all_refuse(
      thrown_on({2, 1, {}},
                [&](const decode::Rank& rank) { (void)decode::run_layer(from, tp, five_tokens(), rank); }),
      ErrorKind::unsupported, {"layer 0", "BF16"});
}

TEST(OnehotRuns, F32RowsAndQuantisedRowsGiveTheSame) {
  const Written onehot;
  decode::LayerInputs f32 = five_tokens();
  f32.x_f32 = widened(f32.x);
  f32.x.clear();
  decode::LayerInputs codes = five_tokens();
  codes.rows_name = "a";
  codes.x.clear();
  // Code 7 (6.0) in column 0 of every block of 16, scale 0x38 (1.0).
  for (std::int64_t b = 0; b < codes.tokens * 16; ++b) {
    codes.a.push_back(0x07);
    codes.a.insert(codes.a.end(), 7, 0x00);
    codes.a_sf.push_back(0x38);
  }
  for (const decode::LayerInputs& in : {f32, codes})
    EXPECT_EQ(widened(run_on(placements()[1], onehot.open(), in).y), onehot_rows(five_tokens()));
}

TEST(OnehotRuns, UnfinalizedRowsAreEveryRanks) {
  const Written onehot;
  decode::LayerOptions options;
  options.unfinalized = true;
  const decode::LayerResult r = run_on(placements()[1], onehot.open(), five_tokens(), options);
  ASSERT_EQ(r.ranks.size(), 2U);
  const std::vector<std::int32_t>& ids = five_tokens().ids;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const decode::RankRows& mine = r.ranks[rank];
    EXPECT_EQ(mine.weights, five_tokens().weights);
    std::vector<bool> named(mine.rows.size() / 256);
    for (std::size_t route = 0; route < ids.size(); ++route) {
      const bool here = ids[route] >= 0 && static_cast<std::size_t>(ids[route]) / 2 == rank;
      ASSERT_EQ(mine.map[route] >= 0, here) << "rank " << rank << " route " << route;
      if (!here) continue;
      const auto row = static_cast<std::size_t>(mine.map[route]);
      named[row] = true;
      const std::vector<float> wanted = onehot_output(ids[route]);
      for (std::size_t h = 0; h < 256; ++h)
        ASSERT_EQ(numeric::bf16_to_f32(mine.rows[row * 256 + h]), wanted[h]) << "rank " << rank;
    }
    for (std::size_t row = 0; row < named.size(); ++row) {
      if (named[row]) continue;
      EXPECT_EQ(mine.rows[row * 256], 0) << "a row that no route owns";
    }
  }
}

TEST(OnehotRuns, NoTokensGiveNoRows) {
  const Written onehot;
  for (const Placement& p : placements()) {
    decode::LayerOptions options;
    options.unfinalized = true;
    const decode::LayerResult r = run_on(p, onehot.open(), onehot_tokens({}, {}), options);
    EXPECT_TRUE(r.y.empty());
    EXPECT_EQ(r.ranks.size(), static_cast<std::size_t>(p.ranks));
  }
}

TEST(OnehotRuns, AllTokensToOneExpert) {
  const Written onehot;
  const decode::LayerInputs in =
      onehot_tokens(std::vector<std::int32_t>(128, 3), std::vector<float>(128, 0.5F));
  expect_rows(onehot.open(), in, onehot_rows(in));
}

// One row's NaN stays in that row.
TEST(OnehotRuns, NanInOneRowLeavesTheOthers) {
  const Written onehot;
  decode::LayerInputs in = onehot_tokens({0, 1, 2, 3, 2, 1, 3, 3, 1, 0}, std::vector<float>(10, 0.5F));
  const std::vector<float> wanted = onehot_rows(in);
  std::fill_n(in.x.begin() + 256, 256, numeric::bf16_nan);
  for (const Placement& p : placements()) {
    const decode::LayerResult r = run_on(p, onehot.open(), in);
    for (std::size_t i = 0; i < r.y.size(); ++i) {
      if (i / 256 == 1) {
        ASSERT_EQ(r.y[i], numeric::bf16_nan) << p.label;
      } else {
        ASSERT_EQ(numeric::bf16_to_f32(r.y[i]), wanted[i]) << p.label << " " << i;
      }
    }
  }
}

// Weight-only: rows stay bf16, which the one-hot row survives exactly; the intermediate is bf16 too, where
// silu(36) * up is within rounding of 36 * up. Relative error of an output: one rounding to bf16 (8
// significant bits) is off by at most u = 2^-8 of the value. h rounds, the expert's row rounds, the sum over
// routes rounds; EP rounds once more where partial sums of ranks are added, TP where K-partials of a row are
// (each partial is rounded instead of the row). All terms are positive, so relative errors do not grow in
// sums: (1 + u)^4 - 1 of the exact value, and what is wanted is that value rounded, another u. f32's own
// roundings (2^-24 each, under a thousand of them) and sigmoid(36) = 1 - 2e-16 stay below 2^-14.
TEST(OnehotRuns, WeightOnlySaysSoAndRuns) {
  const Written onehot([](Onehot& o) {
    for (std::int64_t e = 0; e < 4; ++e)
      for (const char* m : {"gate_proj", "up_proj", "down_proj"})
        o.remove(o.name(e, std::string(m) + ".input_scale"));
    o.quantization["quant_algo"] = R"("W4A16_NVFP4")";
  });
  std::mutex mutex;
  std::string said;
  const Log log([&](LogLevel, const std::string& line) {
    const std::lock_guard lock(mutex);
    said += line + "\n";
  });
  const std::vector<float> wanted = onehot_rows(five_tokens());
  const double u = 0x1p-8;
  const double bound = (std::pow(1 + u, 4) - 1 + u) / (1 - u) + 0x1p-14;  // relative to the rounded value
  for (const Placement& p : placements()) {
    const std::vector<float> y = widened(run_on(p, onehot.open(), five_tokens(), {}, log).y);
    ASSERT_EQ(y.size(), wanted.size());
    for (std::size_t i = 0; i < y.size(); ++i)
      ASSERT_LE(std::fabs(double{y[i]} - double{wanted[i]}), bound * std::fabs(double{wanted[i]}))
          << p.label << " " << i;
  }
  EXPECT_NE(said.find("weight-only (W4A16)"), std::string::npos) << said;
}

// A scale or shape that cannot be used is refused on every rank, in words, and never becomes a number.
struct Fault {
  const char* label;
  std::function<void(Onehot&)> edit;
  std::vector<std::string> words;
};

std::vector<Verdict> refusals(const Checkpoint& from, int ranks) {
  return thrown_on({ranks, 1, {}},
                   [&](const decode::Rank& rank) { (void)decode::run_layer(from, {}, five_tokens(), rank); });
}

void expect_refused(const Fault& fault, int ranks) {
  SCOPED_TRACE(fmt::format("{} on {} ranks", fault.label, ranks));
  const Written onehot(fault.edit);
  std::optional<Checkpoint> from;
  std::vector<Verdict> verdicts = {attempt([&] { from = onehot.open(); })};
  if (!verdicts[0]) verdicts = refusals(*from, ranks);
  expect_all_refuse(verdicts, ErrorKind::checkpoint, {});
  ASSERT_TRUE(verdicts[0]);
  for (const std::string& word : fault.words)
    EXPECT_NE(verdicts[0]->text.find(word), std::string::npos)
        << "no '" << word << "' in: " << verdicts[0]->text;
}

TEST(OnehotRuns, UnusableGlobalScalesAreRefused) {
  const float inf = std::numeric_limits<float>::infinity();
  const auto input_scale = [](float value) {
    return [value](Onehot& o) { o.set_f32(o.name(2, "down_proj.input_scale"), value); };
  };
  const std::string down = "model.layers.0.mlp.experts.2.down_proj.input_scale";
  const std::vector<Fault> faults = {
      {"absent everywhere", [](Onehot& o) { o.remove(o.name(2, "down_proj.input_scale")); }, {down}},
      {"absent from the file",
       [](Onehot& o) { o.remove_from_file(o.name(2, "down_proj.input_scale")); },
       {down}},
      {"zero", input_scale(0.0F), {"layer 0", down, "expert 2", "1 of 4", "0"}},
      {"negative", input_scale(-1.0F), {"layer 0", down, "expert 2", "1 of 4", "-1"}},
      {"NaN", input_scale(std::nanf("")), {"layer 0", down, "expert 2", "1 of 4", "nan"}},
      {"infinite", input_scale(inf), {"layer 0", down, "expert 2", "1 of 4", "inf"}},
      {"too small to invert", input_scale(1e-45F), {"layer 0", down, "expert 2", "1 of 4", "1"}},
      {"weight scale zero",
       [](Onehot& o) { o.set_f32(o.name(1, "up_proj.weight_scale_2"), 0.0F); },
       {"layer 0", "experts.1.up_proj.weight_scale_2", "expert 1", "1 of 4"}},
  };
  for (const Fault& fault : faults)
    for (const int ranks : {1, 2, 4}) expect_refused(fault, ranks);
}

std::function<void(Onehot&)> block_scale(std::size_t block, std::uint8_t byte) {
  return [=](Onehot& o) { o.at(o.name(2, "up_proj.weight_scale")).bytes[5 * 16 + block] = byte; };
}

TEST(OnehotRuns, UnusableBlockScalesAreRefused) {
  for (const int ranks : {1, 2, 4}) {
    expect_refused({"0x7F", block_scale(11, 0x7F), {"expert 2", "row 5", "block 11", "0x7F", "1"}}, ranks);
    expect_refused({"0xFF", block_scale(11, 0xFF), {"expert 2", "row 5", "block 11", "0xFF"}}, ranks);
    expect_refused({"0xB8", block_scale(11, 0xB8), {"negative block scale", "expert 2", "row 5", "block 11"}},
                   ranks);
  }
}

// Faults on all ranks come as one message: how many, and where the first five are.
TEST(OnehotRuns, FaultsOfAllRanksAreCountedTogether) {
  const Written onehot([](Onehot& o) {
    for (std::int64_t e = 0; e < 4; ++e) {
      auto& bytes = o.at(o.name(e, "gate_proj.weight_scale")).bytes;
      for (std::size_t i = 0; i < 250; ++i) bytes[7 * i] = 0x7F;
    }
  });
  const Checkpoint from = onehot.open();
  const std::vector<Verdict> alone = refusals(from, 1);
  ASSERT_TRUE(alone[0]);
  for (const int ranks : {1, 2, 4}) {
    const std::vector<Verdict> verdicts = refusals(from, ranks);
    expect_all_refuse(verdicts, ErrorKind::checkpoint, {"1000", "row 0, block 7", "row 1, block 12"});
    EXPECT_EQ(verdicts[0]->text, alone[0]->text) << ranks;  // the same words at any number of ranks
  }
  std::size_t places = 0;
  for (std::size_t at = alone[0]->text.find("0x7F"); at != std::string::npos;
       at = alone[0]->text.find("0x7F", at + 1))
    ++places;
  EXPECT_EQ(places, 5U) << alone[0]->text;
}

// BF16 weights are scanned on the rank that holds them; what all ranks found is one message.
TEST(OnehotRuns, Bf16WeightsThatAreNoNumbersAreRefused) {
  const Written onehot(
      [](Onehot& o) {
        for (const std::int64_t e : {1, 3}) {
          auto& bytes = o.at(o.name(e, "down_proj.weight")).bytes;
          for (std::size_t i = 0; i < 4; ++i) {  // rows 0 to 3, column 5: two infinities, two NaN
            bytes[2 * (128 * i + 5)] = i < 2 ? 0x80 : 0xC1;
            bytes[2 * (128 * i + 5) + 1] = i % 2 == 0 ? 0x7F : 0xFF;
          }
        }
      },
      {.layers = {checkpoint::ExpertKind::bf16}});
  const Checkpoint from = onehot.open();
  const std::vector<Verdict> alone = refusals(from, 1);
  for (const int ranks : {1, 2, 4}) {
    const std::vector<Verdict> verdicts = refusals(from, ranks);
    expect_all_refuse(verdicts, ErrorKind::checkpoint,
                      {"8", "layer 0", "experts.1.down_proj.weight", "expert 1", "row 1, column 5", "0xFF80",
                       "expert 3", "row 0, column 5"});
    EXPECT_EQ(verdicts[0]->text, alone[0]->text) << ranks;
  }
}

// The norm's gain and the selection bias are values of the model too.
TEST(OnehotRuns, NormsAndBiasesThatAreNoNumbersAreRefused) {
  const auto with = [](const char* suffix, tensor::Dtype dtype, std::int64_t size) {
    return [=](Onehot& o) {
      OwnedTensor t{dtype, {size}, std::vector<std::uint8_t>(static_cast<std::size_t>(2 * size), 0)};
      t.bytes[2 * 3] = 0xC0;
      t.bytes[2 * 3 + 1] = 0x7F;
      o.add(0, o.layer_name(suffix), std::move(t));
    };
  };
  for (const int ranks : {1, 2}) {
    expect_refused({"norm",
                    with("mlp.experts.post_expert_norm.weight", tensor::Dtype::bf16, Onehot::hidden),
                    {"layer 0", "post_expert_norm.weight", "element 3", "0x7FC0"}},
                   ranks);
    expect_refused({"bias",
                    with("mlp.gate.e_score_correction_bias", tensor::Dtype::bf16, Onehot::experts),
                    {"layer 0", "e_score_correction_bias", "element 3", "0x7FC0"}},
                   ranks);
  }
}

TEST(OnehotRuns, ScalesThatMeanZeroAreAccepted) {
  const decode::LayerInputs in = onehot_tokens({2, -1, 0, 1}, {1, 0, 0.5F, 0.5F});
  const std::vector<float> unchanged = onehot_rows(in);
  std::vector<float> without = unchanged;
  without[103] = 0;
  without[231] = 0;
  EXPECT_EQ(unchanged[103], 648.0F);
  EXPECT_EQ(unchanged[231], 648.0F);
  expect_rows(Written(block_scale(12, 0x80)).open(), in, unchanged);
  for (const int byte : {0x80, 0x00, 0x01})
    expect_rows(Written(block_scale(11, static_cast<std::uint8_t>(byte))).open(), in, without);
}

TEST(OnehotRuns, DamagedFilesAreRefusedBeforeAnythingRuns) {
  const std::string second = "model-00002-of-00002.safetensors";
  {
    const Written onehot;
    std::filesystem::resize_file(onehot.path() / second, 109'480);
    const Verdict v = attempt([&] { (void)onehot.open(); });
    expect_all_refuse({v}, ErrorKind::checkpoint, {second, "113576", "109480"});
  }
  {
    const Written onehot;
    std::filesystem::remove(onehot.path() / second);
    expect_all_refuse({attempt([&] { (void)onehot.open(); })}, ErrorKind::checkpoint,
                      {second, "incomplete download?"});
  }
  expect_refused({"listed but absent",
                  [](Onehot& o) { o.remove_from_file(o.name(3, "up_proj.weight_scale")); },
                  {"experts.3.up_proj.weight_scale"}},
                 2);
}

OwnedTensor decoy(Onehot& o) {
  OwnedTensor t = o.at(o.name(3, "down_proj.weight"));
  std::fill(t.bytes.begin(), t.bytes.end(), std::uint8_t{0x22});
  return t;
}

TEST(OnehotRuns, TheIndexDecidesBetweenTwins) {
  const Written onehot([](Onehot& o) { o.add(0, o.name(3, "down_proj.weight"), decoy(o)); });
  expect_rows(onehot.open(), five_tokens(), onehot_rows(five_tokens()));

  const Written ambiguous([](Onehot& o) {
    o.add(0, o.name(3, "down_proj.weight"), decoy(o));
    o.with_index = false;
  });
  expect_all_refuse({attempt([&] { (void)ambiguous.open(); })}, ErrorKind::checkpoint,
                    {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"});
}

TEST(OnehotRuns, OneFileWithoutAnIndexIsAccepted) {
  const Written onehot({}, {.shards = 1});
  expect_rows(onehot.open(), five_tokens(), onehot_rows(five_tokens()));
}

TEST(OnehotRuns, IdsOutsideTheExpertsAreRefused) {
  const Written onehot;
  const Checkpoint from = onehot.open();
  for (const std::int32_t id : {4, -2, std::numeric_limits<std::int32_t>::max()}) {
    decode::LayerInputs in = five_tokens();
    in.ids[5] = id;
    const std::vector<Verdict> verdicts =
        thrown_on({2, 1, {}}, [&](const decode::Rank& rank) { (void)decode::run_layer(from, {}, in, rank); });
    expect_all_refuse(verdicts, ErrorKind::usage, {"token 2", "slot 1", std::to_string(id)});
  }
}

}  // namespace
}  // namespace kerf::test
