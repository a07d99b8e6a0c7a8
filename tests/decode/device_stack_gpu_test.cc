// Decodes on a device against decodes on the CPU: NVFP4 layers with quantised rows bit for bit, in every
// placement and with both tails; the others within what bf16 rows differ by.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "kerf/cuda/copier.h"
#include "kerf/decode/decode.h"
#include "kerf/decode/device_stack.h"
#include "kerf/decode/inputs.h"
#include "kerf/decode/runtime.h"
#include "kerf/numeric/nvfp4.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"
#include "tests/support/gpu.h"

namespace kerf::test {
namespace {

using decode::Mode;
using decode::StackStep;
using tail::Kind;

struct Grid {
  int ep = 1;
  int tp = 1;
};

// Runs body on ep x tp ranks that share the device; nothing may be left in its memory.
void on_device(const Grid& g, const std::function<void(const decode::Rank&)>& body) {
  comm::LocalOptions options;
  options.copier = &cuda::copier();
  comm::run_local(g.ep * g.tp, options, [&](comm::Group& group) {
    Checked checked(group.rank());
    decode::Meter meter(checked.memory);
    cuda::DeviceMemory device;
    {
      decode::Meter device_meter(device);
      std::optional<comm::Grid> grid;
      if (g.ep > 1 && g.tp > 1) grid.emplace(group, g.ep, g.tp);
      body({group, meter, Workers(1), {}, grid ? &*grid : nullptr, nullptr, &device_meter});
    }
    EXPECT_EQ(device.current(), 0) << "rank " << group.rank() << " left device memory in use";
  });
}

decode::Rank on_host(const decode::Rank& rank) {
  return {rank.group, rank.memory, rank.workers, rank.log, rank.grid};
}

decode::Runtime build(const checkpoint::Checkpoint& from, const decode::Rank& rank, bool tp, Kind tail,
                      op::Input input = op::Input::nvfp4) {
  decode::RuntimeOptions options;
  options.build.backend = rank.device != nullptr ? "cuda" : "cpu";
  options.build.input = input;
  options.expert_tp = tp;
  options.max_tokens = 40;
  options.tail.kind = tail;
  return decode::Runtime::build(from, options, rank);
}

std::vector<const decode::Layer*> pointers(const decode::Runtime& runtime) {
  std::vector<const decode::Layer*> out;
  for (const decode::Layer& layer : runtime.layers()) out.push_back(&layer);
  return out;
}

decode::StepInputs step_of(const decode::Inputs& in, const routing::Router& router) {
  if (in.logits.empty()) return {in.tokens, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
  return {in.tokens, in.x, {}, {}, {}, {}, &router, in.logits, {}};
}

double rel_l2(const std::vector<std::uint16_t>& got, std::span<const std::uint16_t> want) {
  double difference = 0;
  double total = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double w = numeric::bf16_to_f32(want[i]);
    const double d = numeric::bf16_to_f32(got[i]) - w;
    difference += d * d;
    total += w * w;
  }
  return total > 0 ? std::sqrt(difference / total) : difference;
}

using DeviceStackOnGpu = OnGpu;

// Inputs in device memory of the caller's, and room for the output.
class OwnTensors {
 public:
  OwnTensors(const decode::Inputs& in, const routing::Router& router, std::int64_t hidden,
             const decode::Rank& rank)
      : x_(of(rank, tensor::Dtype::bf16, in.x)),
        ids_(of(rank, tensor::Dtype::i32, in.ids)),
        weights_(of(rank, tensor::Dtype::f32, in.weights)),
        logits_(of(rank, tensor::Dtype::f32, in.logits)),
        out_(rank.weights(), tensor::Dtype::bf16, {in.tokens, hidden}) {
    tensors_ = {.x = x_.as<std::uint16_t>().data(), .out = out_.as<std::uint16_t>().data()};
    if (in.logits.empty()) {
      tensors_.ids = ids_.as<std::int32_t>().data();
      tensors_.weights = weights_.as<float>().data();
    } else {
      tensors_.router = &router;
      tensors_.logits = logits_.as<float>().data();
    }
  }
  [[nodiscard]] const decode::DeviceStepTensors& get() const { return tensors_; }
  // Read, and gone from the device's memory.
  [[nodiscard]] std::vector<std::uint16_t> take() {
    std::vector<std::uint16_t> out(out_.bytes().size() / 2);
    cuda::copy(out.data(), out_.bytes().data(), out_.bytes().size());
    cuda::zero(out_.bytes().data(), out_.bytes().size());
    return out;
  }

