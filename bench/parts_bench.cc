// The parts of a decode step, each by itself on one thread and on data that stays in a cache (but for the
// plain read and conversion, which are about memory): where a step's time goes, and which part a change
// moved. Google Benchmark's options apply, such as --benchmark_filter=op.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kerf/decode/inputs.h"
#include "kerf/layout/convert.h"
#include "kerf/numeric/nvfp4.h"
#include "kerf/op/op.h"
#include "kerf/routing/metadata.h"
#include "kerf/routing/router.h"
#include "kerf/tail/tail.h"
#include "kerf/tools/made_experts.h"
#include "kerf/tools/plain_read.h"

namespace {

using namespace kerf;

// A multiple of 128 in both: whole tiles of 128 weight rows.
constexpr layout::ExpertsShape kShape{8, 1024, 1024};
constexpr std::int64_t kTopK = 8;

void rate(benchmark::State& state, const char* name, double per_iteration) {
  state.counters[name] = benchmark::Counter(per_iteration, benchmark::Counter::kIsIterationInvariantRate);
}

// What one arithmetic needs: experts, and rows for them.
struct Op {
  tensor::HostMemory memory;
  Workers workers{1};
  std::unique_ptr<layout::Nvfp4Experts> nvfp4;
  std::unique_ptr<layout::Bf16Experts> bf16;
  std::unique_ptr<op::RoutedExperts> bound;
  std::vector<std::uint16_t> x;
  std::vector<std::uint8_t> a, a_sf;

  Op(const std::string& backend, op::Arithmetic arithmetic, std::int64_t top_k, std::int64_t tokens)
      : x(decode::make_rows(1, 0, tokens, kShape.hidden)) {
    if (arithmetic == op::Arithmetic::bf16) {
      bf16 = std::make_unique<layout::Bf16Experts>(tools::made_bf16(memory, kShape, 0, 1, workers));
      bound = op::backend(backend).bind(op::Bf16Args{bf16->view(), kShape.experts, top_k, {}});
      return;
    }
    const auto input = arithmetic == op::Arithmetic::w4a4 ? op::Input::nvfp4 : op::Input::bf16;
    nvfp4 = std::make_unique<layout::Nvfp4Experts>(tools::made_nvfp4(memory, kShape, 0, input, 1, workers));
    bound = op::backend(backend).bind(op::Nvfp4Args{nvfp4->view(), kShape.experts, top_k, input, {}});
    if (input == op::Input::bf16) return;
    a.resize(x.size() / 2);
    a_sf.resize(x.size() / 16);
    numeric::quantise_rows(x, kShape.hidden, nvfp4->a1_gscale.as<float>()[0], a, a_sf);
  }
  [[nodiscard]] op::Tokens tokens() const {
    const std::int64_t count = std::ssize(x) / kShape.hidden;
    return a.empty() ? op::Tokens{count, {}, {}, x} : op::Tokens{count, a, a_sf, {}};
  }
  [[nodiscard]] std::int64_t expert_bytes() const {
    return (nvfp4 ? nvfp4->bytes() : bf16->bytes()) / kShape.experts;
  }
};

// `count` tokens that all go to one expert: each tile of 128 weight rows is multiplied with that many rows.
void op_rows(benchmark::State& state, const std::string& backend, op::Arithmetic arithmetic) {
  const std::int64_t count = state.range(0);
  Op part(backend, arithmetic, 1, count);
  const routing::MetadataShape shape = part.bound->metadata_shape(count, 8);
  const routing::MetadataBuffer metadata(part.memory, routing::metadata_words(shape));
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(count), 3);
  const std::vector<float> weights(static_cast<std::size_t>(count), 1.0F);
  routing::write_metadata(shape, ids, weights, metadata.view(shape));
  std::vector<std::byte> workspace(part.bound->workspace_bytes(shape, {}));
  std::vector<std::uint16_t> rows(
      static_cast<std::size_t>(op::gemm2_rows(shape, kShape.hidden) * kShape.hidden));
  for (auto _ : state) {
    part.bound->body(part.tokens(), shape, metadata.view(shape), {8, -1}, part.workers, workspace,
                     std::span(rows));
    benchmark::ClobberMemory();
  }
  rate(state, "tiles/s", static_cast<double>((2 * kShape.intermediate + kShape.hidden) / 128));
  rate(state, "weights_B/s", static_cast<double>(part.expert_bytes()));
}

void quantise_input(benchmark::State& state) {
  const std::int64_t hidden = state.range(0);
  const std::vector<std::uint16_t> x = decode::make_rows(1, 0, 1, hidden);
  std::vector<std::uint8_t> codes(x.size() / 2);
  std::vector<std::uint8_t> scales(x.size() / 16);
  for (auto _ : state) {
    numeric::quantise_rows(x, hidden, 448.0F, codes, scales);
    benchmark::ClobberMemory();
  }
  rate(state, "values/s", static_cast<double>(hidden));
}

void routing_top_k(benchmark::State& state) {
  const std::int64_t tokens = state.range(0);
  const std::int64_t experts = state.range(1);
  const routing::Router router{routing::Method::renormalize, experts, kTopK};
  const decode::Inputs in =
      decode::make_inputs(1, 0, tokens, checkpoint::ExpertKind::bf16, {experts, 16, kTopK});
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens * kTopK));
  std::vector<float> weights(ids.size());
  for (auto _ : state) {
    routing::select(router, in.logits, {}, ids, weights);
    benchmark::ClobberMemory();
  }
  rate(state, "tokens/s", static_cast<double>(tokens));
}

