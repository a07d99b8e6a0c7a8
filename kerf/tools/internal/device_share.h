// One rank's share of a made-up layer, alone on a device: its steps in graphs, beside graphs of plain reads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kerf/cuda/device.h"
#include "kerf/decode/device_stack.h"
#include "kerf/decode/inputs.h"
#include "kerf/decode/plan.h"

namespace kerf::tools::internal {

// What one rank holds.
struct Held {
  op::Arithmetic arithmetic = op::Arithmetic::w4a4;
  layout::ExpertsShape shape;
  std::int64_t first_expert = 0;
  std::int64_t num_experts = 0;
  std::int64_t top_k = 0;
};

class DeviceShare {
 public:
  // Makes the experts on the device, for steps of up to `most_tokens` tokens. `rank` is alone in its group
  // and has a device.
  DeviceShare(const Held& held, std::uint64_t seed, std::int64_t most_tokens, const decode::Rank& rank);

  [[nodiscard]] double expert_bytes() const;
  // Of routes, the bytes of the experts that are held here, each once.
  [[nodiscard]] double bytes(std::span<const std::int32_t> ids) const;

  [[nodiscard]] std::vector<op::Tactic> tactics(std::int64_t tokens) const {
    return layer_.ep->tactics(tokens);
  }
  // The tactic of steps of so many tokens from here on.
  void choose(std::int64_t tokens, op::Tactic tactic);

  struct Times {
    double us = 0;
    double read_us = 0;
  };
  // A graph of one step for each of `routes`, and one of as many reads, in turns: the medians of a few
  // replays, a step's share of them.
  Times time(std::int64_t tokens, std::span<const decode::Inputs> routes, std::span<const std::uint16_t> x);

 private:
  void read(std::size_t bytes);

  Held held_;
  const decode::Rank& rank_;
  decode::Layer layer_;
  std::vector<std::span<const std::byte>> weights_;
  std::array<std::size_t, 4> at_{};  // where reads go on in each
  decode::Plan plan_;
  std::unique_ptr<decode::DeviceStack> stack_;
  std::pair<std::int64_t, std::size_t> captured_{-1, 0};  // tokens and steps
  cuda::Stream stream_;
  cuda::Event begin_, end_;
  tensor::Tensor result_;
};

}  // namespace kerf::tools::internal
