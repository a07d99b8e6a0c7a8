// The block around the experts, from a checkpoint: against the same in float64, in every placement; and every
// mistake that is easily made is told from it.
#include "kerf/decode/block.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "kerf/checkpoint/safetensors.h"
#include "kerf/decode/inputs.h"
#include "kerf/decode/runtime.h"
#include "kerf/tools/synth.h"
#include "tests/decode/block_reference.h"
#include "tests/decode/support.h"
#include "tests/support/test_env.h"

namespace kerf::test {
namespace {

using decode::BlockKind;
using decode::Mode;

constexpr std::int64_t D = 640;  // the model's width: neither H nor 2H, nor whole groups of 256

class Model {
 public:
  Model(tools::SynthModel kind, BlockKind block, std::int64_t intermediate = 256) : block_(block) {
    tools::SynthOptions o = tools::synth_defaults(kind);
    o.experts = 16;
    o.hidden = 256;
    if (block == BlockKind::muse_spark) o.model_hidden = D;
    o.intermediate = intermediate;
    o.layers = 2;
    o.top_k = 4;
    o.bf16_layers = {1};
    o.seed = 9;
    tools::synth(dir_.path(), o, Workers(1));
  }
  [[nodiscard]] checkpoint::Checkpoint open() const { return checkpoint::Checkpoint::open(dir_.path()); }
  [[nodiscard]] BlockKind block() const { return block_; }
  [[nodiscard]] std::int64_t width() const { return block_ == BlockKind::muse_spark ? D : 256; }
  // Multiplies an F32 tensor of the file.
  void scale_f32(const std::string& name, float factor) const {
    edit(shard, [&](std::string& text) {
      const checkpoint::TensorEntry entry = checkpoint::read_header(dir_.path() / shard).tensors.at(name);
      for (std::int64_t at = entry.begin; at < entry.end; at += 4) {
        float value = 0;
        std::memcpy(&value, text.data() + at, 4);
        value *= factor;
        std::memcpy(text.data() + at, &value, 4);
      }
    });
  }
  // Makes the last value of an F32 or BF16 tensor infinite.
  void put_infinity(const std::string& name) const {
    edit(shard, [&](std::string& text) {
      const checkpoint::TensorEntry entry = checkpoint::read_header(dir_.path() / shard).tensors.at(name);
      text.replace(static_cast<std::size_t>(entry.end) - 2, 2, "\x80\x7F");
    });
  }
  // Replaces the first such words of a file; a shard's must stay as long.
  void replace(const char* file, const std::string& from, const std::string& to) const {
    edit(file, [&](std::string& text) {
      const std::size_t at = text.find(from);
      ASSERT_NE(at, std::string::npos) << from;
      text.replace(at, from.size(), to);
    });
  }

 private:
  static constexpr const char* shard = "model-00001-of-00001.safetensors";

