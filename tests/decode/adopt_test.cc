// An engine's own layers: bound where they lie, with the bits of a checkpoint's; and everything that makes
// them unfit.
#include "kerf/decode/adopt.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kerf/decode/inputs.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/forwarding_group.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

using checkpoint::ExpertKind;
using decode::Mode;
using decode::StockLayer;

constexpr decode::ModelSize size_of_model = {16, 4};  // small_model()

// An engine: it has loaded its experts in its own way, and hands out what it holds.
struct Engine {
  Engine(const checkpoint::Checkpoint& from, const decode::Rank& rank,
         const std::vector<std::int64_t>& layers = {}) {
    decode::BuildOptions options;
    options.layers = layers;
    held = decode::build(from, options, {rank.group, memory, rank.workers, {}});
  }

  [[nodiscard]] std::vector<StockLayer> layers() const {
    std::vector<StockLayer> out;
    for (const decode::Layer& layer : held) {
      StockLayer stock;
      stock.index = layer.index;
      stock.top_k = layer.ep->top_k();
      stock.input = layer.input;
      stock.norm = layer.norm;
      if (layer.kind == ExpertKind::nvfp4)
        stock.experts = layer.nvfp4();
      else
        stock.experts = layer.bf16();
      out.push_back(std::move(stock));
    }
    return out;
  }

  tensor::HostMemory host;
  decode::Meter memory{host};
  std::vector<decode::Layer> held;
};

std::vector<std::uint16_t> step_of(const decode::Runtime& runtime, std::size_t position, Mode mode,
                                   std::int64_t tokens) {
  const decode::Layer& layer = runtime.layers()[position];
  const decode::Inputs in = decode::make_inputs(1, layer.index, tokens, layer.kind, {16, 256, 4});
  decode::StepInputs step{tokens, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
  if (layer.kind == ExpertKind::bf16) step = {tokens, in.x, {}, {}, {}, {}, &runtime.router(), in.logits, {}};
  const auto y = runtime.execute(position, mode, step);
  return {y.begin(), y.end()};
}

// The same weights from a checkpoint and from an engine: NVFP4 and BF16 layers, EP and TP.
TEST(Adopt, GivesTheBitsOfTheCheckpoint) {
  const checkpoint::Checkpoint from = small_model().open();
  decode::RuntimeOptions options;
  options.expert_tp = true;
  for (const int ranks : {2, 4}) {
    on_ranks({ranks, 1, {}}, [&](const decode::Rank& rank) {
      const Engine engine(from, rank);
      const auto built = decode::Runtime::build(from, options, rank);
      const std::int64_t before = rank.memory.current();
      const auto adopted = decode::Runtime::adopt(engine.layers(), size_of_model, options, rank);
      adopted.warm_up();
      ASSERT_EQ(adopted.layers().size(), 4U);
      ASSERT_TRUE(adopted.sharding());
      EXPECT_EQ(adopted.sharding()->nvfp4_layers, 3);
      EXPECT_EQ(adopted.sharding()->bf16_layers, 1);
      EXPECT_EQ(adopted.sharding()->max_rel_l2, built.sharding()->max_rel_l2);
      // What was adopted costs this rank nothing; slices and buffers are those of the checkpoint's runtime.
      EXPECT_EQ(adopted.footprint().stock, 0);
      EXPECT_EQ(adopted.footprint().sliced, built.footprint().sliced);
      EXPECT_EQ(adopted.footprint().steps, built.footprint().steps);
      EXPECT_EQ(rank.memory.current() - before, built.footprint().sliced + built.footprint().steps);
      for (std::size_t i = 0; i < 4; ++i)
        for (const Mode mode : {Mode::ep, Mode::tp})
          for (const std::int64_t tokens : {1, 3, 8}) {
            const auto wanted = step_of(built, i, mode, tokens);
            EXPECT_TRUE(std::any_of(wanted.begin(), wanted.end(), [](auto bits) { return bits != 0; }));
            EXPECT_EQ(step_of(adopted, i, mode, tokens), wanted)
                << "layer " << i << ", mode " << name(mode) << ", " << tokens << " tokens";
          }
    });
  }
}

// The engine's bytes themselves are what a step reads.
TEST(Adopt, UsesTheEnginesTensorsInPlace) {
  const checkpoint::Checkpoint from = small_model().open();
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    Engine engine(from, rank, {0, 1});
    const auto runtime = decode::Runtime::adopt(engine.layers(), size_of_model, {}, rank);
    auto& nvfp4 = std::get<layout::Nvfp4Experts>(engine.held[0].stock);
    auto& bf16 = std::get<layout::Bf16Experts>(engine.held[1].stock);
    EXPECT_EQ(runtime.layers()[0].nvfp4().w13.bytes.data(), nvfp4.w13.bytes().data());
    EXPECT_EQ(runtime.layers()[0].nvfp4().w2_sf.bytes.data(), nvfp4.w2_sf.bytes().data());
    EXPECT_EQ(runtime.layers()[1].bf16().w2.bytes.data(), bf16.w2.bytes().data());
    for (const std::size_t position : {0U, 1U}) {
      const auto before = step_of(runtime, position, Mode::ep, 8);
      EXPECT_TRUE(std::any_of(before.begin(), before.end(), [](auto bits) { return (bits & 0x7FFF) != 0; }));
    }
    rank.group.barrier("both have looked");
    std::ranges::fill(nvfp4.w2.bytes(), std::byte{0});
    std::ranges::fill(bf16.w2.bytes(), std::byte{0});
    for (const std::size_t position : {0U, 1U}) {
      const auto after = step_of(runtime, position, Mode::ep, 8);
      EXPECT_TRUE(std::all_of(after.begin(), after.end(), [](auto bits) { return (bits & 0x7FFF) == 0; }));
    }
  });
}