 private:
  template <typename T>
  static tensor::Tensor of(const decode::Rank& rank, tensor::Dtype dtype, const std::vector<T>& values) {
    tensor::Tensor out(rank.weights(), dtype, {static_cast<std::int64_t>(values.size())});
    cuda::copy(out.bytes().data(), values.data(), out.bytes().size());
    return out;
  }
  tensor::Tensor x_, ids_, weights_, logits_, out_;
  decode::DeviceStepTensors tensors_;
};

struct Case {
  Grid grid;
  bool tp;
  Kind tail;
};

void expect_as_on_the_host(const Synthetic& model, const Case& c, op::Input input) {
  SCOPED_TRACE(testing::Message() << c.grid.ep << " x " << c.grid.tp << (c.tp ? " tp " : " ep ")
                                  << tail::name(c.tail));
  const checkpoint::Checkpoint from = model.open();
  on_device(c.grid, [&](const decode::Rank& rank) {
    const decode::Rank host_rank = on_host(rank);
    const decode::Runtime host = build(from, host_rank, c.tp, c.tail, input);
    const decode::Runtime device = build(from, rank, c.tp, c.tail, input);
    const Mode mode = c.tp ? Mode::tp : Mode::ep;
    std::vector<StackStep> steps;
    for (const std::int64_t t : {0, 1, 2, 3, 8, 33}) steps.push_back({mode, t, c.tail});
    const auto stack = decode::make_device_stack(pointers(device), device.plan(), steps, rank);
    const std::vector<StackStep> largest = {steps.back()};
    const auto engines = decode::make_device_stack(pointers(device), device.plan(), largest, rank);
    const cuda::Stream stream;
    for (const StackStep& step : steps) {
      std::vector<decode::Inputs> inputs;
      for (std::size_t i = 0; i < device.layers().size(); ++i) {
        const decode::Layer& layer = device.layers()[i];
        inputs.push_back(
            decode::make_inputs(3, layer.index, step.tokens, layer.kind,
                                {layer.ep->num_experts(), layer.ep->shape().hidden, layer.ep->top_k()}));
        stack->load(i, step_of(inputs.back(), device.router()));
      }
      stack->run(step);
      for (std::size_t i = 0; i < device.layers().size(); ++i) {
        const auto want = host.execute(i, mode, step_of(inputs[i], host.router()), c.tail);
        const std::vector<std::uint16_t> got = stack->output(i);
        ASSERT_EQ(got.size(), want.size());
        if (device.layers()[i].input == op::Input::nvfp4)
          EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin()))
              << "layer " << i << ", " << step.tokens << " tokens, rank " << rank.group.rank();
        else
          EXPECT_LT(rel_l2(got, want), 1e-2) << "layer " << i << ", " << step.tokens << " tokens";
        // The same on the caller's tensors and stream: eager, and captured.
        OwnTensors own(inputs[i], device.router(), device.layers()[i].bound().shape().hidden, rank);
        engines->enqueue(i, step, own.get(), stream.handle());
        stream.synchronize();
        rank.group.barrier("rank 0 has waited");
        EXPECT_EQ(own.take(), got) << "layer " << i << ", " << step.tokens << " tokens";
        // In halves, each rank on a stream of its own.
        const cuda::Stream mine;
        (void)engines->enqueue_experts(i, step, own.get(), mine.handle());
        engines->enqueue_tail(i, step, own.get().out, mine.handle());
        mine.synchronize();
        EXPECT_EQ(own.take(), got) << "layer " << i << ", " << step.tokens << " tokens, in halves";
        if (rank.group.size() > 1 || step.tokens == 0) continue;
        const cuda::Graph graph = cuda::Graph::capture(
            stream.handle(), [&] { engines->enqueue(i, step, own.get(), stream.handle()); });
        for (int replay = 0; replay < 2; ++replay) {
          graph.launch(stream.handle());
          stream.synchronize();
          EXPECT_EQ(own.take(), got) << "layer " << i << ", " << step.tokens << " tokens, captured";
        }
      }
    }
  });
}

