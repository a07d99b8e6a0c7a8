// Refills on a device: a graph that was captured before has the new weights' bits when it is replayed after,
// in every placement, with both tails, of all kinds of experts; and a refusal leaves the old ones.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "kerf/cuda/copier.h"
#include "kerf/cuda/device.h"
#include "kerf/decode/device_stack.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/refill_support.h"
#include "tests/faults/faulty.h"
#include "tests/support/gpu.h"

namespace kerf::test {
namespace {

using decode::Mode;
using decode::Runtime;
using decode::StackStep;
using tail::Kind;

struct Case {
  int ep = 1, tp = 1;
  tools::SynthOptions model = spark_options();
  op::Input input = op::Input::nvfp4;
  Kind tail = Kind::fast;
};

void on_device(const Case& c, const std::function<void(const decode::Rank&)>& body) {
  comm::LocalOptions options;
  options.copier = &cuda::copier();
  comm::run_local(c.ep * c.tp, options, [&](comm::Group& group) {
    Checked checked(group.rank());
    decode::Meter meter(checked.memory);
    cuda::DeviceMemory device;
    {
      decode::Meter device_meter(device);
      std::optional<comm::Grid> grid;
      if (c.ep > 1 && c.tp > 1) grid.emplace(group, c.ep, c.tp);
      body({group, meter, Workers(1), {}, grid ? &*grid : nullptr, nullptr, &device_meter});
    }
    EXPECT_EQ(device.current(), 0) << "rank " << group.rank() << " left device memory in use";
  });
}

Runtime built(const checkpoint::Checkpoint& from, const Case& c, const decode::Rank& rank) {
  decode::RuntimeOptions options;
  options.build.backend = rank.device != nullptr ? "cuda" : "cpu";
  options.build.input = c.input;
  options.expert_tp = c.tp > 1;
  options.tail.kind = c.tail;
  return Runtime::build(from, options, rank);
}

// A runtime's layers as a captured graph, with inputs loaded.
struct Captured {
  Captured(const Runtime& of, const Case& c, std::int64_t tokens, const decode::Rank& rank) : runtime(of) {
    std::vector<const decode::Layer*> layers;
    for (const decode::Layer& layer : runtime.layers()) layers.push_back(&layer);
    const StackStep step{c.tp > 1 ? Mode::tp : Mode::ep, tokens, c.tail};
    stack = decode::make_device_stack(layers, runtime.plan(), std::span(&step, 1), rank);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const op::RoutedExperts& bound = layers[i]->bound();
      const decode::Inputs in =
          decode::make_inputs(3, layers[i]->index, tokens, layers[i]->kind,
                              {bound.num_experts(), bound.shape().hidden, bound.top_k()});
      stack->load(i, step_of(in, runtime.router()));
    }
    stack->capture(step);
  }
  std::vector<Bits> replayed() const {
    stack->replay();
    std::vector<Bits> out;
    for (std::size_t i = 0; i < runtime.layers().size(); ++i) out.push_back(stack->output(i));
    return out;
  }

  const Runtime& runtime;
  std::unique_ptr<decode::DeviceStack> stack;
};

using RefillOnGpu = OnGpu;

void expect_replays_to_follow(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.ep << " x " << c.tp << ' ' << tail::name(c.tail) << ' '
                                  << (c.input == op::Input::nvfp4 ? "nvfp4" : "bf16"));
  const Weights old_weights(c.model, 1);
  const Weights new_weights(c.model, 2);
  const checkpoint::Checkpoint a = old_weights.open();
  const checkpoint::Checkpoint b = new_weights.open();
  on_device(c, [&](const decode::Rank& rank) {
    std::vector<Bits> wanted;
    std::vector<Bits> wanted_steps;
    {
      const Runtime other = built(b, c, rank);
      wanted = Captured(other, c, 2, rank).replayed();
      wanted_steps = steps_of(other);
    }
    Runtime runtime = built(a, c, rank);
    const Captured few(runtime, c, 2, rank);
    const Captured more(runtime, c, 8, rank);
    const std::vector<Bits> first = few.replayed();
    const std::vector<Bits> first_of_more = more.replayed();
    const std::vector<Bits> first_steps = steps_of(runtime);
    const auto where = addresses_of(runtime);
    const std::int64_t in_use = rank.device->current();
    for (std::size_t i = 0; i < first.size(); ++i) {
      ASSERT_NE(first[i], wanted[i]);
      const decode::RefillReport report = runtime.refill(i, b);
      EXPECT_EQ(report.rel_l2.has_value(), runtime.layers()[i].sliced.has_value());
      const std::vector<Bits> now = few.replayed();
      for (std::size_t j = 0; j < first.size(); ++j)
        EXPECT_EQ(now[j], j <= i ? wanted[j] : first[j]) << "layer " << j << " after the refill of " << i;
    }
    EXPECT_NE(more.replayed(), first_of_more);
    EXPECT_EQ(steps_of(runtime), wanted_steps);
    EXPECT_EQ(addresses_of(runtime), where);
    EXPECT_EQ(rank.device->current(), in_use);
    // A refusal, of one rank's files, changes nothing; the way back leads to the first bits.
    const checkpoint::Checkpoint odd = rank.group.rank() == rank.group.size() - 1 ? Corrupt::in(a) : a;
    const Verdict v = attempt([&] { (void)runtime.refill(0, odd); });
    ASSERT_TRUE(v);
    EXPECT_EQ(v->kind, ErrorKind::checkpoint) << v->text;
    EXPECT_EQ(few.replayed(), wanted);
    for (std::size_t i = 0; i < first.size(); ++i) (void)runtime.refill(i, a);
    EXPECT_EQ(few.replayed(), first);
    EXPECT_EQ(more.replayed(), first_of_more);
    EXPECT_EQ(steps_of(runtime), first_steps);
    EXPECT_EQ(rank.device->current(), in_use);
  });
}

