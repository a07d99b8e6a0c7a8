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
  }
  return "collective";
}

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less<const std::byte*> before;
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

// Bytes that a rank sends to (or, for the reductions, shares with) the others: equal on all ranks.
std::size_t sent_bytes(const Post& post) {
  if (post.collective != Collective::all_to_all) return post.mine.size();
  return post.send.empty() ? 0 : static_cast<std::size_t>(post.send.front().packed_bytes());
}

// Bytes that a rank must have room for.
std::size_t wanted_out(const Post& post, std::size_t ranks) {
  switch (post.collective) {
    case Collective::barrier:
      return 0;
    case Collective::all_gather:
    case Collective::all_to_all:
      return sent_bytes(post) * ranks;
    case Collective::all_reduce:
      return sent_bytes(post);
    case Collective::reduce_scatter:
      return sent_bytes(post) / ranks;
  }
  return 0;
}

Verdict inconsistent_alone(std::size_t rank, const Post& post, std::size_t ranks) {
  const auto refuse = [&](const std::string& text) {
    return because(ErrorKind::bug, "{} '{}': rank {} {}", name(post.collective), post.what, rank, text);
  };
  if (post.collective == Collective::all_to_all) {
    if (post.send.size() != ranks)
      return refuse(fmt::format("sends {} blocks to {} ranks", post.send.size(), ranks));
    for (std::size_t d = 1; d < ranks; ++d)
      if (post.send[d].packed_bytes() != post.send[0].packed_bytes())
        return refuse(fmt::format("sends {} bytes to rank {} and {} bytes to rank 0",
                                  post.send[d].packed_bytes(), d, post.send[0].packed_bytes()));
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

}  // namespace

Verdict inconsistent(std::span<const Post> posts) {
  const Post& first = posts.front();
  for (std::size_t r = 1; r < posts.size(); ++r) {
    const Post& post = posts[r];
    if (post.collective != first.collective || post.what != first.what)
      return because(ErrorKind::bug, "rank {} is in {} '{}' while rank 0 is in {} '{}'", r,
                     name(post.collective), post.what, name(first.collective), first.what);
  }
  for (std::size_t r = 0; r < posts.size(); ++r)
    if (Verdict verdict = inconsistent_alone(r, posts[r], posts.size())) return verdict;
  for (std::size_t r = 1; r < posts.size(); ++r)
    if (sent_bytes(posts[r]) != sent_bytes(first))
      return because(ErrorKind::bug, "{} '{}': rank {} brings {} bytes, rank 0 {}", name(first.collective),
                     first.what, r, sent_bytes(posts[r]), sent_bytes(first));
  return std::nullopt;
}

}  // namespace kerf::comm::internal