TEST_F(DeviceStackOnGpu, StepsHaveTheHostsBitsInEveryPlacement) {
  // With a norm and a BF16 layer; and without either, for exact tails.
  const Synthetic spark(16, 256, 512, {1}, 3);
  const Synthetic qwen(16, 256, 2048, {}, 2, tools::SynthModel::qwen3_moe);
  for (const Case& c :
       {Case{{1, 1}, false, Kind::fast}, Case{{2, 1}, false, Kind::fast}, Case{{1, 2}, true, Kind::fast},
        Case{{1, 8}, true, Kind::fast}, Case{{2, 2}, true, Kind::fast}}) {
    expect_as_on_the_host(spark, c, op::Input::nvfp4);
    expect_as_on_the_host(qwen, c, op::Input::nvfp4);
  }
  expect_as_on_the_host(spark, {{1, 1}, false, Kind::fast}, op::Input::bf16);
  expect_as_on_the_host(qwen, {{1, 2}, true, Kind::fast}, op::Input::bf16);
  for (const Case& c : {Case{{1, 1}, false, Kind::exact}, Case{{4, 1}, false, Kind::exact},
                        Case{{1, 4}, true, Kind::exact}, Case{{2, 2}, true, Kind::exact}})
    expect_as_on_the_host(qwen, c, op::Input::nvfp4);
}

TEST_F(DeviceStackOnGpu, AThousandReplaysGiveTheSameBitsAndFollowNewInputs) {
  const Synthetic model(16, 256, 512, {1}, 3);
  const checkpoint::Checkpoint from = model.open();
  on_device({1, 2}, [&](const decode::Rank& rank) {
    const decode::Runtime runtime = build(from, rank, true, Kind::fast);
    const StackStep step{Mode::tp, 5, Kind::fast};
    const auto stack =
        decode::make_device_stack(pointers(runtime), runtime.plan(), std::span(&step, 1), rank);
    const auto load = [&](std::uint64_t seed) {
      for (std::size_t i = 0; i < runtime.layers().size(); ++i) {
        const decode::Layer& layer = runtime.layers()[i];
        stack->load(i, step_of(decode::make_inputs(seed, layer.index, 5, layer.kind, {16, 256, 4}),
                               runtime.router()));
      }
    };
    const auto outputs = [&] {
      std::vector<std::vector<std::uint16_t>> all;
      for (std::size_t i = 0; i < runtime.layers().size(); ++i) all.push_back(stack->output(i));
      return all;
    };
    load(1);
    stack->run(step);
    const auto first = outputs();
    load(2);
    stack->run(step);
    const auto second = outputs();
    EXPECT_NE(first, second);
    stack->capture(step);
    stack->replay();
    EXPECT_EQ(outputs(), second);
    load(1);
    for (int i = 0; i < 1000; ++i) {
      stack->replay();
      ASSERT_EQ(outputs(), first) << "replay " << i;
    }
    const std::int64_t in_use = rank.device->current();
    load(2);
    (void)stack->time(3);
    EXPECT_EQ(outputs(), second);
    EXPECT_EQ(rank.device->current(), in_use);
  });
}

