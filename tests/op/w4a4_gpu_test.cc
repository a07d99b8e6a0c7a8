// W4A4 on the device against the CPU op, bit for bit: shapes, tiles, configs, numbers of tokens, odd
// routings, NaN, and what a captured run does with other metadata.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "kerf/numeric/bf16.h"
#include "kerf/op/sm90/bind.h"
#include "kerf/op/sm90/tactics.h"
#include "tests/support/carried_rows.h"
#include "tests/support/experts.h"
#include "tests/support/gpu.h"

namespace kerf::op::sm90 {
namespace {

using layout::ExpertsShape;
using test::OnDevice;
using test::Random;
using test::StepData;
using W4a4OnGpu = test::OnGpu;

struct Parameters {
  std::vector<float> alpha, beta, limit_gate, limit_up;
  [[nodiscard]] GatedParameters view() const { return {alpha, beta, limit_gate, limit_up}; }
};

std::span<const std::uint8_t> bytes_of(const tensor::Tensor& t) {
  return {reinterpret_cast<const std::uint8_t*>(t.bytes().data()), t.bytes().size()};
}

// The same experts bound to the CPU op and to the device's.
struct Layer {
  Layer(const ExpertsShape& shape, std::int64_t num_experts, std::int64_t first, std::int64_t top_k,
        std::uint64_t seed, const Parameters& parameters = {},
        const std::function<void(layout::Nvfp4Experts&)>& change = {})
      : experts(made(memory, shape, first, seed, change)),
        w13(bytes_of(experts.w13)),
        w13_sf(bytes_of(experts.w13_sf)),
        w2(bytes_of(experts.w2)),
        w2_sf(bytes_of(experts.w2_sf)) {
    Nvfp4Args args{experts.view(), num_experts, top_k, Input::nvfp4, parameters.view()};
    host = backend("cpu").bind(args);
    args.experts.w13.bytes = std::as_bytes(w13.span());
    args.experts.w13_sf.bytes = std::as_bytes(w13_sf.span());
    args.experts.w2.bytes = std::as_bytes(w2.span());
    args.experts.w2_sf.bytes = std::as_bytes(w2_sf.span());
    device = bind_w4a4(args);
  }
  static layout::Nvfp4Experts made(tensor::Memory& memory, const ExpertsShape& shape, std::int64_t first,
                                   std::uint64_t seed,
                                   const std::function<void(layout::Nvfp4Experts&)>& change) {
    auto e = test::random_nvfp4(memory, shape, first, seed);
    if (change) change(e);
    return e;
  }

  tensor::HostMemory memory;
  layout::Nvfp4Experts experts;
  OnDevice<std::uint8_t> w13, w13_sf, w2, w2_sf;
  OnDevice<std::uint8_t> kept{std::size_t{64} << 20, 0};  // of all the layer's steps, whatever their shapes
  std::unique_ptr<RoutedExperts> host;
  std::unique_ptr<DeviceExperts> device;
};

// Metadata in host memory, and the same on the device.
struct Routed {
  Routed(const RoutedExperts& experts, const StepData& step, std::int64_t tile)
      : shape(experts.metadata_shape(step.tokens, tile)),
        buffer(memory, routing::metadata_words(shape)),
        host(buffer.view(shape)) {
    routing::write_metadata(shape, step.ids, step.weights, host);
  }
  tensor::HostMemory memory;
  routing::MetadataShape shape;
  routing::MetadataBuffer buffer;
  routing::Metadata host;
};

// A step in device memory, ready to run any number of times.
template <typename Value>
struct DeviceStep {
  DeviceStep(const DeviceExperts& experts, const StepData& step, const Routed& routed, Tactic at)
      : a(step.a),
        a_sf(step.a_sf),
        total(routed.host.total_padded),
        map(routed.host.expanded_to_permuted),
        tokens(routed.host.permuted_to_token),
        weights(routed.host.expert_weights),
        histogram(routed.host.histogram),
        counts(routed.host.tokens_per_expert),
        tile_expert(routed.host.tile_to_expert),
        tile_limit(routed.host.tile_to_limit),
        live(routed.host.live_tiles),
        scratch(experts.scratch_bytes(routed.shape, at), 0xFF),
        counters(experts.counter_words(routed.shape), 0),
        rows(static_cast<std::size_t>(gemm2_rows(routed.shape, experts.shape().hidden) *
                                      experts.shape().hidden) *
                 sizeof(Value),
             0xFF),
        ended(static_cast<std::size_t>(step.tokens * experts.shape().hidden), 0xFFFF),
        count(step.tokens),
        shape(routed.shape),
        tactic(at) {}

