#include "kerf/comm/internal/wire.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kerf/base/format.h"

namespace kerf::comm::internal {

namespace {

constexpr std::size_t kMessage = 4096;  // what transports send at once

struct Head {
  std::uint64_t collective = 0;
  std::uint64_t what = 0;  // bytes
  std::uint64_t mine_at = 0, mine = 0;
  std::uint64_t out_at = 0, out = 0;
  std::uint64_t sends = 0, receives = 0;  // lengths of the lists
  std::uint64_t data = 0;                 // bytes
};

std::uint64_t address(const std::byte* at) {
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(at));
}
const std::byte* pointer(std::uint64_t at) {
  return reinterpret_cast<const std::byte*>(static_cast<std::uintptr_t>(at));  // NOLINT
}
std::byte* pointer_out(std::uint64_t at) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(at));  // NOLINT
}

void put(std::span<std::byte>& to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to.data(), from, bytes);
  to = to.subspan(bytes);
}
void put_size(std::span<std::byte>& to, std::uint64_t size) { put(to, &size, sizeof(size)); }

std::span<const std::byte> take(std::span<const std::byte>& from, std::uint64_t bytes) {
  if (bytes > from.size()) fail(ErrorKind::bug, "a message of a collective ends early");
  const auto out = from.first(static_cast<std::size_t>(bytes));
  from = from.subspan(out.size());
  return out;
}
std::uint64_t take_size(std::span<const std::byte>& from) {
  std::uint64_t size = 0;
  std::memcpy(&size, take(from, sizeof(size)).data(), sizeof(size));
  return size;
}

}  // namespace

std::size_t wire_bytes(std::size_t ranks) { return kMessage + 16 * (ranks + 1); }

bool data_in_message(const Post& post, std::size_t ranks) {
  if (post.collective == Collective::all_to_all) return false;
  return sizeof(Head) + std::min(post.what.size(), most_wire_what) + post.mine.size() <= wire_bytes(ranks);
}

std::size_t write_post(const Post& post, std::span<std::byte> to) {
  const std::size_t ranks = (to.size() - kMessage) / 16 - 1;
  return write_post(post, to, data_in_message(post, ranks) ? post.mine : std::span<const std::byte>());
}

std::size_t write_post(const Post& post, std::span<std::byte> to, std::span<const std::byte> data) {
  const std::size_t ranks = (to.size() - kMessage) / 16 - 1;
  Head head;
  head.collective = static_cast<std::uint64_t>(post.collective);
  head.what = std::min(post.what.size(), most_wire_what);
  head.mine_at = address(post.mine.data());
  head.mine = post.mine.size();
  head.out_at = address(post.out.data());
  head.out = post.out.size();
  // Lists that are too long are wrong by their length.
  head.sends = std::min(post.send.size(), ranks + 1);
  head.receives = std::min(post.received.size(), ranks + 1);
  head.data = data.size();
  std::span<std::byte> rest = to;
  put(rest, &head, sizeof(head));
  put(rest, post.what.data(), static_cast<std::size_t>(head.what));
  for (const auto& block : post.send.first(static_cast<std::size_t>(head.sends)))
    put_size(rest, static_cast<std::uint64_t>(block.packed_bytes()));
  for (const auto& part : post.received.first(static_cast<std::size_t>(head.receives)))
    put_size(rest, part.size());
  put(rest, data.data(), data.size());
  return to.size() - rest.size();
}

Received read_post(std::span<const std::byte> message, WireLists& lists) {
  Head head;
  std::memcpy(&head, take(message, sizeof(head)).data(), sizeof(head));
  if (head.collective > static_cast<std::uint64_t>(Collective::lend))
    fail(ErrorKind::bug, "a message of no collective ({})", head.collective);
  const auto what = take(message, head.what);
  if (head.sends > message.size() || head.receives > message.size())
    fail(ErrorKind::bug, "a message of a collective ends early");
  lists.send.clear();
  for (std::uint64_t i = 0; i < head.sends; ++i) {
    const auto bytes = static_cast<std::int64_t>(take_size(message));
    lists.send.push_back({nullptr, 1, bytes, 1, bytes, bytes});
  }
  lists.received.clear();
  for (std::uint64_t i = 0; i < head.receives; ++i)
    lists.received.push_back(
        {static_cast<std::byte*>(nullptr), static_cast<std::size_t>(take_size(message))});
  Received out;
  out.post.collective = static_cast<Collective>(head.collective);
  out.post.what = {reinterpret_cast<const char*>(what.data()), what.size()};
  out.post.mine = {pointer(head.mine_at), static_cast<std::size_t>(head.mine)};
  out.post.out = {pointer_out(head.out_at), static_cast<std::size_t>(head.out)};
  out.post.send = lists.send;
  out.post.received = lists.received;
  out.data = take(message, head.data);
  return out;
}

}  // namespace kerf::comm::internal