tools::SynthOptions exact_model() {
  tools::SynthOptions o = spark_options();
  o.intermediate = 2048;
  o.layers = 2;
  o.bf16_layers = {};
  return o;
}
// SwiGLU's parameters are per expert, and depend on the scales.
tools::SynthOptions clamped_model() {
  tools::SynthOptions o = spark_options();
  o.model = tools::SynthModel::qwen3_moe;
  o.dialect = "gpt-oss";
  return o;
}

TEST_F(RefillOnGpu, AGraphCapturedBeforeHasTheNewBitsAfter) {
  for (const auto& [ep, tp] : {std::pair{1, 1}, std::pair{2, 1}, std::pair{1, 2}, std::pair{2, 2}}) {
    expect_replays_to_follow({ep, tp});
    expect_replays_to_follow({ep, tp, clamped_model()});
  }
  expect_replays_to_follow({1, 2, spark_options(), op::Input::bf16});
  expect_replays_to_follow({1, 2, clamped_model(), op::Input::bf16});
  for (const auto& [ep, tp] : {std::pair{2, 1}, std::pair{1, 2}, std::pair{2, 2}})
    expect_replays_to_follow({ep, tp, exact_model(), op::Input::nvfp4, Kind::exact});
}

// NVFP4 steps on the device have the host's bits, of the new weights too.
TEST_F(RefillOnGpu, TheNewBitsAreTheHosts) {
  const Case c{1, 2};
  const Weights old_weights(c.model, 1);
  const Weights new_weights(c.model, 2);
  const checkpoint::Checkpoint a = old_weights.open();
  const checkpoint::Checkpoint b = new_weights.open();
  on_device(c, [&](const decode::Rank& rank) {
    const decode::Rank host_rank{rank.group, rank.memory, rank.workers, rank.log, rank.grid};
    const Runtime host = built(b, c, host_rank);
    Runtime device = built(a, c, rank);
    for (std::size_t i = 0; i < device.layers().size(); ++i) {
      (void)device.refill(i, b);
      if (device.layers()[i].input == op::Input::nvfp4) {
        EXPECT_EQ(steps_of(device, i), steps_of(host, i)) << i;
      }
    }
  });
}

// An engine's tensors must lie on the device too; those that do are copied there.
TEST_F(RefillOnGpu, AnEnginesTensorsLieOnTheDevice) {
  const Case c{1, 2};
  const Weights old_weights(c.model, 1);
  const Weights new_weights(c.model, 2);
  const checkpoint::Checkpoint a = old_weights.open();
  const checkpoint::Checkpoint b = new_weights.open();
  on_device(c, [&](const decode::Rank& rank) {
    const Runtime other = built(b, c, rank);
    const std::vector<Bits> wanted = steps_of(other);
    Runtime runtime = built(a, c, rank);
    const std::vector<Bits> first = steps_of(runtime);
    const auto layer_of = [](const decode::Layer& layer) {
      decode::StockLayer stock;
      stock.index = layer.index;
      stock.top_k = layer.ep->top_k();
      stock.input = layer.input;
      stock.norm = layer.norm;
      stock.experts = layer.nvfp4();
      return stock;
    };
    {
      const decode::Rank host_rank{rank.group, rank.memory, rank.workers, rank.log, rank.grid};
      const Runtime host = built(b, c, host_rank);
      const Verdict v = attempt([&] { (void)runtime.refill(0, layer_of(host.layers()[0])); });
      ASSERT_TRUE(v);
      EXPECT_EQ(v->kind, ErrorKind::unsupported);
      EXPECT_NE(v->text.find("layer 0: w13 lies in host memory, wanted device memory"), std::string::npos)
          << v->text;
    }
    EXPECT_EQ(steps_of(runtime), first);
    (void)runtime.refill(0, layer_of(other.layers()[0]));
    EXPECT_EQ(steps_of(runtime, 0), wanted[0]);
    EXPECT_EQ(steps_of(runtime, 1), first[1]);
  });
}

}  // namespace
}  // namespace kerf::test
