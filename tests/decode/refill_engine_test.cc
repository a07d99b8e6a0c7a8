// Refills from an engine's tensors: of layers that were built, which copy them, and of layers that were
// adopted, which lie in them.
#include <gtest/gtest.h>

#include <algorithm>

#include "kerf/decode/runtime.h"
#include "tests/decode/refill_support.h"

namespace kerf::test {
namespace {

using checkpoint::ExpertKind;
using decode::Runtime;
using decode::RuntimeOptions;
using decode::StockLayer;

// An engine that has loaded its experts in its own way, and hands out what it holds.
struct Engine {
  Engine(const checkpoint::Checkpoint& from, const decode::Rank& rank)
      : held(decode::build(from, {}, {rank.group, memory, rank.workers, {}})) {}

  [[nodiscard]] std::vector<StockLayer> layers() const {
    std::vector<StockLayer> out;
    for (const decode::Layer& layer : held) {
      StockLayer stock;
      stock.index = layer.index;
      stock.top_k = layer.ep->top_k();
      stock.input = layer.input;
      stock.gated = layer.gated;
      stock.norm = layer.norm;
      if (layer.kind == ExpertKind::nvfp4)
        stock.experts = layer.nvfp4();
      else
        stock.experts = layer.bf16();
      out.push_back(std::move(stock));
    }
    return out;
  }

  // Its own update of a layer: other values, where the old ones are.
  void overwrite(std::size_t position, const Engine& by) {
    const auto copy = [](const tensor::Tensor& to, const tensor::Tensor& from) {
      std::copy(from.bytes().begin(), from.bytes().end(), to.bytes().begin());
    };
    if (held[position].kind == ExpertKind::bf16) {
      const auto& to = std::get<layout::Bf16Experts>(held[position].stock);
      const auto& from = std::get<layout::Bf16Experts>(by.held[position].stock);
      copy(to.w13, from.w13);
      copy(to.w2, from.w2);
    } else {
      const auto& to = std::get<layout::Nvfp4Experts>(held[position].stock);
      const auto& from = std::get<layout::Nvfp4Experts>(by.held[position].stock);
      for (const auto& [t, f] :
           {std::pair{&to.w13, &from.w13}, std::pair{&to.w13_sf, &from.w13_sf}, std::pair{&to.w2, &from.w2},
            std::pair{&to.w2_sf, &from.w2_sf}, std::pair{&to.g1_alphas, &from.g1_alphas},
            std::pair{&to.g1_scale_c, &from.g1_scale_c}, std::pair{&to.g2_alphas, &from.g2_alphas},
            std::pair{&to.a1_gscale, &from.a1_gscale}, std::pair{&to.a2_gscale, &from.a2_gscale}})
        copy(*t, *f);
    }
    held[position].own_gated.assign(by.held[position].gated);
    if (held[position].norm) held[position].norm->gain = by.held[position].norm->gain;
  }

