#include <fstream>
#include <limits>
#include <sstream>
#include <system_error>

#include "kerf/base/format.h"
#include "kerf/checkpoint/atomic_file.h"
#include "kerf/tactics/internal/json.h"

namespace kerf::tactics::internal {

Json json_of(const Setting& s) {
  return {{"package", s.package},
          {"device", s.device},
          {"experts", s.shape.experts},
          {"hidden", s.shape.hidden},
          {"intermediate", s.shape.intermediate},
          {"num_experts", s.num_experts},
          {"top_k", s.top_k}};
}

Json json_of(op::Tactic tactic) { return Json::array({tactic.tile, tactic.config}); }

const Json& at(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end())
    fail(ErrorKind::usage, "no '{}' where one is wanted", key);
  return *found;
}

const Json& array_at(const Json& object, const char* key) {
  const Json& value = at(object, key);
  if (!value.is_array()) fail(ErrorKind::usage, "'{}' is {}, wanted a list", key, value.type_name());
  return value;
}

std::int64_t number_from(const Json& object, const char* key, std::int64_t low) {
  const Json& value = at(object, key);
  if (!value.is_number_integer() || value.get<std::int64_t>() < low)
    fail(ErrorKind::usage, "'{}' is {}, wanted a whole number from {}", key, value.dump(), low);
  return value.get<std::int64_t>();
}

Setting setting_from(const Json& json) {
  const auto text = [&](const char* key) {
    if (!at(json, key).is_string())
      fail(ErrorKind::usage, "'{}' is {}, wanted a text", key, at(json, key).dump());
    return at(json, key).get<std::string>();
  };
  return {
      text("package"),
      text("device"),
      {number_from(json, "experts", 1), number_from(json, "hidden", 1), number_from(json, "intermediate", 1)},
      number_from(json, "num_experts", 1),
      number_from(json, "top_k", 1)};
}

op::Tactic tactic_from(const Json& json) {
  const auto fits = [](const Json& value, int low) {
    return value.is_number_integer() && value.get<std::int64_t>() >= low &&
           value.get<std::int64_t>() <= std::numeric_limits<std::int32_t>::max();
  };
  if (!json.is_array() || json.size() != 2 || !fits(json[0], 1) || !fits(json[1], -1))
    fail(ErrorKind::usage, "{} is no tactic, wanted [tile, config]", json.dump());
  return {json[0].get<int>(), json[1].get<int>()};
}

op::Arithmetic arithmetic_from(const Json& json) {
  for (const op::Arithmetic a : {op::Arithmetic::w4a4, op::Arithmetic::w4a16, op::Arithmetic::bf16})
    if (json.is_string() && json.get<std::string>() == op::name(a)) return a;
  fail(ErrorKind::usage, "'arithmetic' is {}, wanted w4a4, w4a16 or bf16", json.dump());
}

Json parse(const std::string& text, const char* format) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) fail(ErrorKind::usage, "not valid JSON (cut short?)");
  if (!at(json, "format").is_string() || at(json, "format").get<std::string>() != format)
    fail(ErrorKind::usage, "'format' is {}, wanted \"{}\"", at(json, "format").dump(), format);
  if (const std::int64_t version = number_from(json, "version", 1); version != 1)
    fail(ErrorKind::usage, "version {}, wanted 1", version);
  return json;
}

void in_context(const std::string& where, const std::function<void()>& step) {
  if (const Verdict v = attempt(step)) fail(v->kind, "{}: {}", where, v->text);
}

Json read_file(const std::filesystem::path& path, const char* format) {
  constexpr std::uintmax_t most_bytes = std::uintmax_t{16} << 20;
  Json json;
  in_context(path.string(), [&] {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) fail(ErrorKind::usage, "there is no such file");
    if (const auto bytes = std::filesystem::file_size(path, error); error || bytes > most_bytes)
      fail(ErrorKind::usage, "{} bytes, wanted at most {}", bytes, most_bytes);
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file) fail(ErrorKind::usage, "it cannot be read");
    json = parse(text.str(), format);
  });
  return json;
}

void write_file(const std::filesystem::path& path, const Json& json) {
  checkpoint::AtomicFile file(path);
  const std::string text = json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  file.append(std::as_bytes(std::span(text)));
  file.finish();
}

}  // namespace kerf::tactics::internal
