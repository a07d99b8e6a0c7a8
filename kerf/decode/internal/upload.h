// Converted experts on their way to a device: made in page-locked memory, a few at a time, while the ones
// before them are being copied.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kerf/cuda/device.h"
#include "kerf/decode/internal/staging.h"
#include "kerf/layout/experts.h"

namespace kerf::decode::internal {

// The tensors of a layer that are of use on a device: each has its experts one after another.
inline std::vector<std::span<std::byte>> weights_of(const layout::Nvfp4Experts& e) {
  return {e.w13.bytes(), e.w13_sf.bytes(), e.w2.bytes(), e.w2_sf.bytes()};
}
inline std::vector<std::span<std::byte>> weights_of(const layout::Bf16Experts& e) {
  return {e.w13.bytes(), e.w2.bytes()};
}

// Keeps its page-locked memory from layer to layer. Experts: Nvfp4Experts or Bf16Experts.
template <typename Experts>
class Upload {
 public:
  // Fills `out`, whose weights are on the device: make(first, experts) converts `experts.shape.experts`
  // experts, from number `first` of out's on, into host memory.
  template <typename Make>
  void fill(const Experts& out, Make make) {
    const std::int64_t count = out.shape.experts;
    const std::int64_t at_once = staged_at_once(count, out.bytes());
    int turn = 0;
    for (std::int64_t first = 0; first < count; first += at_once, turn ^= 1) {
      Slot& slot = slots_[turn];
      layout::ExpertsShape shape = out.shape;
      shape.experts = std::min(at_once, count - first);
      slot.prepare(shape);
      make(first, *slot.experts);
      const auto from = weights_of(*slot.experts);
      const auto to = weights_of(out);
      for (std::size_t i = 0; i < from.size(); ++i)
        cuda::copy(to[i].data() + from[i].size() / static_cast<std::size_t>(shape.experts) *
                                      static_cast<std::size_t>(first),
                   from[i].data(), from[i].size(), stream_.handle());
      slot.copied.record(stream_.handle());
    }
    stream_.synchronize();
  }

 private:
  struct Slot {
    // Ready to be written: of that shape, and nothing is being copied from it.
    void prepare(const layout::ExpertsShape& shape) {
      if (experts != nullptr) copied.synchronize();
      if (experts != nullptr && experts->shape == shape) return;
      experts.reset();
      experts = std::make_unique<Experts>(memory, shape, 0);
    }
    cuda::PinnedMemory memory;
    std::unique_ptr<Experts> experts;
    cuda::Event copied;
  };

  cuda::Stream stream_;
  std::array<Slot, 2> slots_;
};

}  // namespace kerf::decode::internal
