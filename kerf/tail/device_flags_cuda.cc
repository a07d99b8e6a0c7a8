// The host's side of the flags.
#include "kerf/base/format.h"
#include "kerf/tail/device_all_reduce.h"

namespace kerf::tail {

PeerReport::PeerReport(cuda::PinnedMemory& memory) : word_(memory, tensor::Dtype::i32, {1}) { *word() = 0; }

void PeerReport::check() const {
  const std::uint32_t value = *static_cast<const volatile std::uint32_t*>(word());
  if (value != 0) fail(ErrorKind::peer, "rank {} waited for rank {}", value >> 8 & 0xFFU, value & 0xFFU);
}

std::int64_t all_reduce_half_bytes(Shots shots, int ranks, std::int64_t values) {
  // Parts are of whole vectors of 8 values, and the longest is counted for each rank.
  const std::int64_t vectors = (values + 7) / 8;
  const std::int64_t held =
      shots == Shots::one_shot ? vectors * ranks : (vectors + ranks - 1) / ranks * ranks + vectors;
  return (held * 16 + 255) / 256 * 256;
}

}  // namespace kerf::tail