  void put(const StepData& step, const Routed& routed) const {
    const auto to = [](const auto& there, const auto& here) {
      if (!here.empty()) cuda::copy(there.get(), here.data(), here.size() * sizeof(here[0]));
    };
    to(a, step.a);
    to(a_sf, step.a_sf);
    to(map, routed.host.expanded_to_permuted);
    to(tokens, routed.host.permuted_to_token);
    to(weights, routed.host.expert_weights);
    to(tile_expert, routed.host.tile_to_expert);
    to(tile_limit, routed.host.tile_to_limit);
    to(live, routed.host.live_tiles);
  }

  void enqueue(const Layer& layer, cuda::StreamHandle stream) const {
    DeviceRows out;
    if constexpr (std::is_same_v<Value, float>)
      out.sums = reinterpret_cast<float*>(rows.get());
    else
      out.rows = reinterpret_cast<std::uint16_t*>(rows.get());
    enqueue(layer, out, stream);
  }
  void enqueue_ended(const Layer& layer, cuda::StreamHandle stream) const {
    enqueue(layer, {.tokens = ended.get()}, stream);
  }
  void enqueue(const Layer& layer, const DeviceRows& out, cuda::StreamHandle stream) const {
    const DeviceExperts& experts = *layer.device;
    ASSERT_LE(experts.kept_bytes(shape), layer.kept.span().size());
    cuda::zero(counters.get(), counters.span().size_bytes(), stream);
    const routing::Metadata metadata{total.span(),       map.span(),        tokens.span(),
                                     weights.span(),     histogram.span(),  counts.span(),
                                     tile_expert.span(), tile_limit.span(), live.span()};
    experts.run(
        {count, a.get(), a_sf.get()}, shape, metadata, tactic,
        {std::as_writable_bytes(scratch.span()), counters.span(), std::as_writable_bytes(layer.kept.span())},
        out, stream);
  }

  [[nodiscard]] std::vector<Value> result() const {
    const std::vector<std::uint8_t> all = rows.host();
    std::vector<Value> out(all.size() / sizeof(Value));
    std::copy(all.begin(), all.end(), reinterpret_cast<std::uint8_t*>(out.data()));
    return out;
  }

