#include "kerf/tail/internal/device_checks.h"

#include "kerf/base/format.h"

namespace kerf::tail::internal {

namespace {

bool aligned(const void* p) { return p != nullptr && reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

bool is_tree(RowSource source) { return source == RowSource::tree_sum || source == RowSource::tree_any; }

}  // namespace

void check(const DeviceTail& tail) {
  if (tail.top_k < 1 || tail.top_k > most_device_top_k)
    fail(ErrorKind::bug, "device tail: top {}, not 1 to {}", tail.top_k, most_device_top_k);
  if (tail.hidden < device_hidden_unit || tail.hidden > most_device_hidden ||
      tail.hidden % device_hidden_unit != 0)
    fail(ErrorKind::bug, "device tail: {} values of a row, not a multiple of {} up to {}", tail.hidden,
         device_hidden_unit, most_device_hidden);
  if (tail.first < 0 || tail.count < 0 || tail.count > most_device_tokens ||
      tail.first + tail.count > tail.tokens)
    fail(ErrorKind::bug, "device tail: tokens {} to {} of {}", tail.first, tail.first + tail.count,
         tail.tokens);
  if (tail.parts < 1 || tail.parts > most_device_ranks || tail.outs < 1 || tail.outs > most_device_ranks)
    fail(ErrorKind::bug, "device tail: {} parts and {} outputs, not 1 to {}", tail.parts, tail.outs,
         most_device_ranks);
  if (tail.source == RowSource::tree_any && (tail.slices < 1 || tail.parts % tail.slices != 0))
    fail(ErrorKind::bug, "device tail: {} parts in rows of {} slices", tail.parts, tail.slices);
  const int parts = tail.source == RowSource::local ? 1 : tail.parts;
  for (int p = 0; p < parts; ++p) {
    const DevicePart& part = tail.part[static_cast<std::size_t>(p)];
    if (!aligned(is_tree(tail.source) ? static_cast<const void*>(part.sums) : part.rows) ||
        part.map == nullptr)
      fail(ErrorKind::bug, "device tail: part {} has no {} rows at a multiple of 16 bytes, or no map", p,
           is_tree(tail.source) ? "f32" : "bf16");
  }
  for (int o = 0; o < tail.outs; ++o)
    if (!aligned(tail.out[static_cast<std::size_t>(o)]))
      fail(ErrorKind::bug, "device tail: output {} is not at a multiple of 16 bytes", o);
  if (tail.weights == nullptr || (is_tree(tail.source) && (tail.ids == nullptr || tail.g2_alphas == nullptr)))
    fail(ErrorKind::bug, "device tail: no weights, or sums without ids and g2_alphas");
  if (tail.norm.present && tail.norm.gain != nullptr && !aligned(tail.norm.gain))
    fail(ErrorKind::bug, "device tail: the gain is not at a multiple of 16 bytes");
}

void check(const DeviceSum& sum) {
  constexpr int unit = 8;  // values of a load
  if (sum.first < 0 || sum.count < 0 || sum.first % unit != 0 || sum.count % unit != 0)
    fail(ErrorKind::bug, "device sum: {} values from {}, not multiples of {}", sum.count, sum.first, unit);
  if (sum.parts < 1 || sum.parts > most_device_ranks || sum.outs < 1 || sum.outs > most_device_ranks)
    fail(ErrorKind::bug, "device sum: {} parts and {} outputs, not 1 to {}", sum.parts, sum.outs,
         most_device_ranks);
  for (int r = 0; r < sum.parts; ++r)
    if (!aligned(sum.part[static_cast<std::size_t>(r)]))
      fail(ErrorKind::bug, "device sum: part {} is not at a multiple of 16 bytes", r);
  for (int o = 0; o < sum.outs; ++o)
    if (!aligned(sum.out[static_cast<std::size_t>(o)]))
      fail(ErrorKind::bug, "device sum: output {} is not at a multiple of 16 bytes", o);
}

void check(const Peers& peers) {
  if (peers.ranks < 1 || peers.ranks > most_device_ranks || peers.rank < 0 || peers.rank >= peers.ranks)
    fail(ErrorKind::bug, "device flags: rank {} of {}, not of 1 to {}", peers.rank, peers.ranks,
         most_device_ranks);
  for (int r = 0; r < peers.ranks; ++r)
    if (const auto* const area = peers.area[static_cast<std::size_t>(r)];
        area == nullptr || reinterpret_cast<std::uintptr_t>(area) % 256 != 0)
      fail(ErrorKind::bug, "device flags: rank {}'s area is not at a multiple of 256 bytes", r);
  if (peers.missed == nullptr || peers.limit_us < 1 || peers.half_bytes < 0 || peers.half_bytes % 256 != 0)
    fail(ErrorKind::bug, "device flags: no report, a wait of {} us or buffers of {} bytes", peers.limit_us,
         peers.half_bytes);
}

void check(const DeviceAllReduce& sum) {
  check(sum.peers);
  if (sum.values < 0 || sum.values % 8 != 0)
    fail(ErrorKind::bug, "device all-reduce: {} values, not a multiple of 8", sum.values);
  if (sum.values > 0 && (!aligned(sum.mine) || !aligned(sum.sum)))
    fail(ErrorKind::bug, "device all-reduce: values are not at a multiple of 16 bytes");
  if (const std::int64_t need = all_reduce_half_bytes(sum.shots, sum.peers.ranks, sum.values);
      need > sum.peers.half_bytes)
    fail(ErrorKind::bug, "device all-reduce: buffers of {} bytes, {} are needed", sum.peers.half_bytes, need);
}

}  // namespace kerf::tail::internal