void routing_metadata(benchmark::State& state) {
  const std::int64_t tokens = state.range(0);
  const std::int64_t experts = state.range(1);
  tensor::HostMemory memory;
  const decode::Inputs in =
      decode::make_inputs(1, 0, tokens, checkpoint::ExpertKind::nvfp4, {experts, 16, kTopK});
  const routing::MetadataShape shape{tokens, kTopK, experts, 0, experts, 8};
  const routing::MetadataBuffer metadata(memory, routing::metadata_words(shape));
  for (auto _ : state) {
    routing::write_metadata(shape, in.ids, in.weights, metadata.view(shape));
    benchmark::ClobberMemory();
  }
  rate(state, "routes/s", static_cast<double>(shape.routes()));
}

// The local tail: norm where there is one, weights, the sum over K.
void tail_rows(benchmark::State& state, bool normed) {
  const std::int64_t tokens = state.range(0);
  const std::int64_t hidden = state.range(1);
  tensor::HostMemory memory;
  const Workers workers(1);
  const tail::Scratch scratch(memory, {tokens, kTopK, hidden, 1, 1, 1, {}});
  const std::vector<std::uint16_t> rows = decode::make_rows(1, 0, tokens * kTopK, hidden);
  const decode::Inputs in = decode::make_inputs(1, 0, tokens, checkpoint::ExpertKind::nvfp4, {64, 16, kTopK});
  std::vector<std::int32_t> map(in.ids.size());
  for (std::size_t r = 0; r < map.size(); ++r) map[r] = static_cast<std::int32_t>(r);
  std::optional<tail::RouteNorm> norm;
  if (normed) norm.emplace().gain.assign(static_cast<std::size_t>(hidden), 0x3F80);  // 1
  std::vector<std::uint16_t> out(static_cast<std::size_t>(tokens * hidden));
  const op::Unfinalized unfinalized{tokens, kTopK, hidden, rows, in.weights, map, in.ids, {}};
  for (auto _ : state) {
    tail::finalize(unfinalized, norm, workers, scratch, out);
    benchmark::ClobberMemory();
  }
  rate(state, "rows/s", static_cast<double>(tokens * kTopK));
}

// One expert from a checkpoint's rows to the converted layout.
void convert_expert(benchmark::State& state) {
  const std::int64_t h = state.range(0);
  const std::int64_t i = state.range(1);
  tensor::HostMemory memory;
  const layout::Nvfp4Experts from = tools::made_nvfp4(memory, {1, h, i}, 0, op::Input::nvfp4, 1, Workers(1));
  const layout::Nvfp4Experts to(memory, {1, h, i}, 0);
  // Any bytes will do for the source: halves of w13 as gate and up.
  const std::span<const std::byte> w13 = from.w13.bytes();
  const std::span<const std::byte> w13_sf = from.w13_sf.bytes();
  const layout::LogicalNvfp4<const std::byte> source{w13.first(w13.size() / 2),
                                                     w13_sf.first(w13_sf.size() / 2),
                                                     w13.subspan(w13.size() / 2),
                                                     w13_sf.subspan(w13_sf.size() / 2),
                                                     from.w2.bytes(),
                                                     from.w2_sf.bytes()};
  for (auto _ : state) {
    layout::convert(source, h, i, {to.w13.bytes(), to.w13_sf.bytes(), to.w2.bytes(), to.w2_sf.bytes()});
    benchmark::ClobberMemory();
  }
  rate(state, "B/s", static_cast<double>(h * i * 3 * 9 / 16));
}

// From memory (512 MiB) and from a cache (1 MiB), by all cores and by one.
void plain_read(benchmark::State& state, int threads) {
  tensor::HostMemory memory;
  const Workers workers(threads);
  const tensor::Tensor bytes(memory, tensor::Dtype::u8, {state.range(0) << 20});
  std::ranges::fill(bytes.bytes(), std::byte{1});
  const std::span<const std::byte> all = bytes.bytes();
  const tools::PlainRead read(std::span(&all, 1));
  for (auto _ : state) benchmark::DoNotOptimize(read.run(workers));
  rate(state, "B/s", static_cast<double>(read.bytes()));
}

// One benchmark an instruction set and arithmetic; the scalar reference shows in op_bench.
void register_op() {
  for (const std::string& backend : op::backend_names()) {
    if (!backend.starts_with("cpu:")) continue;
    for (const op::Arithmetic arithmetic :
         {op::Arithmetic::w4a4, op::Arithmetic::w4a16, op::Arithmetic::bf16})
      benchmark::RegisterBenchmark(
          ("op/" + backend + "/" + std::string(op::name(arithmetic)) + "/rows").c_str(),
          [=](benchmark::State& state) { op_rows(state, backend, arithmetic); })
          ->Arg(1)
          ->Arg(2)
          ->Arg(4)
          ->Unit(benchmark::kMicrosecond);
  }
}

BENCHMARK(quantise_input)->Arg(1024)->Arg(4096);
BENCHMARK(routing_top_k)->Args({1, 64})->Args({1, 256})->Args({8, 256});
BENCHMARK(routing_metadata)->Args({1, 64})->Args({8, 256})->Args({32, 256});
BENCHMARK_CAPTURE(tail_rows, plain, false)->Args({1, 4096})->Args({8, 4096})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(tail_rows, normed, true)->Args({1, 4096})->Args({8, 4096})->Unit(benchmark::kMicrosecond);
BENCHMARK(convert_expert)->Args({1024, 1024})->Args({4096, 4096})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(plain_read, one_thread, 1)->Arg(1)->Arg(512)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(plain_read, all_cores, available_cores())
    ->Arg(1)
    ->Arg(512)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  register_op();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