// Alpha, beta and limits belong to experts: TP has to find those of every rank's, in global order. Each
// expert has its own, so that the probe would see a wrong one.
TEST(Adopt, GatedParametersFollowTheirExperts) {
  const checkpoint::Checkpoint from = small_model().open();
  on_ranks({4, 1, {}}, [&](const decode::Rank& rank) {
    const Engine engine(from, rank, {0});
    const float first = 4.0F * static_cast<float>(rank.group.rank());
    std::vector<float> alpha;
    std::vector<float> beta;
    std::vector<float> limit;
    for (int e = 0; e < 4; ++e) {
      alpha.push_back(0.25F + 0.5F * (first + static_cast<float>(e)));
      beta.push_back(static_cast<float>(e) - 2.0F * first);
      limit.push_back(1000.0F + 100.0F * first);
    }
    std::vector<StockLayer> layers = engine.layers();
    decode::RuntimeOptions options;
    options.expert_tp = true;
    const auto plain = decode::Runtime::adopt(layers, size_of_model, options, rank);
    layers[0].gated = {alpha, beta, limit, limit};
    const auto gated = decode::Runtime::adopt(layers, size_of_model, options, rank);
    EXPECT_LT(gated.sharding()->max_rel_l2, decode::probe_limit);
    EXPECT_NE(step_of(gated, 0, Mode::ep, 8), step_of(plain, 0, Mode::ep, 8));
    EXPECT_NE(step_of(gated, 0, Mode::tp, 8), step_of(plain, 0, Mode::tp, 8));
  });
}

struct Fault {
  const char* name;
  ErrorKind kind;
  std::vector<std::string> words;
  std::function<void(std::vector<StockLayer>&)> plant;  // on rank 1 alone
};

layout::Nvfp4View& view_of(StockLayer& layer) { return std::get<layout::Nvfp4View>(layer.experts); }

