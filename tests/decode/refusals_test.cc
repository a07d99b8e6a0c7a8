// One rank alone has a reason to refuse: at every check of build, reshard, probe, pin, plan and of a layer's
// run, all ranks end with that rank's number and its reason.
#include <gtest/gtest.h>

#include <cmath>

#include "kerf/base/format.h"
#include "kerf/decode/decode.h"
#include "kerf/decode/run_layer.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/forwarding_experts.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

using decode::Mode;

constexpr int kRanks = 4;
constexpr int kOdd = 2;  // the rank that refuses

bool odd(const decode::Rank& rank) { return rank.group.rank() == kOdd; }

// Every rank refuses with the words, and with the odd rank's number.
void expect_refused(ErrorKind kind, const std::string& words,
                    const std::function<void(const decode::Rank&)>& body, const Log& log = {}) {
  SCOPED_TRACE(words);
  const auto verdicts = thrown_on({kRanks, 1, log}, [&](const decode::Rank& rank) {
    const Verdict mine = attempt([&] { body(rank); });
    rank.group.barrier("the group is whole after a refusal");
    require(mine);
  });
  expect_all_refuse(verdicts, kind, {fmt::format("rank {}", kOdd), words});
}

std::vector<decode::Layer> built(const checkpoint::Checkpoint& from, const decode::Rank& rank,
                                 std::vector<std::int64_t> layers = {0}) {
  decode::BuildOptions options;
  options.layers = std::move(layers);
  return decode::build(from, options, rank);
}

// Experts whose op differs in one thing from the one below.
class Altered : public ForwardingExperts {
 public:
  using ForwardingExperts::ForwardingExperts;
  [[nodiscard]] std::vector<op::Tactic> tactics(std::int64_t tokens) const override {
    return tactics_ ? tactics_(tokens) : ForwardingExperts::tactics(tokens);
  }
  [[nodiscard]] std::size_t workspace_bytes(const routing::MetadataShape& shape,
                                            op::Tactic tactic) const override {
    if (workspace_fails_) fail(ErrorKind::device, "the device does not answer");
    return ForwardingExperts::workspace_bytes(shape, tactic);
  }

  std::function<std::vector<op::Tactic>(std::int64_t tokens)> tactics_;
  bool workspace_fails_ = false;
};

Altered& alter(std::unique_ptr<op::RoutedExperts>& experts) {
  auto altered = std::make_unique<Altered>(std::move(experts));
  Altered& out = *altered;
  experts = std::move(altered);
  return out;
}

// What one rank is told differently ends the start by itself, with both values, whether or not it could be
// built.
TEST(OneRankRefuses, WhatToBuild) {
  const checkpoint::Checkpoint from = small_model().open();
  const auto with = [&](const std::function<void(decode::RuntimeOptions&)>& edit) {
    return [&, edit](const decode::Rank& rank) {
      decode::RuntimeOptions options;
      options.build.layers = {0};
      if (odd(rank)) edit(options);
      (void)decode::Runtime::build(from, options, rank);
    };
  };
  expect_refused(ErrorKind::usage, "most tokens of a step: rank 2: 0, others: 8",
                 with([](auto& o) { o.max_tokens = 0; }));
  expect_refused(ErrorKind::usage, "layers: rank 2: 9, others: 0",
                 with([](auto& o) { o.build.layers = {9}; }));
  expect_refused(ErrorKind::usage, "backend: rank 2: abacus, others: cpu",
                 with([](auto& o) { o.build.backend = "abacus"; }));
  expect_refused(ErrorKind::usage, "block: rank 2: qwen3-moe, others: none",
                 with([](auto& o) { o.block = decode::BlockKind::qwen3_moe; }));
  expect_refused(ErrorKind::usage, "batch", [&](const decode::Rank& rank) {
    decode::Options options;
    if (odd(rank)) options.batches = {};
    (void)decode::run(from, options, rank);
  });
}

// The odd rank reads a copy of the checkpoint that was damaged on its way.
TEST(OneRankRefuses, FilesThatOnlyItSees) {
  struct Damage {
    ErrorKind kind;
    const char* words;
    std::function<void(Onehot&)> edit;
  };
  const std::vector<Damage> damages = {
      {ErrorKind::checkpoint, "experts.1.up_proj.weight_scale_2",
       [](Onehot& o) { o.set_f32(o.name(1, "up_proj.weight_scale_2"), 0.0F); }},
      {ErrorKind::checkpoint, "experts.3.down_proj.input_scale",
       [](Onehot& o) { o.set_f32(o.name(3, "down_proj.input_scale"), std::nanf("")); }},
  };
  for (const Damage& damage : damages) {
    const TempDir good;
    const TempDir bad;
    Onehot onehot;
    onehot.write(good.path());
    damage.edit(onehot);
    onehot.write(bad.path());
    expect_refused(damage.kind, damage.words, [&](const decode::Rank& rank) {
      (void)built(checkpoint::Checkpoint::open(odd(rank) ? bad.path() : good.path()), rank);
    });
  }
}

