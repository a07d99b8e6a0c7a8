// Whether the posts of all ranks are one collective.
#include <functional>

#include "kerf/base/format.h"
#include "kerf/comm/internal/meeting.h"

namespace kerf::comm::internal {

namespace {

const char* name(Collective collective) {
  switch (collective) {
    case Collective::barrier:
      return "barrier";
    case Collective::all_gather:
      return "all-gather";
    case Collective::all_to_all:
      return "all-to-all";
    case Collective::all_reduce:
      return "all-reduce";
    case Collective::reduce_scatter:
      return "reduce-scatter";
    case Collective::lend:
      return "lending";
  }
  return "collective";
}

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less<const std::byte*> before;
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

// Bytes that a rank must have room for.
std::size_t wanted_out(const Post& post, std::size_t ranks) {
  switch (post.collective) {
    case Collective::barrier:
    case Collective::all_to_all:
    case Collective::lend:
      return 0;
    case Collective::all_gather:
      return post.mine.size() * ranks;
    case Collective::all_reduce:
      return post.mine.size();
    case Collective::reduce_scatter:
      return post.mine.size() / ranks;
  }
  return 0;
}

// What one rank sends to another must be what the other expects.
Verdict unequal_pairs(std::span<const Post> posts, std::span<const int> names) {
  for (std::size_t s = 0; s < posts.size(); ++s) {
    for (std::size_t d = 0; d < posts.size(); ++d) {
      const auto sent = static_cast<std::size_t>(posts[s].send[d].packed_bytes());
      const std::size_t wanted = posts[d].received[s].size();
      if (sent != wanted)
        return because(ErrorKind::bug, "{} '{}': rank {} sends {} bytes to rank {}, which wants {}",
                       name(Collective::all_to_all), posts[s].what, names[s], sent, names[d], wanted);
    }
  }
  return std::nullopt;
}

}  // namespace

Verdict inconsistent_alone(const Post& post, std::size_t rank, std::span<const int> names) {
  const std::size_t ranks = names.size();
  const auto refuse = [&](const std::string& text) {
    return because(ErrorKind::bug, "{} '{}': rank {} {}", name(post.collective), post.what, names[rank],
                   text);
  };
  if (post.collective == Collective::all_to_all) {
    if (post.send.size() != ranks)
      return refuse(fmt::format("sends {} blocks to {} ranks", post.send.size(), ranks));
    if (post.received.size() != ranks)
      return refuse(fmt::format("receives {} blocks from {} ranks", post.received.size(), ranks));
  }
  if (post.collective == Collective::reduce_scatter && post.mine.size() % (2 * ranks) != 0)
    return refuse(fmt::format("brings {} bf16 values, not a multiple of {}", post.mine.size() / 2, ranks));
  if (const std::size_t wanted = wanted_out(post, ranks); post.out.size() != wanted)
    return refuse(fmt::format("receives into {} bytes, wanted {}", post.out.size(), wanted));
  // In place is fine where the collective reads exactly what the same rank overwrites.
  const std::size_t own = post.collective == Collective::all_gather ? rank * post.mine.size() : 0;
  const bool may_alias =
      post.collective == Collective::all_gather || post.collective == Collective::all_reduce;
  const bool in_place = may_alias && post.mine.data() == post.out.data() + own;
  if (!in_place && overlap(post.mine, post.out)) return refuse("receives over what it sends");
  return std::nullopt;
}

Verdict inconsistent(std::span<const Post> posts, std::span<const int> names) {
  const Post& first = posts.front();
  for (std::size_t r = 1; r < posts.size(); ++r) {
    const Post& post = posts[r];
    if (post.collective != first.collective || post.what != first.what)
      return because(ErrorKind::bug, "rank {} is in {} '{}' while rank {} is in {} '{}'", names[r],
                     name(post.collective), post.what, names[0], name(first.collective), first.what);
  }
  for (std::size_t r = 0; r < posts.size(); ++r)
    if (Verdict verdict = inconsistent_alone(posts[r], r, names)) return verdict;
  for (std::size_t r = 1; r < posts.size(); ++r)
    if (posts[r].mine.size() != first.mine.size())
      return because(ErrorKind::bug, "{} '{}': rank {} brings {} bytes, rank {} {}", name(first.collective),
                     first.what, names[r], posts[r].mine.size(), names[0], first.mine.size());
  if (first.collective == Collective::all_to_all) return unequal_pairs(posts, names);
  return std::nullopt;
}

}  // namespace kerf::comm::internal
