#include "kerf/tactics/cache.h"

#include "kerf/base/format.h"
#include "kerf/tactics/internal/json.h"

namespace kerf::tactics {

namespace {
using internal::Json;
constexpr const char* format = "kerf-tuner-cache";
}  // namespace

CacheRead read_cache(const std::filesystem::path& path, const Setting& setting) {
  std::error_code error;
  CacheRead out;
  if (!std::filesystem::exists(path, error) && !error) return out;
  out.refused = attempt([&] {
    const Json json = internal::read_file(path, format);
    internal::in_context(path.string(), [&] {
      if (const Verdict other = foreign(internal::setting_from(json), setting)) {
        out.foreign = true;
        require(other);
      }
      for (const Json& entry : internal::array_at(json, "entries"))
        out.entries.push_back({internal::arithmetic_from(internal::at(entry, "arithmetic")),
                               internal::number_from(entry, "tokens", 1),
                               internal::tactic_from(internal::at(entry, "tactic"))});
    });
  });
  if (out.refused) out.entries.clear();
  return out;
}

void write_cache(const std::filesystem::path& path, const Setting& setting,
                 const std::vector<CacheEntry>& entries) {
  Json json = {{"format", format}, {"version", 1}};
  json.update(internal::json_of(setting));
  json["entries"] = Json::array();
  for (const CacheEntry& e : entries)
    json["entries"].push_back({{"arithmetic", op::name(e.arithmetic)},
                               {"tokens", e.tokens},
                               {"tactic", internal::json_of(e.tactic)}});
  internal::write_file(path, json);
}

}  // namespace kerf::tactics