TEST_F(DeviceStackOnGpu, StepsOnOwnTensorsThatDoNotFitAreRefused) {
  const Synthetic model(16, 256, 512, {}, 1, tools::SynthModel::qwen3_moe);
  const checkpoint::Checkpoint from = model.open();
  on_device({1, 1}, [&](const decode::Rank& rank) {
    const decode::Runtime device = build(from, rank, false, Kind::fast);
    const std::vector<StackStep> steps = {{Mode::ep, 2, Kind::fast}};
    const auto stack = decode::make_device_stack(pointers(device), device.plan(), steps, rank);
    const decode::Layer& layer = device.layers()[0];
    const decode::Inputs in =
        decode::make_inputs(3, layer.index, 2, layer.kind,
                            {layer.ep->num_experts(), layer.ep->shape().hidden, layer.ep->top_k()});
    const OwnTensors own(in, device.router(), layer.bound().shape().hidden, rank);
    const cuda::Stream stream;
    const auto refused = [&](std::size_t position, const StackStep& step, const auto& edit) {
      decode::DeviceStepTensors tensors = own.get();
      edit(tensors);
      const Verdict v = attempt([&] { stack->enqueue(position, step, tensors, stream.handle()); });
      stream.synchronize();
      return v ? v->kind : ErrorKind::bug;
    };
    const auto same = [](auto&) {};
    EXPECT_EQ(refused(1, steps[0], same), ErrorKind::usage) << "no such layer";
    EXPECT_EQ(refused(0, {Mode::ep, 3, Kind::fast}, same), ErrorKind::usage) << "too many tokens";
    EXPECT_EQ(refused(0, {Mode::tp, 2, Kind::fast}, same), ErrorKind::usage) << "another mode";
    EXPECT_EQ(refused(0, steps[0], [](auto& t) { t.x = nullptr; }), ErrorKind::usage);
    EXPECT_EQ(refused(0, steps[0], [](auto& t) { ++t.out; }), ErrorKind::usage) << "misaligned";
    EXPECT_EQ(refused(0, steps[0],
                      [](auto& t) {
                        t.ids = nullptr;
                        t.logits = nullptr;
                      }),
              ErrorKind::usage);
    EXPECT_EQ(refused(0, steps[0], [](auto& t) { t.a = reinterpret_cast<const std::uint8_t*>(t.x); }),
              ErrorKind::usage)
        << "codes without scales";
    EXPECT_EQ(refused(0, steps[0], same), ErrorKind::bug) << "fits";
  });
}

std::vector<std::byte> bytes_of(const void* at, std::size_t size) {
  std::vector<std::byte> out(size);
  cuda::copy(out.data(), at, size);
  return out;
}

