#include "kerf/tactics/cache.h"

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/tactics/internal/json.h"

namespace kerf::tactics {

namespace {

using internal::Json;
using internal::Parsed;
constexpr const char* format = "kerf-tuner-cache";

// The first bytes that write_cache() writes, but for white space: whatever follows them, or does not.
bool begins_as_cache(std::string_view text) {
  const std::string head = fmt::format("{{\"format\":\"{}\"", format);
  std::size_t at = 0;
  for (const char c : text) {
    if (at == head.size()) break;
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t') continue;
    if (c != head[at]) return false;
    ++at;
  }
  return at == head.size();
}

std::string model_text(const CacheSetting& s) {
  return fmt::format("{} experts, top {}", s.num_experts, s.top_k);
}

Json json_of(const CacheSetting& s) {
  return {{"package", s.package},
          {"device", s.device},
          {"num_experts", s.num_experts},
          {"top_k", s.top_k},
          {"workers", s.workers}};
}

CacheSetting setting_from(const Parsed& json) {
  return {internal::text_from(json, "package"), internal::text_from(json, "device"),
          internal::number_from(json, "num_experts", 1), internal::number_from(json, "top_k", 1),
          internal::number_from(json, "workers", 1)};
}

CacheEntry entry_from(const Parsed& json) {
  return {internal::arithmetic_from(internal::at(json, "arithmetic")), internal::shape_from(json),
          internal::number_from(json, "tokens", 1), internal::tactic_from(internal::at(json, "tactic"))};
}

}  // namespace

CacheSetting cache_setting(const op::Backend& backend, std::int64_t num_experts, std::int64_t top_k,
                           std::int64_t workers) {
  return {std::string(backend.package()), backend.device(), num_experts, top_k, workers};
}

Verdict foreign(const CacheSetting& made, const CacheSetting& wanted) {
  if (made.package != wanted.package)
    return because(ErrorKind::unsupported, "measured with kernel package '{}', this is '{}'",
                   shown(made.package), wanted.package);
  if (made.device != wanted.device)
    return because(ErrorKind::unsupported, "measured on device '{}', this is '{}'", shown(made.device),
                   wanted.device);
  if (model_text(made) != model_text(wanted))
    return because(ErrorKind::unsupported, "measured for a model of {}, this has {}", model_text(made),
                   model_text(wanted));
  if (made.workers != wanted.workers)
    return because(ErrorKind::unsupported, "measured with workers a rank: {}, here: {}", made.workers,
                   wanted.workers);
  return std::nullopt;
}

Verdict not_a_cache(const std::filesystem::path& path) {
  if (internal::absent(path)) return std::nullopt;
  Verdict why = attempt([&] {
    const std::string text = internal::read_text(path);
    if (!text.empty() && !begins_as_cache(text)) (void)internal::parse(text, path.string(), format);
  });
  if (why && why->kind == ErrorKind::usage) why->text += "; it is no tuner's cache, so it stays as it is";
  return why;
}

CacheRead read_cache(const std::filesystem::path& path, const CacheSetting& setting) {
  CacheRead out;
  if (internal::absent(path)) return out;
  if ((out.refused = not_a_cache(path))) {
    out.stays = true;
    return out;
  }
  out.refused = attempt([&] {
    const Parsed json = internal::parse(internal::read_text(path), path.string(), format);
    internal::in_context(path.string(), [&] {
      out.stays = true;  // whole, and of another version or setting
      internal::check_version(json);
      out.stays = false;
      const CacheSetting made = setting_from(json);
      if (const Verdict other = foreign(made, setting)) {
        out.stays = true;
        require(other);
      }
      for (const Parsed& entry : internal::array_at(json, "entries"))
        out.entries.push_back(entry_from(entry));
    });
  });
  if (out.refused) out.entries.clear();
  return out;
}

void write_cache(const std::filesystem::path& path, const CacheSetting& setting,
                 const std::vector<CacheEntry>& entries) {
  require(not_a_cache(path));
  Json json = {{"format", format}, {"version", 1}};
  json.update(json_of(setting));
  json["entries"] = Json::array();
  for (const CacheEntry& e : entries) {
    Json entry = {{"arithmetic", op::name(e.arithmetic)}};
    entry.update(internal::json_of(e.shape));
    entry["tokens"] = e.tokens;
    entry["tactic"] = internal::json_of(e.tactic);
    json["entries"].push_back(std::move(entry));
  }
  internal::write_file(path, json);
}

}  // namespace kerf::tactics