// One rank's layers are unfit: every rank says so, with that rank's words, and nobody waits.
TEST(Adopt, WhatOneRankRefusesAllRefuse) {
  const checkpoint::Checkpoint from = small_model().open();
  const std::vector<Fault> faults = {
      {"no kernel",
       ErrorKind::unsupported,
       {"rank 1: layer 2: it has no experts kernel"},
       [](auto& l) { l[2].experts = std::monostate(); }},
      {"another kind",
       ErrorKind::unsupported,
       {"rank 1: layer 3", "the kind 'Fp8BlockExperts', wanted NVFP4 or BF16"},
       [](auto& l) { l[3].experts = decode::OtherExperts{"Fp8BlockExperts"}; }},
      {"top k",
       ErrorKind::unsupported,
       {"layer 0: its K is 8, the model's 4"},
       [](auto& l) { l[0].top_k = 8; }},
      {"finalises",
       ErrorKind::unsupported,
       {"layer 0: its op finalises"},
       [](auto& l) { l[0].finalises = true; }},
      {"captures",
       ErrorKind::unsupported,
       {"layer 1: its op's routes are captured"},
       [](auto& l) { l[1].captures_routes = true; }},
      {"placement",
       ErrorKind::unsupported,
       {"layer 0: rank 1 holds expert 0 where linear placement has 8"},
       [](auto& l) { view_of(l[0]).first_expert = 0; }},
      {"BF16 placement",
       ErrorKind::unsupported,
       {"layer 1: rank 1 holds expert 4"},
       [](auto& l) { std::get<layout::Bf16View>(l[1].experts).first_expert = 4; }},
      {"no scales",
       ErrorKind::unsupported,
       {"layer 0: w13_sf: got U8 [], expected F8_E4M3 [8, 512, 16]"},
       [](auto& l) { view_of(l[0]).w13_sf = {}; }},
      {"misaligned",
       ErrorKind::unsupported,
       {"layer 0: a1_gscale is not aligned to 4 bytes"},
       [](auto& l) {
         static std::array<std::byte, 16> bytes;
         view_of(l[0]).a1_gscale.bytes = std::span(bytes).subspan(1, 4);
       }},
      {"norm",
       ErrorKind::unsupported,
       {"layer 0: its norm has a gain of 255 values, H is 256"},
       [](auto& l) { l[0].norm->gain.pop_back(); }},
      {"gated",
       ErrorKind::unsupported,
       {"layer 0: gated alpha has 3 values"},
       [](auto& l) {
         static const std::array<float, 3> three = {1, 1, 1};
         l[0].gated.alpha = three;
       }},
      {"every fault",
       ErrorKind::unsupported,
       {"layer 0: its K is 8", "layer 2: it has no experts kernel", "layer 3: its op finalises"},
       [](auto& l) {
         l[0].top_k = 8;
         l[2].experts = std::monostate();
         l[3].finalises = true;
       }},
      {"twice", ErrorKind::usage, {"layer 2 comes twice"}, [](auto& l) { l[3].index = 2; }},
      {"none", ErrorKind::usage, {"no layers to adopt"}, [](auto& l) { l.clear(); }},
      // What is sound on its own and differs from the other rank's.
      {"one fewer",
       ErrorKind::usage,
       {"differ between ranks: rank 0 has", "rank 1 has"},
       [](auto& l) { l.pop_back(); }},
      {"another order", ErrorKind::usage, {"differ between ranks"}, [](auto& l) { std::swap(l[0], l[2]); }},
      {"another norm", ErrorKind::usage, {"differ between ranks"}, [](auto& l) { l[0].norm->gain[7] ^= 1; }},
      {"another input",
       ErrorKind::usage,
       {"differ between ranks"},
       [](auto& l) { l[0].input = op::Input::bf16; }},
  };
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.name);
    const auto verdicts = thrown_on({2, 1, {}}, [&](const decode::Rank& rank) {
      const Engine engine(from, rank);
      std::vector<StockLayer> layers = engine.layers();
      if (rank.group.rank() == 1) fault.plant(layers);
      (void)decode::Runtime::adopt(layers, size_of_model, {}, rank);
    });
    expect_all_refuse(verdicts, fault.kind, {});
    ASSERT_TRUE(verdicts[0]);
    for (const std::string& word : fault.words)
      EXPECT_NE(verdicts[0]->text.find(word), std::string::npos) << word << " in: " << verdicts[0]->text;
  }
}

// Each rank's own layers fit what it is told of the model, but they are told different things.
TEST(Adopt, RanksAreToldOfOneModel) {
  const Synthetic small(8, 128, 128, {}, 1);
  const Synthetic large(16, 128, 128, {}, 1);
  const checkpoint::Checkpoint few = small.open();
  const checkpoint::Checkpoint many = large.open();
  const auto told = [&](bool runtime) {
    return thrown_on({2, 1, {}}, [&](const decode::Rank& rank) {
      const Engine eight(few, rank);
      const Engine sixteen(many, rank);
      const bool first = rank.group.rank() == 0;
      const Engine& engine = first ? eight : sixteen;
      const decode::ModelSize model{first ? 8 : 16, 4};
      if (runtime)
        (void)decode::Runtime::adopt(engine.layers(), model, {}, rank);
      else
        (void)decode::adopt(engine.layers(), model, "cpu", rank);
    });
  };
  expect_all_refuse(told(true), ErrorKind::usage,
                    {"do not start alike", "rank 0: 8 experts, top 4, rank 1: 16 experts, top 4"});
  expect_all_refuse(told(false), ErrorKind::usage,
                    {"differ between ranks", "8 experts, top 4", "16 experts, top 4"});
}

