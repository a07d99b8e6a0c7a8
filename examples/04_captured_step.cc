// 04: a decode step of all layers, captured. On a GPU that is a CUDA graph of the whole stack; on the CPU it
// is a prepared runtime, whose steps allocate nothing. Either way two steps on the same input have the same
// bits.
//     04_captured_step CHECKPOINT
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "kerf/kerf.h"

namespace {

std::atomic<long> allocations{0};

using Rows = std::vector<std::uint16_t>;
using kerf::decode::Mode;
using kerf::decode::Runtime;
using kerf::decode::StepInputs;

// Every layer's [T, H] bf16, one after another.
Rows on_the_cpu(const Runtime& runtime, const StepInputs& step, Rows rows) {
  std::size_t at = 0;
  for (std::size_t layer = 0; layer < runtime.layers().size(); ++layer)
    for (const std::uint16_t value : runtime.execute(layer, Mode::ep, step)) rows[at++] = value;
  return rows;
}

Rows on_the_gpu(kerf::decode::DeviceStack& stack, std::size_t layers) {
  stack.replay();
  Rows rows;
  for (std::size_t layer = 0; layer < layers; ++layer)
    for (const std::uint16_t value : stack.output(layer)) rows.push_back(value);
  return rows;
}

int decode(const char* path) {
  const auto checkpoint = kerf::checkpoint::Checkpoint::open(path);
  const kerf::checkpoint::ModelConfig& model = checkpoint.config();
  const std::int64_t tokens = 4;
  const Rows x(static_cast<std::size_t>(tokens * model.hidden), 0x3F80);  // [T, H] bf16: all 1
  const auto ids = kerf::decode::spread_routes(tokens, model.top_k, model.experts);
  const std::vector<float> weights(ids.size(), 1.0F / static_cast<float>(model.top_k));
  StepInputs step;
  step.tokens = tokens;
  step.x = x;
  step.ids = ids;
  step.weights = weights;

  const kerf::Verdict no_gpu = kerf::cuda::library();
  bool fine = false;
  kerf::comm::run_local(1, {}, [&](kerf::comm::Group& group) {
    kerf::tensor::HostMemory host;
    kerf::decode::Meter memory(host);
    kerf::cuda::DeviceMemory device;
    kerf::decode::Meter device_memory(device);
    const kerf::decode::Rank rank{
        group, memory, kerf::Workers(1), {}, nullptr, nullptr, no_gpu ? nullptr : &device_memory};
    kerf::decode::RuntimeOptions options;
    options.build.backend = no_gpu ? "cpu" : "cuda";
    const auto runtime = Runtime::build(checkpoint, options, rank);
    if (no_gpu) {
      std::printf("on the CPU (%s)\n", no_gpu->text.c_str());
      runtime.warm_up();
      const Rows room(x.size() * runtime.layers().size());
      const Rows first = on_the_cpu(runtime, step, room);
      Rows second = room;
      const long before = allocations;
      second = on_the_cpu(runtime, step, std::move(second));
      const long made = allocations - before;
      std::printf("%zu layers, %ld allocations in a step\n", runtime.layers().size(), made);
      fine = first == second && made == 0;
    } else {
      std::printf("on the GPU, captured\n");
      std::vector<const kerf::decode::Layer*> layers;
      for (const auto& layer : runtime.layers()) layers.push_back(&layer);
      const std::vector<kerf::decode::StackStep> steps = {{Mode::ep, tokens, kerf::tail::Kind::fast}};
      const auto stack = kerf::decode::make_device_stack(layers, runtime.plan(), steps, rank);
      for (std::size_t layer = 0; layer < layers.size(); ++layer) stack->load(layer, step);
      stack->capture(steps.front());
      fine = on_the_gpu(*stack, layers.size()) == on_the_gpu(*stack, layers.size());
      std::printf("%zu layers, %.1f us a replay\n", layers.size(), stack->time(1).front());
    }
  });
  std::printf("two steps: %s\n", fine ? "the same bits" : "DIFFERENT");
  return fine ? 0 : 1;
}

}  // namespace

// Counts what the whole program allocates.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* block = std::malloc(bytes == 0 ? 1 : bytes)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t /*bytes*/) noexcept { std::free(block); }

int main(int argc, char** argv) {
  int code = 0;
  const kerf::Verdict failed = kerf::attempt([&] {
    if (argc != 2) throw kerf::Error(kerf::ErrorKind::usage, "usage: 04_captured_step CHECKPOINT");
    code = decode(argv[1]);
  });
  if (failed) std::fprintf(stderr, "%s\n", failed->text.c_str());
  return failed ? static_cast<int>(failed->kind) : code;
}
