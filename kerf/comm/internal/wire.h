// Posts as messages between processes: what a rank brings to a collective, as far as others must know it to
// see that all posts are one collective. Addresses go along because they are compared with each other; nobody
// follows them. Small data go along too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kerf/comm/internal/meeting.h"

namespace kerf::comm::internal {

// The most of a post's words that a message carries.
inline constexpr std::size_t most_wire_what = 160;

// The most bytes of a message in a group of so many ranks.
std::size_t wire_bytes(std::size_t ranks);

// Writes the post into `to` (wire_bytes()), with post.mine where it fits and the collective's data are of
// that kind. Returns the bytes written.
std::size_t write_post(const Post& post, std::span<std::byte> to);
// The same with `data` in the place of post.mine's bytes, which are not looked at: they may lie where the
// host does not read.
std::size_t write_post(const Post& post, std::span<std::byte> to, std::span<const std::byte> data);

// Where a message's lists are kept.
struct WireLists {
  std::vector<tensor::StridedBytes> send;
  std::vector<std::span<std::byte>> received;
};

struct Received {
  Post post;                        // as the sender sees it: sizes, and addresses of its memory
  std::span<const std::byte> data;  // its `mine`, in the message; empty where that is sent apart
};

// Reads what write_post() wrote. The lists are for this message alone and grow to what it needs; views lead
// into them and into the message. Error{bug} for a message that is none.
Received read_post(std::span<const std::byte> message, WireLists& lists);

// Whether a post's data travel in its message: the same on every rank whose posts fit together.
bool data_in_message(const Post& post, std::size_t ranks);

}  // namespace kerf::comm::internal
