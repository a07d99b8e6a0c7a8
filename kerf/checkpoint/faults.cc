#include "kerf/checkpoint/faults.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kerf/base/format.h"

namespace kerf::checkpoint {

namespace {

FaultGroup& group_of(std::vector<FaultGroup>& groups, const std::string& kind) {
  const auto found =
      std::find_if(groups.begin(), groups.end(), [&](const FaultGroup& g) { return g.kind == kind; });
  return found != groups.end() ? *found : groups.emplace_back(FaultGroup{kind, 0, {}});
}

}  // namespace

void Faults::add(const std::string& kind, std::string place) {
  FaultGroup& group = group_of(groups_, kind);
  ++group.total;
  if (group.first.size() < kept) group.first.push_back(std::move(place));
}

void Faults::add(const FaultGroup& group) {
  if (group.total == 0) return;
  FaultGroup& ours = group_of(groups_, group.kind);
  ours.total += group.total;
  for (const std::string& place : group.first)
    if (ours.first.size() < kept) ours.first.push_back(place);
}

void Faults::merge(const Faults& other) {
  for (const FaultGroup& theirs : other.groups_) add(theirs);
}

std::int64_t Faults::total() const {
  std::int64_t sum = 0;
  for (const FaultGroup& group : groups_) sum += group.total;
  return sum;
}

std::string Faults::text() const {
  std::string out;
  for (const FaultGroup& group : groups_) {
    if (!out.empty()) out += " | ";
    out += fmt::format("{}, count {}", group.kind, group.total);
    if (group.total > std::ssize(group.first)) out += fmt::format(", the first {}", group.first.size());
    out += fmt::format(": {}", fmt::join(group.first, "; "));
  }
  return out;
}

Verdict Faults::verdict() const {
  if (empty()) return std::nullopt;
  return Reason{ErrorKind::checkpoint, text()};
}

std::string Faults::to_json() const {
  nlohmann::json out = nlohmann::json::array();
  for (const FaultGroup& group : groups_)
    out.push_back({{"kind", group.kind}, {"total", group.total}, {"first", group.first}});
  // Places hold file and tensor names; a file's name need not be UTF-8.
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Faults Faults::from_json(const std::string& json) {
  Faults out;
  try {
    for (const auto& group : nlohmann::json::parse(json))
      out.groups_.push_back({group.at("kind").get<std::string>(), group.at("total").get<std::int64_t>(),
                             group.at("first").get<std::vector<std::string>>()});
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorKind::bug, "another rank's faults cannot be read: {}", e.what());
  }
  return out;
}

}  // namespace kerf::checkpoint