  void edit(const char* file, const std::function<void(std::string&)>& change) const {
    std::ifstream in(dir_.path() / file, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    change(text);
    std::ofstream(dir_.path() / file, std::ios::binary) << text;
  }

  TempDir dir_;
  BlockKind block_;
};

const Model& muse() {
  static const Model model(tools::SynthModel::muse_spark, BlockKind::muse_spark);
  return model;
}

const Model& qwen() {
  static const Model model(tools::SynthModel::qwen3_moe, BlockKind::qwen3_moe);
  return model;
}

struct Got {
  std::vector<std::uint16_t> out;  // [T, D]
  decode::Runtime::Chosen routes;
};

// One layer's step on every rank, which must all have the same bits.
Got run_block(const Model& model, std::int64_t layer, const BlockCase& c, std::int64_t tokens,
              const std::vector<std::uint16_t>& x, int threads = 1, tail::Kind tail = tail::Kind::fast) {
  const checkpoint::Checkpoint from = model.open();
  std::vector<Got> got(static_cast<std::size_t>(c.ranks));
  on_ranks({c.ranks, threads, {}}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.build.layers = {layer};
    options.build.input = c.input;
    options.block = model.block();
    options.tail.kind = tail;
    options.expert_tp = c.mode == Mode::tp && from.layer(layer).kind() == checkpoint::ExpertKind::nvfp4;
    const auto runtime = decode::Runtime::build(from, options, rank);
    runtime.warm_up();
    Got& mine = got[static_cast<std::size_t>(rank.group.rank())];
    mine.routes = runtime.routes_of_block(0, tokens, x);
    const auto out = runtime.execute_block(0, c.mode, tokens, x);
    mine.out.assign(out.begin(), out.end());
  });
  for (const Got& g : got) EXPECT_EQ(g.out, got[0].out);
  return got[0];
}

double rel_l2(const std::vector<std::uint16_t>& got, const Rows& wanted) {
  double apart = 0;
  double all = 0;
  std::size_t i = 0;
  for (const Row& row : wanted)
    for (const double v : row) {
      const double d = reference::bf16_value(got[i++]) - v;
      apart += d * d;
      all += v * v;
    }
  EXPECT_EQ(i, got.size());
  return all == 0 ? 0 : std::sqrt(apart / all);
}

const std::vector<BlockCase>& placements_of_blocks() {
  static const std::vector<BlockCase> all = {
      {Mode::ep, 1}, {Mode::ep, 2}, {Mode::ep, 4}, {Mode::tp, 2}, {Mode::tp, 4}};
  return all;
}

std::string described(std::int64_t layer, const BlockCase& c, std::int64_t tokens) {
  return fmt::format("layer {}, {} on {} ranks, {} rows, {} tokens", layer, decode::name(c.mode), c.ranks,
                     c.input == op::Input::nvfp4 ? "quantised" : "bf16", tokens);
}

// The reference rounds where kerf does. f32 and float64 sums lie about 2^-24 apart, so that once in some
// thousand times they are rounded to two neighbours, 2^-7 apart at most. Quantised rows hide nearly all of
// those that happen before the experts; one among the [T, D] results is 2^-8 / sqrt(640) = 1.5e-4 of a
// token's length. W4A4 has the same bits on every machine, so this either holds or does not.
constexpr double w4a4_bound = 3e-4;

// Rows that stay bf16 carry such a difference on, and every later rounding may then fall the other way: no
// more than roundings that have nothing to do with each other. One is off by at most u = 2^-8 of a value, in
// the root mean square by at most u / sqrt(3). h0 and h1 pass through a product of two of their projections,
// which doubles them; h, a row (of K-partials: twice), its product with the gain, m (of ranks' parts: twice)
// and f count once each: sqrt(2 * 4 + 7) * u / sqrt(3). The same bound holds against no roundings at all.
const double bf16_bound = std::sqrt(15.0 / 3) * 0x1p-8;

double bound_of(const checkpoint::MoeLayer& layer, const BlockCase& c) {
  const bool w4a4 = layer.kind() == checkpoint::ExpertKind::nvfp4 && c.input == op::Input::nvfp4;
  return w4a4 ? w4a4_bound : bf16_bound;
}

struct Compared {
  std::int64_t tokens = 0;
  std::int64_t certain = 0;  // whose keys are further apart than an f32 router can be off
};

// One layer, placement and number of tokens.
void compare(const Model& model, const BlockReference& reference, const checkpoint::MoeLayer& layer,
             const BlockCase& c, std::int64_t tokens, Compared& compared) {
  SCOPED_TRACE(described(layer.index(), c, tokens));
  const auto x = decode::make_rows(3, layer.index(), tokens, model.width());
  const Got got = run_block(model, layer.index(), c, tokens, x);
  const BlockReference::Result own = reference.run(x, c);
  ASSERT_EQ(got.out.size(), x.size());
  ASSERT_EQ(got.routes.ids.size(), own.ids.size());
  for (std::size_t t = 0; t < own.gap.size(); ++t) {
    ++compared.tokens;
    if (own.gap[t] <= 2 * own.key_error[t]) continue;
    ++compared.certain;
    for (std::size_t r = 4 * t; r < 4 * t + 4; ++r) EXPECT_EQ(got.routes.ids[r], own.ids[r]) << "route " << r;
  }
  const BlockReference::Result wanted = reference.run(x, c, got.routes.ids);
  // A score is off by key_error and the rounding of f32 formulas; BF16 layers round weights in the op.
  const double weight_error = layer.kind() == checkpoint::ExpertKind::bf16 ? 0x1p-8 : 1e-5;
  for (std::size_t r = 0; r < wanted.weights.size(); ++r)
    EXPECT_NEAR(got.routes.weights[r], wanted.weights[r], weight_error) << "route " << r;
  const double bound = bound_of(layer, c);
  EXPECT_LE(rel_l2(got.out, wanted.out), bound);
  if (bound == w4a4_bound) return;
  BlockCase pure = c;
  pure.roundings = false;
  EXPECT_LE(rel_l2(got.out, reference.run(x, pure, got.routes.ids).out), bound);
}

void compare_everywhere(const Model& model) {
  const checkpoint::Checkpoint from = model.open();
  Compared compared;
  for (const std::int64_t layer : {0, 1}) {
    const BlockReference reference(from, layer);
    for (BlockCase c : placements_of_blocks()) {
      for (const op::Input input : {op::Input::nvfp4, op::Input::bf16}) {
        c.input = input;
        if (layer == 1 && input == op::Input::bf16) continue;  // BF16 experts: the same thing
        for (const std::int64_t tokens : {0, 1, 3, 8})
          compare(model, reference, from.layer(layer), c, tokens, compared);
      }
    }
  }
  EXPECT_GE(compared.certain * 10, compared.tokens * 9);
}

TEST(Block, MuseSparkIsTheFloat64Model) { compare_everywhere(muse()); }
TEST(Block, Qwen3MoeIsTheFloat64Model) { compare_everywhere(qwen()); }

// Every mistake moves the result by several times the bound within which kerf lies beside the right
// reference.
void expect_told_apart(const Model& model, const std::vector<std::uint16_t>& x, const BlockCase& c,
                       std::initializer_list<Wrong> mistakes) {
  const checkpoint::Checkpoint from = model.open();
  const BlockReference reference(from, 0);
  const std::int64_t tokens = std::ssize(x) / model.width();
  const Got got = run_block(model, 0, c, tokens, x);
  EXPECT_LE(rel_l2(got.out, reference.run(x, c).out), w4a4_bound);
  for (const Wrong wrong : mistakes) {
    BlockCase mistaken = c;
    mistaken.wrong = wrong;
    EXPECT_GE(rel_l2(got.out, reference.run(x, mistaken).out), 5 * w4a4_bound)
        << "mistake " << static_cast<int>(wrong) << ", " << described(0, c, tokens);
  }
}

TEST(Block, ExpertsAndRouterSeeDifferentRows) {
  expect_told_apart(muse(), decode::make_rows(3, 0, 8, D), {},
                    {Wrong::router_on_pooled_rows, Wrong::no_pre_norm, Wrong::gate_and_up_swapped});
}

TEST(Block, ScoresAreMultipliedLogitsAndTheBiasOnlySelects) {
  expect_told_apart(muse(), decode::make_rows(3, 0, 8, D), {},
                    {Wrong::no_multiplier, Wrong::multiplier_after_sigmoid, Wrong::bias_in_weights,
                     Wrong::no_bias, Wrong::no_renormalisation});
}

TEST(Block, GainsAreOnePlusWRoundedAndBeforeTheNormOnlyAfterTheExperts) {
  expect_told_apart(muse(), decode::make_rows(3, 0, 8, D), {},
                    {Wrong::pre_gain_is_w, Wrong::pre_gain_not_rounded, Wrong::pre_gain_first,
                     Wrong::post_gain_not_rounded, Wrong::post_gain_last, Wrong::post_product_not_rounded});
}

// Where rows are small, the norms' epsilons decide.
TEST(Block, EachNormHasItsOwnEpsilon) {
  std::vector<std::uint16_t> small = decode::make_rows(3, 0, 8, D);
  for (std::uint16_t& v : small)
    if ((v & 0x7F80U) > 0x0480U) v = static_cast<std::uint16_t>(v - 0x0480U);  // 2^-9 of it
  expect_told_apart(muse(), small, {}, {Wrong::pre_eps_of_post});
  const Model scaled(tools::SynthModel::muse_spark, BlockKind::muse_spark);
  scaled.scale_f32("model.language_model.layers.0.mlp.experts.down_proj_weight_scale_2", 0x1p-12F);
  expect_told_apart(scaled, decode::make_rows(3, 0, 8, D), {}, {Wrong::post_eps_of_pre});
}

TEST(Block, RowsAreSummedOverRanksBeforeTheNormAndTheProjectionBack) {
  for (const int ranks : {2, 4}) {
    expect_told_apart(muse(), decode::make_rows(3, 0, 8, D), {Mode::tp, ranks},
                      {Wrong::post_norm_before_rank_sum});
    expect_told_apart(muse(), decode::make_rows(3, 0, 8, D), {Mode::ep, ranks},
                      {Wrong::unpool_before_rank_sum});
  }
}

// With exact tails nothing is rounded on the way between ranks: the whole block has one rank's bits wherever
// its experts are (slices of 512 are nodes of the sum over K), and one rank's are those of its fast tail.
TEST(Block, ExactTailsGiveOneRanksBitsInEveryPlacement) {
  const Model wide(tools::SynthModel::muse_spark, BlockKind::muse_spark, 1024);
  for (const std::int64_t tokens : {1, 8}) {
    const auto x = decode::make_rows(3, 0, tokens, D);
    const Got one = run_block(wide, 0, {}, tokens, x);
    bool fast_differs = false;
    for (const BlockCase& c : {BlockCase{Mode::ep, 1}, {Mode::ep, 2}, {Mode::ep, 4}, {Mode::tp, 2}}) {
      EXPECT_EQ(run_block(wide, 0, c, tokens, x, 1, tail::Kind::exact).out, one.out)
          << described(0, c, tokens);
      fast_differs = fast_differs || run_block(wide, 0, c, tokens, x).out != one.out;
    }
    EXPECT_TRUE(fast_differs) << tokens;
  }
}

TEST(Block, ThreadsAndNeighboursMakeNoDifference) {
  const auto x = decode::make_rows(5, 0, 8, D);
  const Got wanted = run_block(muse(), 0, {}, 8, x);
  EXPECT_EQ(run_block(muse(), 0, {}, 8, x, 3).out, wanted.out);
  for (std::size_t t = 0; t < 8; ++t) {
    const std::vector<std::uint16_t> one(x.begin() + static_cast<std::ptrdiff_t>(t * D),
                                         x.begin() + static_cast<std::ptrdiff_t>((t + 1) * D));
    const Got alone = run_block(muse(), 0, {}, 1, one);
    EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(),
                           wanted.out.begin() + static_cast<std::ptrdiff_t>(t * D)))
        << t;
  }
}

