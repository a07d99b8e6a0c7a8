#include "kerf/comm/agree.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kerf/base/format.h"

namespace kerf::comm {

namespace {

template <typename T>
std::vector<T> gather(Group& group, const T& mine, std::string_view what) {
  return gathered(group, std::span<const T>(&mine, 1), what);
}

}  // namespace

std::vector<std::string> gather_text(Group& group, const std::string& mine, std::string_view what) {
  // Lengths first; then all texts, padded to the longest, since the parts of an all-gather are equal.
  const auto lengths = gather(group, std::uint64_t{mine.size()}, what);
  const std::size_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::string> texts(lengths.size());
  if (longest == 0) return texts;
  std::string padded = mine;
  padded.resize(longest);
  const auto all = gathered(group, std::span<const char>(padded), what);
  for (std::size_t r = 0; r < texts.size(); ++r) texts[r].assign(all.data() + r * longest, lengths[r]);
  return texts;
}

Verdict agree(Group& group, const Verdict& mine, std::string_view what) {
  const auto kinds = gather(group, std::int32_t{mine ? static_cast<int>(mine->kind) : 0}, what);
  const auto refused = std::find_if(kinds.begin(), kinds.end(), [](std::int32_t k) { return k != 0; });
  if (refused == kinds.end()) return std::nullopt;
  const auto texts = gather_text(group, mine ? mine->text : std::string(), what);
  const auto rank = static_cast<std::size_t>(refused - kinds.begin());
  bool unanimous = true;
  for (std::size_t r = 0; r < texts.size(); ++r)
    unanimous = unanimous && kinds[r] == *refused && texts[r] == texts[rank];
  const auto kind = static_cast<ErrorKind>(*refused);
  if (unanimous) return Reason{kind, texts[rank]};
  return because(kind, "rank {}: {}", group.number(static_cast<int>(rank)), texts[rank]);
}

void agreed(Group& group, std::string_view what, const std::function<void()>& step) {
  require(agree(group, attempt(step), what));
}

void in_context(std::string_view where, const std::function<void()>& step) {
  try {
    step();
  } catch (const GroupFailed& e) {
    throw GroupFailed(e.kind(), fmt::format("{}: {}", where, e.what()));
  } catch (const Error& e) {
    fail(e.kind(), "{}: {}", where, e.what());
  }
}

std::int64_t all_min(Group& group, std::int64_t mine, std::string_view what) {
  const auto all = gather(group, mine, what);
  return *std::min_element(all.begin(), all.end());
}

std::int64_t all_max(Group& group, std::int64_t mine, std::string_view what) {
  const auto all = gather(group, mine, what);
  return *std::max_element(all.begin(), all.end());
}

void all_sum(Group& group, std::span<double> values, std::string_view what) {
  const auto all = gathered(group, std::span<const double>(values), what);
  for (std::size_t i = 0; i < values.size(); ++i) {
    double sum = 0.0;
    for (std::size_t at = i; at < all.size(); at += values.size()) sum += all[at];
    values[i] = sum;
  }
}

}  // namespace kerf::comm