// A block scale belongs to one rank's experts: all hear of the place in the files, which the rank stands for.
TEST(OneRankRefuses, ValuesThatOnlyItReads) {
  const TempDir good;
  const TempDir bad;
  Onehot onehot;
  onehot.write(good.path());
  onehot.at(onehot.name(kOdd, "up_proj.weight_scale")).bytes[5 * 16 + 11] = 0x7F;
  onehot.write(bad.path());
  const auto with_bad = [&](int seen_by) {
    return thrown_on({kRanks, 1, {}}, [&](const decode::Rank& rank) {
      const auto& path = rank.group.rank() == seen_by ? bad.path() : good.path();
      (void)built(checkpoint::Checkpoint::open(path), rank);
    });
  };
  expect_all_refuse(with_bad(kOdd), ErrorKind::checkpoint, {"expert 2", "row 5", "block 11", "0x7F"});
  for (const Verdict& v : with_bad(0)) EXPECT_FALSE(v) << v->text;  // rank 0 does not read that expert
}

TEST(OneRankRefuses, TheReshard) {
  const checkpoint::Checkpoint from = small_model().open();
  const auto cut_after = [&](const std::function<void(decode::Layer&)>& edit, const char* backend = "cpu") {
    return [&, edit, backend](const decode::Rank& rank) {
      std::vector<decode::Layer> layers = built(from, rank);
      if (odd(rank)) edit(layers[0]);
      decode::cut(layers[0], odd(rank) ? backend : "cpu", rank);
    };
  };
  const auto experts = [](decode::Layer& layer) -> layout::Nvfp4Experts& {
    return std::get<layout::Nvfp4Experts>(layer.stock);
  };
  expect_refused(ErrorKind::unsupported, "layer 0: a1_gscale must have the same bits",
                 cut_after([&](decode::Layer& l) { experts(l).a1_gscale.as<float>()[0] *= 1.0000001F; }));
  expect_refused(ErrorKind::unsupported, "layer 0: a2_gscale must have the same bits",
                 cut_after([&](decode::Layer& l) { experts(l).a2_gscale.as<float>()[0] *= 2; }));
  expect_refused(ErrorKind::unsupported, "holds expert 9 where linear placement has 8",
                 cut_after([&](decode::Layer& l) { experts(l).first_expert = 9; }));
  expect_refused(ErrorKind::bug, "does not hold NVFP4 experts", [&](const decode::Rank& rank) {
    std::vector<decode::Layer> layers = built(from, rank, {0, 1});
    decode::cut(layers[odd(rank) ? 1 : 0], "cpu", rank);
  });
  expect_refused(ErrorKind::usage, "abacus", cut_after([](decode::Layer&) {}, "abacus"));
}

TEST(OneRankRefuses, TheProbe) {
  const checkpoint::Checkpoint from = small_model().open();
  const auto probe_after = [&](const std::function<void(decode::Layer&)>& edit) {
    return [&, edit](const decode::Rank& rank) {
      std::vector<decode::Layer> layers = built(from, rank);
      decode::cut(layers[0], "cpu", rank);
      if (odd(rank)) edit(layers[0]);
      (void)decode::probe(layers[0], {}, rank);
    };
  };
  expect_refused(ErrorKind::bug, "layer 0 has no sliced experts to probe",
                 probe_after([](decode::Layer& l) { l.tp.reset(); }));
  for (const bool stock : {true, false})
    expect_refused(ErrorKind::device, "the device does not answer", probe_after([=](decode::Layer& l) {
                     alter(stock ? l.ep : l.tp).workspace_fails_ = true;
                   }));
}

TEST(OneRankRefuses, ATacticThatOnlyItCannotTry) {
  const checkpoint::Checkpoint from = small_model().open();
  expect_refused(ErrorKind::device, "no list of kernels", [&](const decode::Rank& rank) {
    std::vector<decode::Layer> layers = built(from, rank);
    decode::cut(layers[0], "cpu", rank);
    const std::vector<op::Tactic> preferred = {layers[0].tp->tactics(8).front()};
    const decode::Plan plan = decode::make_plan(layers, {}, rank);
    if (odd(rank))
      alter(layers[0].tp).tactics_ = [](std::int64_t) -> std::vector<op::Tactic> {
        fail(ErrorKind::device, "no list of kernels");
      };
    (void)decode::pin(plan, layers, preferred, {}, rank);
  });
}