// Nothing of a block that does not exist, or of sizes that are not the model's.
TEST(Block, StepsThatDoNotFitAreRefused) {
  const checkpoint::Checkpoint from = muse().open();
  on_ranks({}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.max_tokens = 4;
    const auto bare = decode::Runtime::build(from, options, rank);
    options.block = BlockKind::muse_spark;
    const auto runtime = decode::Runtime::build(from, options, rank);
    EXPECT_TRUE(bare.blocks().empty());
    EXPECT_EQ(bare.footprint().block, 0);
    // F32 router and bias, two projections; the norm's gain is no tensor.
    EXPECT_EQ(runtime.footprint().block, 2 * (16 * D * 4 + 16 * 4 + 2 * 256 * D * 2));
    EXPECT_EQ(runtime.footprint().stock, bare.footprint().stock);
    EXPECT_GT(runtime.footprint().steps, bare.footprint().steps);
    const std::vector<std::uint16_t> x(5 * D);
    const auto refused = [&](const decode::Runtime& from_runtime, std::int64_t tokens, std::size_t values) {
      const Verdict v =
          attempt([&] { (void)from_runtime.execute_block(0, Mode::ep, tokens, std::span(x).first(values)); });
      if (!v) return std::string();
      EXPECT_EQ(v->kind, ErrorKind::usage) << v->text;
      return v->text;
    };
    EXPECT_NE(refused(bare, 1, D).find("without blocks"), std::string::npos);
    EXPECT_NE(refused(runtime, 5, 5 * D).find("at most 4"), std::string::npos);
    EXPECT_NE(refused(runtime, 2, D).find("wanted 1280"), std::string::npos);
    EXPECT_EQ(refused(runtime, 4, 4 * D), "");
  });
}

