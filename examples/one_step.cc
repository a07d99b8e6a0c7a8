#include <cstdio>
#include <vector>

#include "kerf/kerf.h"

// One step of one layer on two ranks (threads of this process), expert TP.
int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const auto checkpoint = kerf::checkpoint::Checkpoint::open(argv[1]);
    const kerf::checkpoint::ModelConfig& model = checkpoint.config();
    const std::int64_t tokens = 2;
    std::vector<std::uint16_t> x(tokens * model.hidden, 0x3F80);  // [T, H] bf16: all 1
    std::vector<std::int32_t> ids = kerf::decode::spread_routes(tokens, model.top_k, model.experts);
    std::vector<float> weights(ids.size(), 1.0F / static_cast<float>(model.top_k));

    kerf::comm::run_local(2, {}, [&](kerf::comm::Group& group) {
      kerf::tensor::HostMemory memory;
      kerf::decode::Meter meter(memory);
      const kerf::decode::Rank rank{group, meter, kerf::Workers(1), kerf::Log()};
      kerf::decode::RuntimeOptions options;
      options.expert_tp = true;
      const auto runtime = kerf::decode::Runtime::build(checkpoint, options, rank);
      runtime.warm_up();
      kerf::decode::StepInputs step;
      step.tokens = tokens;
      step.x = x;
      step.ids = ids;
      step.weights = weights;
      const auto y = runtime.execute(0, kerf::decode::Mode::tp, step);  // [T, H] bf16, equal on every rank
      if (group.rank() == 0) std::printf("y[0, 0] = %g\n", kerf::numeric::bf16_to_f32(y[0]));
    });
  } catch (const kerf::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