  tensor::HostMemory host;
  decode::Meter memory{host};
  std::vector<decode::Layer> held;
};

struct Grid {
  int ep, tp;
};

class RefillFromEngine : public testing::TestWithParam<Grid> {
 protected:
  static void on(const Grid& g, const std::function<void(const decode::Rank&)>& body) {
    if (g.ep > 1 && g.tp > 1) return on_grid(g.ep, g.tp, body);
    on_ranks({g.ep * g.tp, 1, {}}, body);
  }
};
INSTANTIATE_TEST_SUITE_P(Grids, RefillFromEngine,
                         testing::Values(Grid{1, 1}, Grid{4, 1}, Grid{1, 2}, Grid{2, 2}),
                         [](const auto& listed) {
                           return std::to_string(listed.param.ep) + "x" + std::to_string(listed.param.tp);
                         });

tools::SynthOptions clamped() {
  tools::SynthOptions o = spark_options();
  o.model = tools::SynthModel::qwen3_moe;
  o.dialect = "gpt-oss";
  return o;
}

TEST_P(RefillFromEngine, ALayerThatWasBuiltCopiesItsTensors) {
  for (const tools::SynthOptions& model : {spark_options(), clamped()}) {
    const Weights old_weights(model, 1);
    const Weights new_weights(model, 2);
    const checkpoint::Checkpoint a = old_weights.open();
    const checkpoint::Checkpoint b = new_weights.open();
    on(GetParam(), [&](const decode::Rank& rank) {
      RuntimeOptions options;
      options.expert_tp = GetParam().tp > 1;
      const std::vector<Bits> wanted = steps_of(Runtime::build(b, options, rank));
      Runtime runtime = Runtime::build(a, options, rank);
      const std::vector<Bits> first = steps_of(runtime);
      const auto where = addresses_of(runtime);
      {
        const Engine engine(b, rank);
        const std::vector<StockLayer> layers = engine.layers();
        for (std::size_t i = 0; i < layers.size(); ++i) {
          const decode::RefillReport report = runtime.refill(i, layers[i]);
          EXPECT_EQ(report.rel_l2.has_value(), runtime.layers()[i].sliced.has_value());
          EXPECT_EQ(steps_of(runtime, i), wanted[i]) << i;
        }
      }
      // The engine's tensors are gone.
      EXPECT_EQ(steps_of(runtime), wanted);
      EXPECT_EQ(addresses_of(runtime), where);
      for (std::size_t i = 0; i < first.size(); ++i) (void)runtime.refill(i, a);
      EXPECT_EQ(steps_of(runtime), first);
    });
  }
}

TEST_P(RefillFromEngine, ALayerThatWasAdoptedFollowsItsTensors) {
  for (const tools::SynthOptions& model : {spark_options(), clamped()}) {
    const Weights old_weights(model, 1);
    const Weights new_weights(model, 2);
    const checkpoint::Checkpoint a = old_weights.open();
    const checkpoint::Checkpoint b = new_weights.open();
    on(GetParam(), [&](const decode::Rank& rank) {
      RuntimeOptions options;
      options.expert_tp = GetParam().tp > 1;
      Engine engine(a, rank);
      const Engine original(a, rank);
      const Engine other(b, rank);
      const decode::ModelSize size{8, 4};
      const std::vector<Bits> wanted = steps_of(Runtime::adopt(other.layers(), size, options, rank));
      Runtime runtime = Runtime::adopt(engine.layers(), size, options, rank);
      const std::vector<Bits> first = steps_of(runtime);
      const auto where = addresses_of(runtime);
      const std::int64_t in_use = rank.memory.current();
      for (std::size_t i = 0; i < first.size(); ++i) {
        engine.overwrite(i, other);
        (void)runtime.refill(i, engine.layers()[i]);
        for (std::size_t j = 0; j < first.size(); ++j)
          EXPECT_EQ(steps_of(runtime, j), j <= i ? wanted[j] : first[j]) << j << " after " << i;
      }
      EXPECT_EQ(addresses_of(runtime), where);
      EXPECT_EQ(rank.memory.current(), in_use);
      for (std::size_t i = 0; i < first.size(); ++i) {
        engine.overwrite(i, original);
        (void)runtime.refill(i, engine.layers()[i]);
      }
      EXPECT_EQ(steps_of(runtime), first);
    });
  }
}

// The runtime writes to no tensor of an engine: others than those that were adopted are refused, and so is a
// checkpoint.
TEST(RefillOfAdopted, IsFromTheTensorsThatWereAdopted) {
  const Weights old_weights(spark_options(), 1);
  const Weights new_weights(spark_options(), 2);
  const checkpoint::Checkpoint a = old_weights.open();
  const checkpoint::Checkpoint b = new_weights.open();
  for (const std::size_t position : {std::size_t{0}, std::size_t{1}}) {
    expect_all_refuse(
        thrown_on({2, 1, {}},
                  [&](const decode::Rank& rank) {
                    const Engine engine(a, rank);
                    const Engine other(b, rank);
                    Runtime runtime = Runtime::adopt(engine.layers(), {8, 4}, {}, rank);
                    const std::vector<Bits> first = steps_of(runtime);
                    const Verdict v =
                        attempt([&] { (void)runtime.refill(position, other.layers()[position]); });
                    EXPECT_EQ(steps_of(runtime), first);
                    require(v);
                  }),
        ErrorKind::usage,
        {"layer " + std::to_string(position), "w13 is another tensor than the one that was adopted"});
    expect_all_refuse(thrown_on({2, 1, {}},
                                [&](const decode::Rank& rank) {
                                  const Engine engine(a, rank);
                                  Runtime runtime = Runtime::adopt(engine.layers(), {8, 4}, {}, rank);
                                  (void)runtime.refill(position, b);
                                }),
                      ErrorKind::usage, {"its experts are an engine's"});
  }
}

// What an engine's layer may not be, each with layer, what it is and what it should be.
TEST(RefillFromEngineRefusals, NameWhatDiffers) {
  const Weights old_weights(spark_options(), 1);
  const Weights new_weights(spark_options(), 2);
  tools::SynthOptions wide_options = spark_options();
  wide_options.intermediate = 512;
  const Weights wide_weights(wide_options, 2);
  const checkpoint::Checkpoint a = old_weights.open();
  const checkpoint::Checkpoint b = new_weights.open();
  const checkpoint::Checkpoint wide = wide_weights.open();
  struct Case {
    ErrorKind kind;
    std::string words;
    std::function<StockLayer(const Engine& engine, const Engine& wide, bool odd)> source;
    decode::BlockKind block = decode::BlockKind::none;
  };
  const std::vector<float> ones(4, 1.0F);
  const std::vector<Case> cases = {
      {ErrorKind::usage, "the source is layer 2, wanted layer 0",
       [](const Engine& e, const Engine&, bool) { return e.layers()[2]; }},
      {ErrorKind::unsupported, "kind of experts: got BF16, wanted NVFP4",
       [](const Engine& e, const Engine&, bool) {
         StockLayer l = e.layers()[1];
         l.index = 0;
         return l;
       }},
      {ErrorKind::unsupported, "input of the experts: got bf16 rows, wanted quantised rows (W4A4)",
       [](const Engine& e, const Engine&, bool) {
         StockLayer l = e.layers()[0];
         l.input = op::Input::bf16;
         return l;
       }},
      {ErrorKind::unsupported, "128 x 512, wanted experts ",
       [](const Engine&, const Engine& w, bool) { return w.layers()[0]; }},
      {ErrorKind::unsupported, "activation: got SwiGLU with alpha, wanted plain SwiGLU",
       [&](const Engine& e, const Engine&, bool) {
         StockLayer l = e.layers()[0];
         l.gated.alpha = ones;
         return l;
       }},
      {ErrorKind::unsupported, "norm after the experts: got no norm, wanted a norm of eps 1e-08",
       [](const Engine& e, const Engine&, bool) {
         StockLayer l = e.layers()[0];
         l.norm.reset();
         return l;
       }},
      {ErrorKind::unsupported, "its K is 2, the model's 4",
       [](const Engine& e, const Engine&, bool odd) {
         StockLayer l = e.layers()[0];
         if (odd) l.top_k = 2;
         return l;
       }},
      {ErrorKind::unsupported, "it has no experts kernel to take tensors from",
       [](const Engine& e, const Engine&, bool odd) {
         StockLayer l = e.layers()[0];
         if (odd) l.experts = std::monostate{};
         return l;
       }},
      {ErrorKind::usage, "the engine's layers differ between ranks",
       [](const Engine& e, const Engine&, bool odd) {
         StockLayer l = e.layers()[0];
         if (odd) l.norm->eps = 1e-5F;
         return l;
       }},
      {ErrorKind::unsupported, "it was built with a block around its experts",
       [](const Engine& e, const Engine&, bool) { return e.layers()[0]; }, decode::BlockKind::muse_spark},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.words);
    expect_all_refuse(thrown_on({2, 1, {}},
                                [&](const decode::Rank& rank) {
                                  const Engine engine(b, rank);
                                  const Engine wide_engine(wide, rank);
                                  RuntimeOptions options;
                                  options.expert_tp = true;
                                  options.block = c.block;
                                  Runtime runtime = Runtime::build(a, options, rank);
                                  const auto bytes = contents_of(runtime, 0);
                                  const std::vector<Bits> first = steps_of(runtime);
                                  const StockLayer source =
                                      c.source(engine, wide_engine, rank.group.rank() == 1);
                                  const Verdict v = attempt([&] { (void)runtime.refill(0, source); });
                                  EXPECT_EQ(contents_of(runtime, 0), bytes);
                                  EXPECT_EQ(steps_of(runtime), first);
                                  require(v);
                                }),
                      c.kind, {"layer 0", c.words});
  }
}

}  // namespace
}  // namespace kerf::test
