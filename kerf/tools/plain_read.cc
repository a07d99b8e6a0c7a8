#include "kerf/tools/plain_read.h"

#include <algorithm>
#include <atomic>
#include <initializer_list>

#include "kerf/tools/internal/xor_words.h"

namespace kerf::tools {

namespace {

// Large enough that starting a piece costs nothing, small enough that no worker waits long for the last one.
constexpr std::size_t piece_bytes = std::size_t{512} << 10;

std::vector<std::span<const std::byte>> runs_of(std::initializer_list<const tensor::TensorView*> tensors,
                                                std::int64_t experts, std::int64_t local) {
  std::vector<std::span<const std::byte>> out;
  for (const tensor::TensorView* t : tensors) {
    const std::size_t size = t->bytes.size() / static_cast<std::size_t>(experts);
    out.push_back(t->bytes.subspan(static_cast<std::size_t>(local) * size, size));
  }
  return out;
}

}  // namespace

PlainRead::PlainRead(std::span<const std::span<const std::byte>> runs) {
  for (const std::span<const std::byte> run : runs) {
    bytes_ += std::ssize(run);
    for (std::size_t at = 0; at < run.size(); at += piece_bytes)
      pieces_.push_back(run.subspan(at, std::min(piece_bytes, run.size() - at)));
  }
}

std::uint64_t PlainRead::run(const Workers& workers) const {
  std::atomic<std::uint64_t> sum = 0;
  workers.for_each(pieces_.size(), [&](std::size_t i, int) {
    sum.fetch_xor(internal::xor_words(pieces_[i]), std::memory_order_relaxed);
  });
  return sum;
}

std::vector<std::span<const std::byte>> expert_runs(const layout::Nvfp4View& experts, std::int64_t local) {
  return runs_of({&experts.w13, &experts.w13_sf, &experts.w2, &experts.w2_sf},
                 layout::shape_of(experts).experts, local);
}

std::vector<std::span<const std::byte>> expert_runs(const layout::Bf16View& experts, std::int64_t local) {
  return runs_of({&experts.w13, &experts.w2}, layout::shape_of(experts).experts, local);
}

}  // namespace kerf::tools