std::vector<Verdict> refused_build(const Model& model, BlockKind kind) {
  return thrown_on({2, 1, {}}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.block = kind;
    (void)decode::Runtime::build(model.open(), options, rank);
  });
}

TEST(Block, OfAnotherModelIsRefused) {
  expect_all_refuse(refused_build(qwen(), BlockKind::muse_spark), ErrorKind::unsupported,
                    {"muse-spark", "Qwen3MoeForCausalLM", "no Muse Spark model"});
  expect_all_refuse(refused_build(muse(), BlockKind::qwen3_moe), ErrorKind::unsupported,
                    {"qwen3-moe", "MuseSparkForConditionalGeneration", "a Muse Spark model"});
  const Model sigmoid(tools::SynthModel::qwen3_moe, BlockKind::qwen3_moe);
  sigmoid.replace("config.json", R"("norm_topk_prob")", R"("scoring_func": "sigmoid", "norm_topk_prob")");
  expect_all_refuse(refused_build(sigmoid, BlockKind::qwen3_moe), ErrorKind::unsupported,
                    {"scoring_func is \"sigmoid\"", "qwen3-moe's code scores by softmax"});
  const Model shared(tools::SynthModel::qwen3_moe, BlockKind::qwen3_moe);
  shared.replace("config.json", R"("norm_topk_prob")", R"("n_shared_experts": 2, "norm_topk_prob")");
  expect_all_refuse(refused_build(shared, BlockKind::qwen3_moe), ErrorKind::unsupported,
                    {"2 shared experts"});
}

