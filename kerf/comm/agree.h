// Agreement: ranks exchange their verdicts on a check, so that all know all of them before the first one
// throws. All of it but in_context() is collective, in the host's memory, and throws what the group's
// collectives throw; `what` is theirs too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/comm/group.h"

#pragma GCC visibility push(default)
namespace kerf::comm {

// Nothing if all ranks have nothing to say. Otherwise all ranks get the reason of the lowest rank that
// refused, its text led by "rank R: " (its Group::number) where the group has more than one rank and the
// ranks don't all say the same.
Verdict agree(Group& group, const Verdict& mine, std::string_view what);

// Runs `step` on every rank, agrees on what it threw (attempt() says as what), throws the agreed reason on
// all of them.
void agreed(Group& group, std::string_view what, const std::function<void()>& step);

// Runs `step`; an Error that it throws is thrown again with "where: " before its text. Kind and type stay: a
// GroupFailed remains one, so that the rank which caused it is still found.
void in_context(std::string_view where, const std::function<void()>& step);

// Every rank's `mine` (equally many on all), ranks ascending: size() times as many. T is copied byte for
// byte.
template <typename T>
std::vector<T> gathered(Group& group, std::span<const T> mine, std::string_view what) {
  std::vector<T> all(mine.size() * static_cast<std::size_t>(group.size()));
  group.all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)), what);
  return all;
}

// Every rank's message (any lengths), ranks ascending.
std::vector<std::string> gather_text(Group& group, const std::string& mine, std::string_view what);

// The least and the largest of the ranks' values, on every rank.
std::int64_t all_min(Group& group, std::int64_t mine, std::string_view what);
std::int64_t all_max(Group& group, std::int64_t mine, std::string_view what);
// values[i] becomes the sum over ranks of their values[i], in f64 from +0, ranks ascending: the same bits on
// every rank. Equally many values on all.
void all_sum(Group& group, std::span<double> values, std::string_view what);

}  // namespace kerf::comm
#pragma GCC visibility pop
