// What is planned for a device is what its Meter then sees.
#include <gtest/gtest.h>

#include <vector>

#include "kerf/cuda/copier.h"
#include "kerf/decode/device_stack.h"
#include "kerf/decode/memory_plan.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"
#include "tests/support/gpu.h"

namespace kerf::test {
namespace {

class DeviceSizes : public OnGpu {};

TEST_F(DeviceSizes, AreThoseOfThePlan) {
  const checkpoint::Checkpoint from = small_model().open();
  for (const bool tp : {false, true}) {
    decode::MemoryRequest request{.experts = 16,
                                  .hidden = 256,
                                  .intermediate = 256,
                                  .top_k = 4,
                                  .nvfp4_layers = 3,
                                  .bf16_layers = 1,
                                  .ranks = 2};
    request.tp = tp ? 2 : 1;
    request.tokens = 8;
    request.backend = "cuda";
    request.norm = from.config().post_norm.has_value();
    const decode::MemoryPlan plan = decode::memory_plan(request);
    comm::LocalOptions local;
    local.copier = &cuda::copier();
    comm::run_local(2, local, [&](comm::Group& group) {
      tensor::HostMemory memory;
      decode::Meter host(memory);
      cuda::DeviceMemory there;
      decode::Meter device(there);
      const decode::Rank rank{group, host, Workers(1), {}, nullptr, nullptr, &device};
      decode::RuntimeOptions options;
      options.build.backend = "cuda";
      options.expert_tp = tp;
      options.max_tokens = 8;
      const auto runtime = decode::Runtime::build(from, options, rank);
      EXPECT_EQ(device.current(), plan.ep.total() + plan.tp.total() - plan.ep.scalars - plan.tp.scalars);
      EXPECT_EQ(host.current(), plan.host.steps);
      std::vector<const decode::Layer*> layers;
      for (const decode::Layer& layer : runtime.layers()) layers.push_back(&layer);
      const std::vector<decode::StackStep> steps = {
          {decode::Mode::ep, 1, tail::Kind::fast},
          {tp ? decode::Mode::tp : decode::Mode::ep, 8, tail::Kind::fast}};
      const auto stack = decode::make_device_stack(layers, runtime.plan(), steps, rank);
      EXPECT_EQ(stack->bytes(), plan.stack);
      EXPECT_EQ(device.current(), plan.device.steps);
    });
  }
}

}  // namespace
}  // namespace kerf::test
