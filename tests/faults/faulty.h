// One rank of a start in which something breaks: the same pieces for ranks that are threads and for those
// that are processes.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/inputs.h"
#include "kerf/decode/runtime.h"
#include "kerf/tensor/storage.h"

namespace kerf::test {

// Memory that ends after a few blocks.
class Scarce final : public tensor::Memory {
 public:
  explicit Scarce(tensor::Memory& below) : below_(below) {}
  std::byte* allocate(std::size_t bytes) override {
    if (++count_ > 5) fail(ErrorKind::memory, "no {} bytes left on this machine", bytes);
    return below_.allocate(bytes);
  }
  void release(std::byte* block, std::size_t bytes) noexcept override { below_.release(block, bytes); }

 private:
  tensor::Memory& below_;
  int count_ = 0;
};

// A file in which every run of bytes that could be block scales is NaN.
class Corrupt final : public tensor::Reader {
 public:
  explicit Corrupt(std::shared_ptr<const tensor::Reader> file) : file_(std::move(file)) {}
  void read(std::int64_t offset, std::span<std::byte> to) const override {
    file_->read(offset, to);
    if (to.size() > 256)
      std::fill(to.begin(), to.end(), std::byte{0x7F});  // scales alone are this long first
  }
  void will_need(std::int64_t /*offset*/, std::int64_t /*bytes*/) const noexcept override {}

  static checkpoint::Checkpoint in(const checkpoint::Checkpoint& from) {
    return from.through([](std::shared_ptr<const tensor::Reader> file) {
      return std::make_shared<Corrupt>(std::move(file));
    });
  }

 private:
  std::shared_ptr<const tensor::Reader> file_;
};

inline decode::RuntimeOptions expert_tp() {
  decode::RuntimeOptions options;
  options.expert_tp = true;
  return options;
}

// A start on every rank, opening included, as a program does it: what one rank meets, all agree on. Then so
// many steps, `between` before each.
inline void start(comm::Group& group, tensor::Memory& memory, const decode::RuntimeOptions& options,
                  const std::function<checkpoint::Checkpoint()>& open, int steps = 0,
                  const std::function<void(int step)>& between = {}) {
  decode::Meter meter(memory);
  checkpoint::Checkpoint from;
  comm::agreed(group, "opening the checkpoint", [&] { from = open(); });
  const decode::Runtime runtime = decode::Runtime::build(from, options, {group, meter, Workers(1), {}});
  runtime.warm_up();
  const checkpoint::ModelConfig& config = from.config();
  const auto in = decode::make_inputs(1, 0, 4, checkpoint::ExpertKind::nvfp4,
                                      {config.experts, config.hidden, config.top_k});
  for (int step = 0; step < steps; ++step) {
    if (between) between(step);
    (void)runtime.execute(0, decode::Mode::tp, {4, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}});
  }
}

}  // namespace kerf::test
