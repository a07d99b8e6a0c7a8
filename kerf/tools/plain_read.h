// The yardstick of everything that reads weights once: the same bytes read as fast as this machine's threads
// can read them, and nothing done with them. A fraction of it means something only as long as nobody can read
// faster, so it uses the widest vectors of the processor, whatever backend it is compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kerf/base/threads.h"
#include "kerf/layout/experts.h"

#pragma GCC visibility push(default)
namespace kerf::tools {

// A read of memory that does nothing else: the yardstick of a step's bytes.
class PlainRead {
 public:
  // Of these runs of bytes, in this order. They are somebody else's, and are not touched here.
  explicit PlainRead(std::span<const std::span<const std::byte>> runs);

  // Bytes that run() reads.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  // Reads all of it once, in contiguous pieces of half a MiB that are dealt to all workers. Returns the XOR
  // of all its 8-byte words (each run's last one filled up with zeros), so that no load can be left out.
  // Allocates nothing.
  [[nodiscard]] std::uint64_t run(const Workers& workers) const;

 private:
  std::vector<std::span<const std::byte>> pieces_;
  std::int64_t bytes_ = 0;
};

// What a step reads of one expert, each of its weight and scale tensors a run: w13, w13_sf, w2, w2_sf, or
// w13, w2. `local` counts the n experts that the view holds, and is in [0, n). The bytes stay the view's.
std::vector<std::span<const std::byte>> expert_runs(const layout::Nvfp4View& experts, std::int64_t local);
std::vector<std::span<const std::byte>> expert_runs(const layout::Bf16View& experts, std::int64_t local);

}  // namespace kerf::tools
#pragma GCC visibility pop