TEST(Adopt, ANormMayHaveNoGain) {
  const checkpoint::Checkpoint from = small_model().open();
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    const Engine engine(from, rank, {0});
    std::vector<StockLayer> layers = engine.layers();
    layers[0].norm->gain.clear();
    const auto runtime = decode::Runtime::adopt(layers, size_of_model, {}, rank);
    EXPECT_NO_THROW(runtime.warm_up());
  });
}

TEST(Adopt, LayersOfOneRuntimeHaveOneWidth) {
  const checkpoint::Checkpoint from = small_model().open();
  const Synthetic wide(16, 384, 256, {}, 1);
  const checkpoint::Checkpoint other = wide.open();
  expect_all_refuse(thrown_on({2, 1, {}},
                              [&](const decode::Rank& rank) {
                                const Engine engine(from, rank, {0});
                                const Engine wider(other, rank);
                                std::vector<StockLayer> layers = engine.layers();
                                layers.push_back(wider.layers()[0]);
                                layers[1].index = 5;
                                (void)decode::Runtime::adopt(layers, size_of_model, {}, rank);
                              }),
                    ErrorKind::unsupported, {"layer 5: H is 384", "256"});
}

TEST(Adopt, OptionsThatMakeNoSense) {
  const checkpoint::Checkpoint from = small_model().open();
  const auto refused = [&](const decode::RuntimeOptions& options, decode::ModelSize size) {
    return thrown_on({2, 1, {}}, [&](const decode::Rank& rank) {
      const Engine engine(from, rank, {0, 1});
      (void)decode::Runtime::adopt(engine.layers(), size, options, rank);
    });
  };
  decode::RuntimeOptions options;
  options.build.layers = {0};
  expect_all_refuse(refused(options, size_of_model), ErrorKind::usage, {"all that are given"});
  options = {};
  options.build.backend = "abacus";
  expect_all_refuse(refused(options, size_of_model), ErrorKind::usage, {"abacus", "reference"});
  options = {};
  options.max_tokens = 0;
  expect_all_refuse(refused(options, size_of_model), ErrorKind::usage, {"0 tokens"});
  expect_all_refuse(refused({}, {32, 4}), ErrorKind::unsupported, {"layer 0", "8 experts", "32"});
  // Expert TP of BF16 layers alone.
  options = {};
  options.expert_tp = true;
  expect_all_refuse(thrown_on({2, 1, {}},
                              [&](const decode::Rank& rank) {
                                const Engine engine(from, rank, {1});
                                (void)decode::Runtime::adopt(engine.layers(), size_of_model, options, rank);
                              }),
                    ErrorKind::unsupported, {"NVFP4"});
}

class Holder : public decode::GroupHolder {
 public:
  Holder(std::string name, comm::Group* group) : name_(std::move(name)), group_(group) {}
  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] comm::Group* device_group() const override { return group_; }

 private:
  std::string name_;
  comm::Group* group_;
};

// The engine's TP group, as itself or as the group it holds; anything else is named.
TEST(TpGroup, IsTheHoldersOrTheHolder) {
  comm::run_local(1, {}, [](comm::Group& group) {
    const Holder tp("tp:0", &group);
    EXPECT_EQ(&decode::tp_group(tp, &tp), &group);
    EXPECT_EQ(&decode::tp_group(tp, &group), &group);

    const auto refused = [](const auto& call) {
      const Verdict v = attempt(call);
      EXPECT_TRUE(v);
      EXPECT_EQ(v->kind, ErrorKind::usage);
      return v->text;
    };
    const Holder ep("ep:0", &group);
    EXPECT_EQ(refused([&] { (void)decode::tp_group(tp, &ep); }),
              "got 'ep:0', wanted 'tp:0' or its device group");
    ForwardingGroup another(group);
    EXPECT_EQ(refused([&] { (void)decode::tp_group(tp, &another); }),
              "got the group 'local' of 1 ranks, wanted 'tp:0' or its device group of 1");
    EXPECT_EQ(refused([&] { (void)decode::tp_group(tp, static_cast<comm::Group*>(nullptr)); }),
              "got no group, wanted 'tp:0' or its device group");
    EXPECT_EQ(refused([&] { (void)decode::tp_group(tp, static_cast<const Holder*>(nullptr)); }),
              "got no group, wanted 'tp:0' or its device group");
    const Holder empty("tp:1", nullptr);
    EXPECT_EQ(refused([&] { (void)decode::tp_group(empty, &empty); }),
              "'tp:1' has no device group to act over");
    EXPECT_EQ(refused([&] { (void)decode::tp_group(empty, &group); }),
              "'tp:1' has no device group to act over");
  });
}

}  // namespace
}  // namespace kerf::test
