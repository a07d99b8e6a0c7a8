#include "kerf/comm/facts.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"

namespace kerf::comm {

namespace {

constexpr std::size_t kListed = 8;   // facts that a refusal tells of
constexpr std::size_t kWhole = 120;  // bytes of a value that is shown whole
constexpr std::size_t kBefore = 24;  // of a longer one: what is shown in front of the first difference
constexpr std::string_view kNone = "(none)";

using Value = std::optional<std::string_view>;

// A value and the ranks that have it.
struct Side {
  Value value;
  std::vector<std::size_t> ranks;
};

// By the lowest rank that has it.
std::vector<Side> sides_of(const std::vector<Value>& values) {
  std::vector<Side> sides;
  for (std::size_t r = 0; r < values.size(); ++r) {
    const auto found = std::ranges::find_if(sides, [&](const Side& s) { return s.value == values[r]; });
    if (found == sides.end())
      sides.push_back({values[r], {r}});
    else
      found->ranks.push_back(r);
  }
  return sides;
}

// Where the values begin to differ.
std::size_t first_difference(const std::vector<Side>& sides) {
  std::size_t same = std::string_view::npos;
  for (const Side& s : sides) {
    const std::string_view first = sides.front().value.value_or("");
    const std::string_view other = s.value.value_or("");
    if (&s == &sides.front()) continue;
    const auto at = std::ranges::mismatch(first, other).in1 - first.begin();
    same = std::min(same, static_cast<std::size_t>(at));
  }
  return same;
}

std::string shown(const Value& value, std::size_t difference) {
  if (!value) return std::string(kNone);
  if (value->empty()) return "''";
  if (value->size() <= kWhole) return std::string(*value);
  const std::size_t begin = std::min(difference > kBefore ? difference - kBefore : 0, value->size());
  const std::string_view part = value->substr(begin, kWhole);
  return fmt::format("{}{}{} ({} bytes)", begin > 0 ? "..." : "", part,
                     begin + part.size() < value->size() ? "..." : "", value->size());
}

// The side of more than half of the ranks is that of the others, and told last.
std::string text_of(const std::string& name, std::vector<Side> sides, const std::vector<int>& numbers) {
  const std::size_t difference = first_difference(sides);
  const auto most = std::ranges::find_if(
      sides, [&](const Side& s) { return sides.size() > 1 && 2 * s.ranks.size() > numbers.size(); });
  const bool others = most != sides.end();
  if (others) std::rotate(most, most + 1, sides.end());
  std::string out = name + ": ";
  for (std::size_t i = 0; i < sides.size(); ++i) {
    const Side& s = sides[i];
    std::vector<int> ranks;
    for (const std::size_t r : s.ranks) ranks.push_back(numbers[r]);
    if (i > 0) out += ", ";
    if (others && i + 1 == sides.size())
      out += "others: ";
    else
      out += fmt::format("{} {}: ", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, " "));
    out += shown(s.value, difference);
  }
  return out;
}

// A message: what failed, or the facts.
struct Brought {
  Verdict failed;
  Facts facts;
};

void put(std::string& out, std::string_view piece) {
  const std::uint64_t length = piece.size();
  out.append(reinterpret_cast<const char*>(&length), sizeof(length));
  out += piece;
}

std::string take(std::string_view& from) {
  std::uint64_t length = 0;
  const bool whole = from.size() >= sizeof(length);
  if (whole) std::memcpy(&length, from.data(), sizeof(length));
  if (!whole || length > from.size() - sizeof(length))
    fail(ErrorKind::bug, "a rank's message of what it starts from ends early");
  std::string out(from.substr(sizeof(length), static_cast<std::size_t>(length)));
  from.remove_prefix(sizeof(length) + out.size());
  return out;
}

std::string message_of(const Brought& b) {
  std::string out;
  const auto put_fact = [&out](std::string_view name, std::string_view value, ErrorKind kind) {
    put(out, name);
    put(out, value);
    put(out, std::to_string(static_cast<int>(kind)));
  };
  put(out, b.failed ? "failed" : "facts");
  if (b.failed) put_fact("", b.failed->text, b.failed->kind);
  for (const Fact& f : b.facts) put_fact(f.name, f.value, f.kind);
  return out;
}

Brought brought_by(std::string_view message) {
  Brought out;
  const bool failed = take(message) == "failed";
  while (!message.empty()) {
    Fact f;
    f.name = take(message);
    f.value = take(message);
    f.kind = static_cast<ErrorKind>(std::stoi(take(message)));
    if (failed)
      out.failed = Reason{f.kind, std::move(f.value)};
    else
      out.facts.push_back(std::move(f));
  }
  return out;
}

}  // namespace

Verdict differing(const std::vector<Facts>& of_ranks, const std::vector<int>& numbers) {
  std::vector<std::string> told;
  std::size_t differ = 0;
  ErrorKind kind = ErrorKind::usage;
  std::vector<std::string_view> seen;
  for (const Facts& facts : of_ranks) {
    for (const Fact& fact : facts) {
      if (std::ranges::find(seen, fact.name) != seen.end()) continue;
      seen.push_back(fact.name);
      std::vector<Value> values;
      for (const Facts& other : of_ranks) {
        const auto found = std::ranges::find(other, fact.name, &Fact::name);
        values.push_back(found == other.end() ? Value() : Value(found->value));
      }
      std::vector<Side> sides = sides_of(values);
      if (sides.size() == 1) continue;
      if (differ++ == 0) kind = fact.kind;
      if (told.size() < kListed) told.push_back(text_of(fact.name, std::move(sides), numbers));
    }
  }
  if (differ == 0) return std::nullopt;
  return because(kind, "the ranks do not start alike: {}{}", fmt::join(told, "; "),
                 differ > told.size() ? fmt::format("; and {} more", differ - told.size()) : std::string());
}

Verdict compare_facts(Group& group, std::string_view what, const std::function<Facts()>& mine) {
  Brought own;
  own.failed = attempt([&] { own.facts = mine(); });
  if (own.failed) own.facts.clear();
  const std::vector<std::string> messages = gather_text(group, message_of(own), what);
  // What all bring is what all but one need not look at.
  const bool alike = std::ranges::all_of(messages, [&](const std::string& m) { return m == messages[0]; });
  if (alike && !own.failed) return std::nullopt;
  std::vector<Facts> all;
  std::vector<int> numbers;
  for (std::size_t r = 0; r < messages.size(); ++r) {
    Brought b = brought_by(messages[r]);
    const int number = group.number(static_cast<int>(r));
    if (b.failed) return alike ? b.failed : because(b.failed->kind, "rank {}: {}", number, b.failed->text);
    all.push_back(std::move(b.facts));
    numbers.push_back(number);
  }
  return differing(all, numbers);
}

void require_same(Group& group, std::string_view what, const std::function<Facts()>& mine) {
  require(compare_facts(group, what, mine));
}

}  // namespace kerf::comm