TEST(Block, MissingAndMisshapenTensorsAreRefusedByName) {
  const std::string layer = "model.language_model.layers.1.";
  for (const char* suffix : {"mlp.gate.weight", "mlp.pre_expert_proj.weight", "mlp.pre_expert_norm.weight",
                             "mlp.post_expert_proj.weight", "mlp.gate.e_score_correction_bias"}) {
    const Model model(tools::SynthModel::muse_spark, BlockKind::muse_spark);
    const std::string name = layer + suffix;
    std::string other = name;
    other.back() = 'X';
    for (const char* file : {"model-00001-of-00001.safetensors", "model.safetensors.index.json"})
      model.replace(file, '"' + name + '"', '"' + other + '"');
    expect_all_refuse(refused_build(model, BlockKind::muse_spark), ErrorKind::checkpoint,
                      {"layer 1", suffix});
    // The experts alone need none of it.
    for (const Verdict& v : refused_build(model, BlockKind::none)) EXPECT_FALSE(v) << v->text;
  }
  const Model turned(tools::SynthModel::muse_spark, BlockKind::muse_spark);
  turned.replace("model-00001-of-00001.safetensors", "[256, 640]", "[640, 256]");
  expect_all_refuse(refused_build(turned, BlockKind::muse_spark), ErrorKind::checkpoint,
                    {"layer 0", "mlp.pre_expert_proj.weight in model-00001-of-00001.safetensors",
                     "got BF16 [640, 256]", "wanted BF16 [256, 640]"});
}

TEST(Block, ValuesThatAreNotFiniteAreRefused) {
  for (const char* suffix : {"mlp.gate.weight", "mlp.pre_expert_proj.weight", "mlp.pre_expert_norm.weight",
                             "mlp.post_expert_proj.weight"}) {
    const Model model(tools::SynthModel::muse_spark, BlockKind::muse_spark);
    const std::string name = std::string("model.language_model.layers.1.") + suffix;
    model.put_infinity(name);
    expect_all_refuse(refused_build(model, BlockKind::muse_spark), ErrorKind::checkpoint,
                      {"layer 1", name, "not finite", "model-00001-of-00001.safetensors"});
    for (const Verdict& v : refused_build(model, BlockKind::none)) EXPECT_FALSE(v) << v->text;
  }
}

TEST(Block, NamesAndKinds) {
  EXPECT_EQ(decode::block_names(), (std::vector<std::string>{"none", "qwen3-moe", "muse-spark"}));
  for (const std::string& n : decode::block_names()) EXPECT_EQ(decode::name(decode::block_kind(n)), n);
  const Verdict v = attempt([] { (void)decode::block_kind("dense"); });
  ASSERT_TRUE(v);
  EXPECT_EQ(v->kind, ErrorKind::usage);
  EXPECT_NE(v->text.find("none, qwen3-moe, muse-spark"), std::string::npos) << v->text;
}

}  // namespace
}  // namespace kerf::test
