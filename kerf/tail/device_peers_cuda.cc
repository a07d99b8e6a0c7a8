#include "kerf/tail/device_peers.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"
#include "kerf/tensor/storage.h"

namespace kerf::tail {

namespace {

// Where a rank's area is, and for whom.
struct Where {
  std::array<char, 64> host{};  // the kernel's own name for this start of this host
  std::int64_t process = 0;
  std::int64_t device = 0;
  std::uint64_t address = 0;
  std::int64_t half_bytes = 0;
  cuda::IpcName name{};
};

Where where(const std::byte* area, std::int64_t half_bytes, bool share_memory) {
  Where out;
  std::string host;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> host;
  std::copy_n(host.begin(), std::min(host.size(), out.host.size() - 1), out.host.begin());
  out.process = ::getpid();
  out.device = cuda::current_device();
  out.address = reinterpret_cast<std::uintptr_t>(area);
  out.half_bytes = half_bytes;
  if (!share_memory) out.name = cuda::export_block(area);
  return out;
}

}  // namespace

PeerAreas::PeerAreas(comm::Group& group, std::int64_t half_bytes, std::int64_t limit_us,
                     cuda::DeviceMemory& memory, cuda::PinnedMemory& pinned)
    : report_(pinned) {
  Where mine;
  comm::agreed(group, "allocating the peers' areas", [&] {
    if (group.size() > most_device_ranks)
      fail(ErrorKind::unsupported, "{} ranks with areas for each other, at most {}", group.size(),
           most_device_ranks);
    area_ = tensor::Tensor(memory, tensor::Dtype::u8, {area_bytes(half_bytes)});
    const cuda::Stream stream;
    clear_area(area_.bytes().data(), stream.handle());
    stream.synchronize();
    mine = where(area_.bytes().data(), half_bytes, group.shares_memory());
  });
  const auto all = comm::gathered(group, std::span<const Where>(&mine, 1), "the peers' areas");
  comm::agreed(group, "opening the peers' areas", [&] {
    peers_.rank = group.rank();
    peers_.ranks = group.size();
    peers_.half_bytes = half_bytes;
    peers_.limit_us = limit_us;
    peers_.missed = report_.word();
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r].host != mine.host)
        fail(ErrorKind::unsupported, "rank {} is on another host: its device's memory is not to be reached",
             group.number(static_cast<int>(r)));
      if (all[r].half_bytes != half_bytes)
        fail(ErrorKind::bug, "buffers of {} bytes here, of {} on rank {}", half_bytes, all[r].half_bytes,
             group.number(static_cast<int>(r)));
      if (all[r].process == mine.process) {
        cuda::enable_peer(static_cast<int>(all[r].device));
        peers_.area[r] = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(all[r].address));  // NOLINT
      } else {
        peers_.area[r] = imported_.emplace_back(all[r].name).data();
      }
    }
  });
}

}  // namespace kerf::tail