// A tactic that one rank does not have at one number of tokens is pinned on none, and one line says so.
TEST(OneRankRefuses, ATacticThatOnlyItLacksIsPinnedOnNone) {
  const checkpoint::Checkpoint from = small_model().open();
  std::vector<std::string> warnings;
  const Log log([&](LogLevel level, const std::string& line) {
    if (level == LogLevel::warning) warnings.push_back(line);
  });
  std::vector<decode::TacticChoice> choices(kRanks);
  on_ranks({kRanks, 1, log}, [&](const decode::Rank& rank) {
    std::vector<decode::Layer> layers = built(from, rank);
    decode::cut(layers[0], "cpu", rank);
    const std::vector<op::Tactic> valid = layers[0].tp->tactics(8);
    if (odd(rank))
      alter(layers[0].tp).tactics_ = [valid](std::int64_t tokens) {
        return tokens == 5 ? std::vector<op::Tactic>(valid.begin() + 1, valid.end()) : valid;
      };
    const decode::Plan eight = decode::make_plan(layers, {8}, rank);
    choices[static_cast<std::size_t>(rank.group.rank())] =
        decode::pin(eight, layers, std::vector{valid.front()}, {}, rank);
    const decode::Plan four = decode::make_plan(layers, {4}, rank);
    EXPECT_TRUE(decode::pin(four, layers, std::vector{valid.front()}, {}, rank).pinned);
  });
  for (const decode::TacticChoice& choice : choices) {
    EXPECT_FALSE(choice.pinned);
    EXPECT_EQ(choice.tactic, op::Tactic{});
  }
  EXPECT_EQ(warnings.size(), 1U);
}

TEST(OneRankRefuses, ThePlan) {
  const checkpoint::Checkpoint from = small_model().open();
  expect_refused(ErrorKind::usage, "a step of 0 tokens", [&](const decode::Rank& rank) {
    const std::vector<decode::Layer> layers = built(from, rank);
    (void)decode::make_plan(layers, {odd(rank) ? 0 : 8}, rank);
  });
  expect_refused(ErrorKind::device, "the device does not answer", [&](const decode::Rank& rank) {
    std::vector<decode::Layer> layers = built(from, rank);
    if (odd(rank)) alter(layers[0].ep).workspace_fails_ = true;
    (void)decode::make_plan(layers, {8}, rank);
  });
  expect_refused(ErrorKind::memory, "no memory for the plan", [&](const decode::Rank& rank) {
    class Empty final : public tensor::Memory {
     public:
      std::byte* allocate(std::size_t) override { fail(ErrorKind::memory, "no memory for the plan"); }
      void release(std::byte*, std::size_t) noexcept override {}
    };
    const std::vector<decode::Layer> layers = built(from, rank);
    Empty none;
    decode::Meter meter(none);
    decode::Rank poor{rank.group, odd(rank) ? meter : rank.memory, rank.workers, rank.log};
    (void)decode::make_plan(layers, {8}, poor);
  });
}

TEST(OneRankRefuses, TheBlockAroundTheExperts) {
  const TempDir good;
  const TempDir bad;
  Onehot onehot;
  onehot.write(good.path());
  const std::string gate = onehot.layer_name("mlp.gate.weight");
  onehot.at(gate).bytes[2 * 700] = 0xC0;  // row 2, column 188: NaN
  onehot.at(gate).bytes[2 * 700 + 1] = 0x7F;
  onehot.write(bad.path());
  const std::vector<std::int64_t> layers = {0};
  expect_refused(
      ErrorKind::checkpoint, gate + ", row 2, column 188, bits 0x7FC0", [&](const decode::Rank& rank) {
        (void)decode::build_blocks(checkpoint::Checkpoint::open(odd(rank) ? bad.path() : good.path()), layers,
                                   decode::BlockKind::qwen3_moe, rank);
      });
  expect_refused(ErrorKind::memory, "no memory for the block", [&](const decode::Rank& rank) {
    class Empty final : public tensor::Memory {
     public:
      std::byte* allocate(std::size_t) override { fail(ErrorKind::memory, "no memory for the block"); }
      void release(std::byte*, std::size_t) noexcept override {}
    };
    Empty none;
    decode::Meter meter(none);
    decode::Rank poor{rank.group, odd(rank) ? meter : rank.memory, rank.workers, rank.log};
    (void)decode::build_blocks(checkpoint::Checkpoint::open(good.path()), layers,
                               decode::BlockKind::qwen3_moe, poor);
  });
}

TEST(OneRankRefuses, ALayersInputs) {
  const checkpoint::Checkpoint from = small_model().open();
  const auto with = [&](const std::function<void(decode::LayerInputs&, decode::LayerOptions&)>& edit) {
    return [&, edit](const decode::Rank& rank) {
      decode::LayerOptions options;
      decode::LayerInputs in;
      in.rows_name = "x";
      in.routes_name = "topk_ids";
      in.tokens = 1;
      in.x.assign(256, 0x3F80);
      in.ids = {0, 1, 2, 3};
      in.weights.assign(4, 0.25F);
      if (odd(rank)) edit(in, options);
      (void)decode::run_layer(from, options, in, rank);
    };
  };
  expect_refused(ErrorKind::usage, "16", with([](auto& in, auto&) { in.ids[3] = 16; }));
  expect_refused(ErrorKind::usage, "255 values of x", with([](auto& in, auto&) { in.x.pop_back(); }));
  expect_refused(ErrorKind::usage, "layer 7, wanted 0 to 3", with([](auto&, auto& o) { o.layer = 7; }));
}

}  // namespace
}  // namespace kerf::test
