#include "kerf/base/json.h"

#include <limits>
#include <span>
#include <system_error>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/checkpoint/atomic_file.h"
#include "kerf/tactics/internal/json.h"

namespace kerf::tactics::internal {

namespace {

// A whole number, low to high: asked before it is converted, since 64 bits without a sign may exceed it.
bool whole(const Parsed& value, std::int64_t low, std::int64_t high) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(high))
    return false;
  return value.get<std::int64_t>() >= low && value.get<std::int64_t>() <= high;
}

}  // namespace

Json json_of(const layout::ExpertsShape& s) {
  return {{"experts", s.experts}, {"hidden", s.hidden}, {"intermediate", s.intermediate}};
}

Json json_of(const Setting& s) {
  Json json = {{"package", s.package}, {"device", s.device}};
  json.update(json_of(s.shape));
  json["num_experts"] = s.num_experts;
  json["top_k"] = s.top_k;
  return json;
}

Json json_of(op::Tactic tactic) { return Json::array({tactic.tile, tactic.config}); }

const Parsed& at(const Parsed& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end())
    fail(ErrorKind::usage, "no '{}' where one is wanted", key);
  return *found;
}

const Parsed& array_at(const Parsed& object, const char* key) {
  const Parsed& value = at(object, key);
  if (!value.is_array()) fail(ErrorKind::usage, "'{}' is {}, wanted a list", key, got(value));
  return value;
}

std::int64_t number_from(const Parsed& object, const char* key, std::int64_t low) {
  const Parsed& value = at(object, key);
  if (!whole(value, low, std::numeric_limits<std::int64_t>::max()))
    fail(ErrorKind::usage, "'{}' is {}, wanted a whole number from {}", key, got(value), low);
  return value.get<std::int64_t>();
}

std::string text_from(const Parsed& object, const char* key) {
  const Parsed& value = at(object, key);
  if (!value.is_string()) fail(ErrorKind::usage, "'{}' is {}, wanted a text", key, got(value));
  return value.get<std::string>();
}

layout::ExpertsShape shape_from(const Parsed& json) {
  return {number_from(json, "experts", 1), number_from(json, "hidden", 1),
          number_from(json, "intermediate", 1)};
}

Setting setting_from(const Parsed& json) {
  return {text_from(json, "package"), text_from(json, "device"), shape_from(json),
          number_from(json, "num_experts", 1), number_from(json, "top_k", 1)};
}

op::Tactic tactic_from(const Parsed& json) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (!json.is_array() || json.size() != 2 || !whole(json[0], 1, most) || !whole(json[1], -1, most))
    fail(ErrorKind::usage, "{} is no tactic, wanted [tile, config]", got(json));
  return {json[0].get<int>(), json[1].get<int>()};
}

op::Arithmetic arithmetic_from(const Parsed& json) {
  for (const op::Arithmetic a : {op::Arithmetic::w4a4, op::Arithmetic::w4a16, op::Arithmetic::bf16})
    if (json.is_string() && json.get<std::string>() == op::name(a)) return a;
  fail(ErrorKind::usage, "'arithmetic' is {}, wanted w4a4, w4a16 or bf16", got(json));
}

bool absent(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found;
}

std::string read_text(const std::filesystem::path& path) {
  constexpr std::int64_t most_bytes = std::int64_t{16} << 20;
  std::string text;
  const Verdict v = attempt([&] { text = kerf::read_text(path, most_bytes); });
  // Not a checkpoint's: the file is an option's.
  if (v) fail(v->kind == ErrorKind::checkpoint ? ErrorKind::usage : v->kind, "{}", v->text);
  return text;
}

Parsed parse(const std::string& text, const std::string& file, const char* format) {
  Parsed json = parse_json(text, file, ErrorKind::usage);
  in_context(file, [&] {
    if (const Parsed& found = at(json, "format"); found != Parsed(format))
      fail(ErrorKind::usage, "'format' is {}, wanted \"{}\"", got(found), format);
  });
  return json;
}

void check_version(const Parsed& json) {
  if (const std::int64_t version = number_from(json, "version", 1); version != 1)
    fail(ErrorKind::usage, "version {}, wanted 1", version);
}

void in_context(const std::string& where, const std::function<void()>& step) {
  if (const Verdict v = attempt(step)) fail(v->kind, "{}: {}", where, v->text);
}

void write_file(const std::filesystem::path& path, const Json& json) {
  checkpoint::AtomicFile file(path);
  const std::string text = json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  file.append(std::as_bytes(std::span(text)));
  file.finish();
}

}  // namespace kerf::tactics::internal