// The halves of a step against the op's on the CPU: rows that the map names, map and weights; quantised rows
// that the caller gives, and ranks whose slices' sums stay in f32.
TEST_F(DeviceStackOnGpu, RowsBeforeTheTailAreTheHosts) {
  const Synthetic model(16, 256, 2048, {}, 1, tools::SynthModel::qwen3_moe);
  const checkpoint::Checkpoint from = model.open();
  for (const Kind kind : {Kind::fast, Kind::exact})
    on_device({1, 2}, [&](const decode::Rank& rank) {
      const decode::Rank host_rank = on_host(rank);
      const decode::Runtime host = build(from, host_rank, true, kind);
      const decode::Runtime device = build(from, rank, true, kind);
      const std::vector<StackStep> largest = {{Mode::tp, 8, kind}};
      const auto stack = decode::make_device_stack(pointers(device), device.plan(), largest, rank);
      const StackStep step{Mode::tp, 5, kind};
      const decode::Layer& layer = host.layers()[0];
      const std::int64_t hidden = layer.bound().shape().hidden;
      const decode::Inputs in = decode::make_inputs(3, layer.index, 5, layer.kind, {16, hidden, 4});
      std::vector<std::uint8_t> a(static_cast<std::size_t>(5 * hidden / 2));
      std::vector<std::uint8_t> a_sf(static_cast<std::size_t>(5 * hidden / 16));
      numeric::quantise_rows(in.x, hidden, layer.input_scale(), a, a_sf, numeric::Quantiser::vllm);
      decode::StepInputs quantised = step_of(in, host.router());
      quantised.x = {};
      quantised.a = a;
      quantised.a_sf = a_sf;
      const op::Unfinalized wanted =
          decode::run_experts(layer, Mode::tp, quantised, host.plan(), host_rank.workers, kind);

      OwnTensors own(in, device.router(), hidden, rank);
      tensor::Tensor codes(rank.weights(), tensor::Dtype::u8, {5, hidden / 2});
      tensor::Tensor scales(rank.weights(), tensor::Dtype::f8_e4m3, {5, hidden / 16});
      cuda::copy(codes.bytes().data(), a.data(), a.size());
      cuda::copy(scales.bytes().data(), a_sf.data(), a_sf.size());
      decode::DeviceStepTensors tensors = own.get();
      tensors.x = nullptr;
      tensors.a = codes.as<std::uint8_t>().data();
      tensors.a_sf = scales.as<std::uint8_t>().data();
      const cuda::Stream stream;
      const decode::DeviceUnfinalized got = stack->enqueue_experts(0, step, tensors, stream.handle());
      stream.synchronize();
      ASSERT_EQ(got.tokens, 5);
      ASSERT_EQ(got.top_k, 4);
      ASSERT_EQ(got.hidden, hidden);
      EXPECT_EQ(bytes_of(got.weights, wanted.weights.size_bytes()),
                bytes_of(wanted.weights.data(), wanted.weights.size_bytes()));
      ASSERT_EQ(got.sums != nullptr, kind == Kind::exact);
      ASSERT_EQ(got.rows != nullptr, kind == Kind::fast);
      const std::size_t row = static_cast<std::size_t>(hidden) * (kind == Kind::exact ? 4 : 2);
      const auto* rows = kind == Kind::exact ? reinterpret_cast<const std::byte*>(got.sums)
                                             : reinterpret_cast<const std::byte*>(got.rows);
      const auto* host_rows =
          kind == Kind::exact ? std::as_bytes(wanted.sums).data() : std::as_bytes(wanted.rows).data();
      std::vector<std::int32_t> map(wanted.map.size());
      cuda::copy(map.data(), got.map, map.size() * 4);
      int here = 0;
      for (std::size_t i = 0; i < map.size(); ++i) {
        ASSERT_EQ(map[i] < 0, wanted.map[i] < 0) << i;
        if (map[i] < 0) continue;
        ++here;
        ASSERT_LT(map[i], got.row_count);
        EXPECT_EQ(bytes_of(rows + static_cast<std::size_t>(map[i]) * row, row),
                  bytes_of(host_rows + static_cast<std::size_t>(wanted.map[i]) * row, row))
            << "route " << i;
      }
      EXPECT_EQ(here, 20);
      const auto ended = decode::run_tail(layer, Mode::tp, wanted, host.plan(), host_rank, kind);
      stack->enqueue_tail(0, step, own.get().out, stream.handle());
      stream.synchronize();
      EXPECT_TRUE(std::ranges::equal(own.take(), ended));
    });
}

TEST_F(DeviceStackOnGpu, SumsOverRanksHaveTheBitsOfTheirOrder) {
  const Synthetic model(16, 256, 512, {}, 1);
  const checkpoint::Checkpoint from = model.open();
  on_device({4, 1}, [&](const decode::Rank& rank) {
    const decode::Runtime device = build(from, rank, false, Kind::fast);
    const std::vector<StackStep> steps = {{Mode::ep, 1, Kind::fast}};
    const auto stack = decode::make_device_stack(pointers(device), device.plan(), steps, rank);
    constexpr std::int64_t n = 3 * 264;
    const auto value = [](int r, std::int64_t i) {
      return numeric::f32_to_bf16(static_cast<float>((r * 37 + i * 11) % 101 - 50) / 7.0F);
    };
    std::vector<std::uint16_t> host(n);
    const auto reset = [&] {
      for (std::int64_t i = 0; i < n; ++i) host[static_cast<std::size_t>(i)] = value(rank.group.rank(), i);
    };
    tensor::Tensor values(rank.weights(), tensor::Dtype::bf16, {n});
    const cuda::Stream stream;
    auto* at = values.as<std::uint16_t>().data();
    for (const numeric::SumOrder order : {numeric::SumOrder::rank_order, numeric::SumOrder::each_add}) {
      reset();
      cuda::copy(at, host.data(), host.size() * 2);
      stack->enqueue_sum(order, at, at, n, stream.handle());
      stream.synchronize();
      cuda::copy(host.data(), at, host.size() * 2);
      for (std::int64_t i = 0; i < n; ++i)
        ASSERT_EQ(host[static_cast<std::size_t>(i)],
                  numeric::sum_bf16(order, 4, [&](int r) { return value(r, i); }))
            << i;
    }
    // An odd number on all ranks; one that differs on one of them.
    for (const std::int64_t wrong : {std::int64_t{12}, rank.group.rank() == 2 ? n - 8 : n}) {
      const Verdict refused =
          attempt([&] { stack->enqueue_sum(numeric::SumOrder::rank_order, at, at, wrong, stream.handle()); });
      ASSERT_TRUE(refused);
      EXPECT_EQ(refused->kind, ErrorKind::usage);
    }
  });
}

