#include "kerf/decode/internal/landing.h"

#include <cstring>

#include "kerf/base/format.h"

namespace kerf::decode::internal {

Landing::Landing(bool on_device) {
  if (on_device) stream_.emplace();
}

void Landing::add(std::vector<Copy>& copies, std::span<std::byte> to, std::span<const std::byte> from) {
  if (to.size() != from.size()) fail(ErrorKind::bug, "{} bytes in the place of {}", from.size(), to.size());
  if (to.empty()) return;
  copies.push_back({to.data(), from.data(), to.size()});
  bytes_ += static_cast<std::int64_t>(to.size());
}

void Landing::on_host(std::span<std::byte> to, std::span<const std::byte> from) { add(host_, to, from); }

void Landing::on_device(std::span<std::byte> to, std::span<const std::byte> from) { add(device_, to, from); }

void Landing::run() const {
  for (const Copy& c : device_) cuda::copy(c.to, c.from, c.bytes, stream_->handle());
  for (const Copy& c : host_) std::memmove(c.to, c.from, c.bytes);
  if (stream_) stream_->synchronize();
}

}  // namespace kerf::decode::internal
