// One rank's part of a stack on a device: its layers as the device's kernels want them, and the buffers that
// its steps work in.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kerf/cuda/device.h"
#include "kerf/decode/device_stack.h"
#include "kerf/op/sm90/experts.h"
#include "kerf/op/sm90/route.h"
#include "kerf/routing/metadata.h"
#include "kerf/tail/device.h"

namespace kerf::decode::internal {

// One layer's own memory.
struct DeviceLayer {
  const Layer* layer = nullptr;
  tensor::Tensor gs;          // [1] f32: the global scale that its rows are quantised with
  tensor::Tensor gain;        // [H] bf16, or empty
  tensor::Tensor g2_alphas;   // [E] f32 of all experts of the model: sliced layers
  std::uint64_t refills = 0;  // Layer::refills that the values above are of
  // What is loaded, at most max_tokens of it.
  tensor::Tensor x;                       // [T, H] bf16
  tensor::Tensor logits, bias;            // [T, E], [E] f32
  tensor::Tensor ids, weights;            // [T, K] i32, f32
  std::optional<routing::Router> router;  // routes are chosen from logits
  bool biased = false;
  tensor::Tensor out;  // [T, H] bf16
};

class DeviceRank {
 public:
  DeviceRank(std::span<const Layer* const> layers, const Plan& plan, std::span<const StackStep> steps,
             const Rank& rank);

  void load(std::size_t position, const StepInputs& inputs);

  // Whether run_experts() can end a layer's tokens, with no tail behind it.
  [[nodiscard]] bool ends_tokens(std::size_t position, const StackStep& step) const;
  // Enqueues a layer's routes, rows and experts; the experts end the tokens where `ended` [T, H] bf16 is
  // given.
  void run_experts(std::size_t position, const StackStep& step, const DeviceStepTensors& tensors,
                   std::uint16_t* ended, cuda::StreamHandle stream) const;
  // The rows of run_experts() without `ended`.
  [[nodiscard]] DeviceUnfinalized unfinalized(std::size_t position, const StackStep& step) const;
  // A layer's own memory, with what was loaded into it.
  [[nodiscard]] DeviceStepTensors loaded(std::size_t position) const;

  // What tails read of this rank, after that.
  [[nodiscard]] tail::DevicePart part(std::size_t position, const StackStep& step) const;
  [[nodiscard]] const DeviceLayer& layer(std::size_t position) const { return layers_[position]; }
  [[nodiscard]] std::size_t layers() const { return layers_.size(); }
  [[nodiscard]] const float* weights() const { return weights_.as<float>().data(); }
  [[nodiscard]] const std::int32_t* ids() const { return ids_.as<std::int32_t>().data(); }
  [[nodiscard]] std::uint16_t* partial() const { return partial_.as<std::uint16_t>().data(); }
  // Made at the first call; later ones put as many other values in their place.
  void set_g2_alphas(std::size_t position, std::span<const float> all);
  // Whether the layer has other weights than its copies of values (gs, gain, g2_alphas) are of.
  [[nodiscard]] bool outdated(std::size_t position) const;
  // Takes gs and gain again, to where they were.
  void take_values(std::size_t position);

 private:
  struct Shape {
    op::Tactic tactic;
    routing::MetadataShape metadata;
  };
  [[nodiscard]] Shape shape_of(const Layer& layer, const StackStep& step) const;
  [[nodiscard]] routing::Metadata metadata(const routing::MetadataShape& shape) const;

  const Plan& plan_;
  tensor::Memory& memory_;
  std::vector<DeviceLayer> layers_;
  // Shared by the layers.
  tensor::Tensor metadata_;                   // 32-bit words
  tensor::Tensor codes_, scales_;             // [T, H/2], [T, H/16]
  tensor::Tensor ids_, weights_;              // [T, K]
  tensor::Tensor scratch_, counters_, kept_;  // the op's
  tensor::Tensor rows_, sums_;                // [gemm2_rows, H] bf16, f32
  tensor::Tensor partial_;                    // [T, H] bf16
};

// The device's op behind a layer's experts; Error{bug} where they are bound to another backend.
const op::sm90::DeviceExperts& device_experts(const op::RoutedExperts& experts);

}  // namespace kerf::decode::internal
