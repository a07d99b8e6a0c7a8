#include "kerf/tactics/preferred.h"

#include <algorithm>
#include <utility>

#include "kerf/base/format.h"
#include "kerf/base/json.h"
#include "kerf/checkpoint/atomic_file.h"
#include "kerf/tactics/internal/json.h"
#include "kerf/tactics/internal/measured.h"

namespace kerf::tactics {

namespace {

using internal::Json;
using internal::Parsed;
constexpr const char* format = "kerf-tactics";

PreferredList list_from(const Parsed& json) {
  PreferredList list;
  list.setting = internal::setting_from(json);
  list.arithmetic = internal::arithmetic_from(internal::at(json, "arithmetic"));
  for (const Parsed& tactic : internal::array_at(json, "tactics"))
    list.tactics.push_back(internal::tactic_from(tactic));
  if (list.tactics.empty()) fail(ErrorKind::usage, "a list without tactics");
  for (const Parsed& line : internal::array_at(json, "measured")) {
    MeasuredAt at{internal::number_from(line, "tokens", 1), {}};
    for (const Parsed& us : internal::array_at(line, "us")) {
      if (!us.is_number() || us.get<double>() < 0) fail(ErrorKind::usage, "{} is no time", got(us));
      at.us.push_back(us.get<double>());
    }
    if (at.us.size() != list.tactics.size())
      fail(ErrorKind::usage, "{} times of {} tactics", at.us.size(), list.tactics.size());
    list.measured.push_back(std::move(at));
  }
  return list;
}

std::vector<PreferredList> lists_from(const Parsed& json) {
  std::vector<PreferredList> out;
  internal::check_version(json);
  const Parsed& lists = internal::array_at(json, "lists");
  for (std::size_t i = 0; i < lists.size(); ++i)
    internal::in_context(fmt::format("list {}", i), [&] { out.push_back(list_from(lists.at(i))); });
  return out;
}

Json json_of(const PreferredList& list) {
  Json json = internal::json_of(list.setting);
  json["arithmetic"] = op::name(list.arithmetic);
  json["tactics"] = Json::array();
  for (const op::Tactic t : list.tactics) json["tactics"].push_back(internal::json_of(t));
  json["measured"] = Json::array();
  for (const MeasuredAt& at : list.measured)
    json["measured"].push_back({{"tokens", at.tokens}, {"us", at.us}});
  return json;
}

bool same_place(const PreferredList& a, const PreferredList& b) {
  return a.setting == b.setting && a.arithmetic == b.arithmetic;
}

}  // namespace

const std::vector<PreferredList>& measured_lists() {
  static const std::vector<PreferredList> lists =
      lists_from(internal::parse(std::string(internal::measured_json), "measured.json", format));
  return lists;
}

std::vector<PreferredList> read_lists(const std::filesystem::path& path) {
  const Parsed json = internal::parse(internal::read_text(path), path.string(), format);
  std::vector<PreferredList> lists;
  internal::in_context(path.string(), [&] { lists = lists_from(json); });
  return lists;
}

void check_lists_writable(const std::filesystem::path& path) {
  const checkpoint::AtomicFile opened(path);
  if (!internal::absent(path)) (void)read_lists(path);
}

void write_lists(const std::filesystem::path& path, std::vector<PreferredList> lists) {
  if (!internal::absent(path)) {
    for (PreferredList& old : read_lists(path))
      if (std::ranges::none_of(lists, [&](const PreferredList& l) { return same_place(l, old); }))
        lists.push_back(std::move(old));
  }
  Json json = {{"format", format}, {"version", 1}, {"lists", Json::array()}};
  for (const PreferredList& list : lists) json["lists"].push_back(json_of(list));
  internal::write_file(path, json);
}

const PreferredList* find_list(std::span<const PreferredList> lists, const Setting& wanted,
                               op::Arithmetic arithmetic, std::string* why) {
  const auto matches = [&](const PreferredList& l) {
    return l.setting == wanted && l.arithmetic == arithmetic;
  };
  if (const auto found = std::ranges::find_if(lists, matches); found != lists.end()) return &*found;
  if (why == nullptr) return nullptr;
  // How near a list is: same package, then same device too.
  const auto any = [&](auto same) { return std::ranges::any_of(lists, same); };
  const auto of_package = [&](const PreferredList& l) { return l.setting.package == wanted.package; };
  const auto of_device = [&](const PreferredList& l) {
    return of_package(l) && l.setting.device == wanted.device;
  };
  if (!any(of_package))
    *why = fmt::format("for kernel package '{}'", wanted.package);
  else if (!any(of_device))
    *why = fmt::format("on device '{}'", wanted.device);
  else
    *why = fmt::format("for {}, {}", sizes_text(wanted), op::name(arithmetic));
  return nullptr;
}

}  // namespace kerf::tactics