  OnDevice<std::uint8_t> a, a_sf;
  OnDevice<std::int32_t> total, map, tokens;
  OnDevice<float> weights;
  OnDevice<std::int32_t> histogram, counts, tile_expert, tile_limit, live;
  OnDevice<std::uint8_t> scratch;
  OnDevice<std::uint32_t> counters;
  OnDevice<std::uint8_t> rows;
  OnDevice<std::uint16_t> ended;  // [T, H]
  std::int64_t count;
  routing::MetadataShape shape;
  Tactic tactic;
};

// The CPU op's rows in route order, [T * K, H]; zero where a route is not here.
template <typename Value>
std::vector<Value> wanted(const Layer& layer, const StepData& step) {
  const Routed routed(*layer.host, step, 8);
  const std::int64_t hidden = layer.host->shape().hidden;
  std::vector<std::byte> workspace(layer.host->workspace_bytes(routed.shape, {}));
  std::vector<Value> rows(static_cast<std::size_t>(gemm2_rows(routed.shape, hidden) * hidden));
  layer.host->body(step.input(), routed.shape, routed.host, {}, Workers(8), workspace, std::span(rows));
  std::vector<Value> out;
  for (std::int64_t i = 0; i < routed.shape.routes(); ++i) {
    const std::int64_t row = routed.host.expanded_to_permuted[static_cast<std::size_t>(i)];
    for (std::int64_t h = 0; h < hidden; ++h)
      out.push_back(row < 0 ? Value{} : rows[static_cast<std::size_t>(row * hidden + h)]);
  }
  return out;
}

// [T, H]: the CPU op's rows weighted and added in the routes' order.
std::vector<std::uint16_t> wanted_ended(const Layer& layer, const StepData& step) {
  const std::vector<std::uint16_t> rows = wanted<std::uint16_t>(layer, step);
  const Routed routed(*layer.host, step, 8);
  const std::int64_t hidden = layer.host->shape().hidden;
  const std::int64_t top_k = routed.shape.top_k;
  std::vector<std::uint16_t> out;
  for (std::int64_t t = 0; t < step.tokens; ++t)
    for (std::int64_t h = 0; h < hidden; ++h) {
      float sum = 0.0F;
      for (std::int64_t i = t * top_k; i < (t + 1) * top_k; ++i)
        if (routed.host.expanded_to_permuted[static_cast<std::size_t>(i)] >= 0)
          sum = std::fma(step.weights[static_cast<std::size_t>(i)],
                         numeric::bf16_to_f32(rows[static_cast<std::size_t>(i * hidden + h)]), sum);
      out.push_back(numeric::f32_to_bf16(sum));
    }
  return out;
}

// Equal bits; a NaN sum is a NaN sum.
bool same(std::uint16_t a, std::uint16_t b) { return a == b; }
bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

// Rows that the map names are the wanted ones, all others still hold 0xFF.
template <typename Value>
void expect_rows(const std::vector<Value>& got, const std::vector<Value>& want, const Routed& routed,
                 std::int64_t hidden, const std::string& where) {
  std::vector<bool> named(got.size() / static_cast<std::size_t>(hidden));
  std::int64_t wrong = 0;
  std::string first;
  for (std::int64_t i = 0; i < routed.shape.routes(); ++i) {
    const std::int64_t row = routed.host.expanded_to_permuted[static_cast<std::size_t>(i)];
    if (row < 0) continue;
    named[static_cast<std::size_t>(row)] = true;
    for (std::int64_t h = 0; h < hidden; ++h) {
      const Value g = got[static_cast<std::size_t>(row * hidden + h)];
      const Value w = want[static_cast<std::size_t>(i * hidden + h)];
      if (same(g, w)) continue;
      if (wrong++ == 0)
        first = "route " + std::to_string(i) + ", value " + std::to_string(h) + ": " + std::to_string(g) +
                ", wanted " + std::to_string(w);
    }
  }
  EXPECT_EQ(wrong, 0) << where << ": " << first;
  std::int64_t touched = 0;
  for (std::size_t row = 0; row < named.size(); ++row) {
    if (named[row]) continue;
    for (std::int64_t h = 0; h < hidden; ++h) {
      const Value g = got[row * static_cast<std::size_t>(hidden) + static_cast<std::size_t>(h)];
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(&g);
      if (std::any_of(bytes, bytes + sizeof(Value), [](std::uint8_t b) { return b != 0xFF; })) ++touched;
    }
  }
  EXPECT_EQ(touched, 0) << where << ": values of rows that nothing names";
}

template <typename Value>
void expect_same(const Layer& layer, const StepData& step, std::span<const Tactic> tactics,
                 const std::string& what) {
  const std::vector<Value> want = wanted<Value>(layer, step);
  const cuda::Stream stream;
  for (const Tactic tactic : tactics) {
    const Routed routed(*layer.device, step, tactic.tile);
    const DeviceStep<Value> there(*layer.device, step, routed, tactic);
    there.enqueue(layer, stream.handle());
    stream.synchronize();
    expect_rows(there.result(), want, routed, layer.host->shape().hidden,
                what + ", T " + std::to_string(step.tokens) + ", tile " + std::to_string(tactic.tile) +
                    ", config " + std::to_string(tactic.config));
  }
}

// The tokens that the kernel ends itself: twice, since what the first run left must not serve the second.
void expect_ended(const Layer& layer, const StepData& step, std::span<const Tactic> tactics,
                  const std::string& what) {
  const std::vector<std::uint16_t> want = wanted_ended(layer, step);
  const cuda::Stream stream;
  for (const Tactic tactic : tactics) {
    const Routed routed(*layer.device, step, tactic.tile);
    if (!layer.device->ends_tokens(routed.shape, tactic)) continue;
    const DeviceStep<std::uint16_t> there(*layer.device, step, routed, tactic);
    for (int run = 0; run < 2; ++run) {
      const std::vector<std::uint16_t> poison(want.size(), 0xFFFF);
      cuda::copy(there.ended.get(), poison.data(), poison.size() * 2);
      there.enqueue_ended(layer, stream.handle());
      stream.synchronize();
      EXPECT_EQ(there.ended.host(), want)
          << what << ", T " << step.tokens << ", config " << tactic.config << ", run " << run;
    }
  }
}

void expect_same(const Layer& layer, const StepData& step, std::span<const Tactic> tactics,
                 const std::string& what) {
  expect_same<std::uint16_t>(layer, step, tactics, what);
  expect_same<float>(layer, step, tactics, what + ", sums");
  expect_ended(layer, step, tactics, what);
}

std::string name(const ExpertsShape& s) {
  return std::to_string(s.experts) + " experts of " + std::to_string(s.hidden) + " x " +
         std::to_string(s.intermediate);
}

TEST_F(W4a4OnGpu, HasTheCpusBitsAtEveryShapeTacticAndNumberOfTokens) {
  std::uint64_t seed = 900;
  // Widths of less than a chunk, of half chunks at the end, of 1 to 10 segments: units that are shared by two
  // and four warpgroups, unevenly too, and units that are not.
  for (const ExpertsShape& shape : {ExpertsShape{4, 128, 64},
                                    {3, 256, 192},
                                    {5, 384, 320},
                                    {4, 640, 576},
                                    {8, 1024, 640},
                                    {2, 512, 1088}}) {
    const Layer layer(shape, shape.experts, 0, 2, ++seed);
    for (const std::int64_t tokens : {0, 1, 2, 3, 5, 8, 17, 64}) {
      const StepData step = test::random_step(tokens, 2, shape.experts, shape.hidden, ++seed);
      expect_same(layer, step, tactic_table, name(shape));
    }
  }
}

TEST_F(W4a4OnGpu, SumsLongTreesInTheirOrder) {
  std::uint64_t seed = 1900;
  constexpr std::array tactics = {Tactic{8, 0}, Tactic{8, 1}};
  for (const ExpertsShape& shape : {ExpertsShape{2, 512, 4096},
                                    {2, 2560, 1536},
                                    {1, 5120, 128},
                                    {1, 3584, 2048},
                                    {1, 16384, 64},
                                    {1, 128, 32768},
                                    {1, 32768 + 640, 64},
                                    {1, 128, 5696}}) {
    const Layer layer(shape, shape.experts, 0, 1, ++seed);
    for (const std::int64_t tokens : {1, 5}) {
      const StepData step = test::random_step(tokens, 1, shape.experts, shape.hidden, ++seed);
      expect_same(layer, step, tactics, name(shape));
    }
  }
}

TEST_F(W4a4OnGpu, TakesAnyRouting) {
  const ExpertsShape shape{6, 256, 128};
  std::uint64_t seed = 2900;
  // One rank's share of 16 experts.
  const Layer layer(shape, 16, 5, 3, ++seed);
  for (const std::int64_t tokens : {1, 7, 33, 64}) {
    StepData step = test::random_step(tokens, 3, 16, shape.hidden, ++seed);
    const StepData plain = step;
    expect_same(layer, step, tactic_table, "spread");
    for (auto& id : step.ids) id = 9;
    expect_same(layer, step, tactic_table, "all to one");
    for (auto& id : step.ids) id = 2;
    expect_same(layer, step, tactic_table, "all elsewhere");
    step = plain;
    for (std::size_t i = 0; i < step.ids.size(); i += 3) step.ids[i] = step.ids[i + 1];
    expect_same(layer, step, tactic_table, "named twice");
    step = plain;
    for (std::size_t i = 0; i < step.ids.size(); ++i)
      if (i % 4 != 0) step.ids[i] = -1;
    expect_same(layer, step, tactic_table, "not routed");
  }
}

TEST_F(W4a4OnGpu, EndsTokensOfManyRoutes) {
  const ExpertsShape shape{40, 256, 128};
  std::uint64_t seed = 3400;
  for (const std::int64_t top_k : {1, 8, 9, 30, 32}) {
    const Layer layer(shape, shape.experts, 0, top_k, ++seed);
    for (const std::int64_t tokens : {1, 2}) {
      StepData step = test::random_step(tokens, top_k, shape.experts, shape.hidden, ++seed);
      expect_ended(layer, step, tactic_table, std::to_string(top_k) + " routes");
      for (std::size_t i = 0; i < step.ids.size(); i += 3) step.ids[i] = -1;
      expect_ended(layer, step, tactic_table, std::to_string(top_k) + " routes, some of them nowhere");
    }
  }
  // Not where a token's choices are more than a warp reads at once, nor at other tactics.
  const Layer layer(shape, shape.experts, 0, 33, ++seed);
  EXPECT_FALSE(layer.device->ends_tokens(layer.device->metadata_shape(1, 8), {8, 0}));
  const Layer eight(shape, shape.experts, 0, 8, ++seed);
  EXPECT_TRUE(eight.device->ends_tokens(eight.device->metadata_shape(1, 8), {8, 0}));
  EXPECT_FALSE(eight.device->ends_tokens(eight.device->metadata_shape(1, 8), {8, 1}));
  EXPECT_FALSE(eight.device->ends_tokens(eight.device->metadata_shape(1, 16), {16, 0}));
  EXPECT_FALSE(eight.device->ends_tokens(eight.device->metadata_shape(3, 8), {8, 0}));
}

TEST_F(W4a4OnGpu, HasRowsThatACpuComputedElsewhere) {
  for (std::size_t i = 0; i < test::carried_cases.size(); ++i) {
    const test::CarriedCase& c = test::carried_cases[i];
    const Layer layer(c.shape, c.shape.experts, 0, c.top_k, c.seed);
    const StepData step = test::random_step(c.tokens, c.top_k, c.shape.experts, c.shape.hidden, c.seed + 1);
    const std::span<const std::uint16_t> carried = test::carried_rows(i);
    const cuda::Stream stream;
    for (const Tactic tactic : tactic_table) {
      const Routed routed(*layer.device, step, tactic.tile);
      const DeviceStep<std::uint16_t> there(*layer.device, step, routed, tactic);
      there.enqueue(layer, stream.handle());
      stream.synchronize();
      expect_rows(there.result(), {carried.begin(), carried.end()}, routed, c.shape.hidden,
                  "carried case " + std::to_string(i));
    }
  }
}

// So much work that warpgroups have units alone, of sums that they share where there is little.
TEST_F(W4a4OnGpu, TakesThousandsOfTokens) {
  std::uint64_t seed = 3900;
  for (const ExpertsShape& shape : {ExpertsShape{8, 256, 192}, {4, 1024, 192}, {4, 256, 1088}}) {
    const Layer layer(shape, shape.experts, 0, 2, ++seed);
    const StepData step = test::random_step(4096, 2, shape.experts, shape.hidden, ++seed);
    constexpr std::array tactics = {Tactic{8, 0}, Tactic{8, 1}, Tactic{64, 1}};
    expect_same<std::uint16_t>(layer, step, tactics, name(shape));
  }
}

TEST_F(W4a4OnGpu, FollowsTheGateParameters) {
  const ExpertsShape shape{3, 256, 192};
  Random random(4900);
  Parameters parameters;
  for (std::int64_t e = 0; e < shape.experts; ++e) {
    parameters.alpha.push_back(1.5F + 0.1F * random.normal());
    parameters.beta.push_back(2000.0F * random.normal());
    parameters.limit_gate.push_back(8000.0F);
    parameters.limit_up.push_back(9000.0F);
  }
  const Layer layer(shape, 3, 0, 2, 4901, parameters);
  const Layer plain(shape, 3, 0, 2, 4901);
  const StepData step = test::random_step(5, 2, 3, shape.hidden, 4902);
  expect_same(layer, step, tactic_table, "gate parameters");
  EXPECT_NE(wanted<float>(layer, step), wanted<float>(plain, step));
}

TEST_F(W4a4OnGpu, KeepsNanWhereItIs) {
  std::uint64_t seed = 5900;
  // A few scales of weights, also behind the last chunk's first half, and of one token.
  for (const ExpertsShape& shape : {ExpertsShape{3, 256, 192}, {3, 1280, 64}}) {
    const Layer layer(shape, 3, 0, 2, ++seed, {}, [&](layout::Nvfp4Experts& e) {
      Random random(++seed);
      for (const tensor::Tensor* t : {&e.w13_sf, &e.w2_sf})
        for (int i = 0; i < 12; ++i)
          t->bytes()[random.below(t->bytes().size())] = static_cast<std::byte>(i % 2 == 0 ? 0x7F : 0xFF);
    });
    for (const std::int64_t tokens : {1, 2, 6}) {
      StepData step = test::random_step(tokens, 2, 3, shape.hidden, ++seed);
      expect_same(layer, step, tactic_table, "NaN in weights, " + name(shape));
      step.a_sf[step.a_sf.size() - 1] = 0x7F;
      expect_same(layer, step, tactic_table, "NaN in weights and rows, " + name(shape));
    }
  }
  const Layer clean({2, 256, 128}, 2, 0, 1, ++seed);
  StepData step = test::random_step(3, 1, 2, 256, ++seed);
  step.ids = {1, 1, 1};
  step.a_sf[256 / 16 + 3] = 0xFF;
  expect_same(clean, step, tactic_table, "NaN in one row of three");
  const auto rows = wanted<std::uint16_t>(clean, step);
  EXPECT_EQ(rows[256], 0x7FC0);
  EXPECT_NE(rows[0], 0x7FC0);
  EXPECT_NE(rows[512], 0x7FC0);
}

TEST_F(W4a4OnGpu, AReplayedGraphFollowsTheMetadata) {
  const ExpertsShape shape{6, 640, 576};
  const Layer layer(shape, 6, 0, 2, 6900);
  for (const Tactic tactic : {Tactic{8, 0}, Tactic{16, 1}}) {
    StepData step = test::random_step(9, 2, 6, shape.hidden, 6901);
    const Routed routed(*layer.device, step, tactic.tile);
    const DeviceStep<std::uint16_t> there(*layer.device, step, routed, tactic);
    const cuda::Stream stream;
    const cuda::Graph graph =
        cuda::Graph::capture(stream.handle(), [&] { there.enqueue(layer, stream.handle()); });
    for (int replay = 0; replay < 6; ++replay) {
      step = test::random_step(9, 2, 6, shape.hidden, 6910 + static_cast<std::uint64_t>(replay));
      if (replay == 2) std::fill(step.ids.begin(), step.ids.end(), -1);
      if (replay == 4) std::fill(step.ids.begin(), step.ids.end(), 3);
      const Routed now(*layer.device, step, tactic.tile);
      there.put(step, now);
      const std::vector<std::uint8_t> poison(there.rows.span().size(), 0xFF);
      cuda::copy(there.rows.get(), poison.data(), poison.size());
      graph.launch(stream.handle());
      stream.synchronize();
      expect_rows(there.result(), wanted<std::uint16_t>(layer, step), now, shape.hidden,
                  "replay " + std::to_string(replay));
    }
  }
}

}  // namespace
}  // namespace kerf::op::sm90