TEST_F(DeviceStackOnGpu, RoutesToNowhereGiveZeros) {
  const Synthetic model(16, 256, 512, {}, 2);
  const checkpoint::Checkpoint from = model.open();
  on_device({1, 1}, [&](const decode::Rank& rank) {
    const decode::Runtime runtime = build(from, rank, false, Kind::fast);
    const StackStep step{Mode::ep, 4, Kind::fast};
    const auto stack =
        decode::make_device_stack(pointers(runtime), runtime.plan(), std::span(&step, 1), rank);
    decode::Inputs in = decode::make_inputs(1, 0, 4, checkpoint::ExpertKind::nvfp4, {16, 256, 4});
    for (std::size_t i = 0; i < 2; ++i) stack->load(i, step_of(in, runtime.router()));
    stack->capture(step);
    stack->replay();
    EXPECT_NE(stack->output(0), std::vector<std::uint16_t>(std::size_t{4} * 256, 0));
    std::fill(in.ids.begin(), in.ids.end(), -1);
    for (std::size_t i = 0; i < 2; ++i) stack->load(i, step_of(in, runtime.router()));
    stack->replay();
    EXPECT_EQ(stack->output(0), std::vector<std::uint16_t>(std::size_t{4} * 256, 0));
    EXPECT_EQ(stack->output(1), std::vector<std::uint16_t>(std::size_t{4} * 256, 0));
  });
}

TEST_F(DeviceStackOnGpu, OneLayersStepHasTheHostsBitsToo) {
  const Synthetic model(16, 256, 512, {}, 1);
  const checkpoint::Checkpoint from = model.open();
  on_device({1, 2}, [&](const decode::Rank& rank) {
    const decode::Rank host_rank = on_host(rank);
    const decode::Runtime host = build(from, host_rank, true, Kind::fast);
    const decode::Runtime device = build(from, rank, true, Kind::fast);
    device.warm_up();
    const decode::Inputs in = decode::make_inputs(1, 0, 7, checkpoint::ExpertKind::nvfp4, {16, 256, 4});
    for (const Mode mode : {Mode::ep, Mode::tp}) {
      const auto want = host.execute(0, mode, step_of(in, host.router()));
      const auto got = device.execute(0, mode, step_of(in, device.router()));
      EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin(), want.end())) << decode::name(mode);
    }
  });
}

TEST_F(DeviceStackOnGpu, ADecodeHasTheHostsDigests) {
  const Synthetic model(16, 256, 1024, {}, 2);
  const checkpoint::Checkpoint from = model.open();
  on_device({1, 2}, [&](const decode::Rank& rank) {
    decode::Options options;
    options.modes = {Mode::ep, Mode::tp};
    options.tails = {Kind::fast, Kind::exact};
    options.seconds = 0.05;
    const decode::Report host = decode::run(from, options, on_host(rank));
    options.build.backend = "cuda";
    const decode::Report device = decode::run(from, options, rank);
    ASSERT_EQ(host.steps.size(), device.steps.size());
    for (std::size_t i = 0; i < host.steps.size(); ++i) {
      EXPECT_EQ(host.steps[i].output_sha256, device.steps[i].output_sha256) << i;
      EXPECT_GT(device.steps[i].us_per_layer, 0);
    }
    EXPECT_LT(device.reshard->max_rel_l2, decode::probe_limit);
  });
}

}  // namespace
}  // namespace kerf::test
