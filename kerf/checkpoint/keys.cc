#include "kerf/checkpoint/internal/keys.h"

#include <limits>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"

namespace kerf::checkpoint::internal {

using nlohmann::json;

Keys::Keys(std::string file, const json& top) : file_(std::move(file)), top_(top) {
  if (!top.is_object()) fail(ErrorKind::checkpoint, "{}: got {}, wanted an object", file_, got(top));
  const auto text = top.find("text_config");
  if (text == top.end() || text->is_null()) return;
  if (!text->is_object()) wrong("text_config", *text, "an object");
  text_ = &*text;
}

std::vector<const json*> Keys::objects() const {
  if (text_ == nullptr) return {&top_};
  return {text_, &top_};
}

const json* Keys::find(const char* key) const {
  for (const json* object : {text_, &top_}) {
    if (object == nullptr) continue;
    const auto found = object->find(key);
    if (found != object->end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

bool Keys::mentions(const char* key) const {
  return (text_ != nullptr && text_->contains(key)) || top_.contains(key);
}

void Keys::same_in_both(KeyNames names) const {
  if (text_ == nullptr) return;
  for (const char* name : names) {
    const auto inner = text_->find(name);
    const auto outer = top_.find(name);
    if (inner == text_->end() || outer == top_.end() || inner->is_null() || outer->is_null()) continue;
    if (*inner != *outer)
      fail(ErrorKind::checkpoint, "{}: text_config.{} is {} but {} is {}, wanted the same", file_, name,
           got(*inner), name, got(*outer));
  }
}

std::string Keys::said(KeyNames names) const {
  for (const char* name : names)
    if (const json* value = find(name)) return fmt::format("{} is {}", name, shown(value->dump()));
  return {};
}

void Keys::wrong(const char* key, const json& value, std::string_view wanted) const {
  fail(ErrorKind::checkpoint, "{}: {} is {}, wanted {}", file_, key, got(value), wanted);
}

std::optional<std::int64_t> Keys::integer(const char* key, std::int64_t least) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const bool inside = value->is_number_integer() &&
                      (!value->is_number_unsigned() || value->get<std::uint64_t>() <= most_size) &&
                      value->get<std::int64_t>() >= least && value->get<std::int64_t>() <= most_size;
  if (!inside) wrong(key, *value, fmt::format("an integer from {} to {}", least, most_size));
  return value->get<std::int64_t>();
}

namespace {

// What the names that are there agree on.
template <typename Value, typename Read>
std::optional<Value> agreed(const Keys& keys, KeyNames names, const Read& read) {
  std::optional<Value> out;
  const char* from = nullptr;
  for (const char* name : names) {
    const std::optional<Value> value = read(name);
    if (!value) continue;
    if (out && *out != *value)
      fail(ErrorKind::checkpoint, "{}: {} but {}, wanted the same", keys.file(), keys.said({from}),
           keys.said({name}));
    if (out) continue;
    out = value;
    from = name;
  }
  return out;
}

}  // namespace

std::optional<std::int64_t> Keys::any_integer(KeyNames names, std::int64_t least) const {
  return agreed<std::int64_t>(*this, names, [&](const char* name) { return integer(name, least); });
}

std::optional<bool> Keys::any_boolean(KeyNames names) const {
  return agreed<bool>(*this, names, [&](const char* name) { return boolean(name); });
}

std::optional<std::string> Keys::any_string(KeyNames names) const {
  return agreed<std::string>(*this, names, [&](const char* name) { return string(name); });
}

std::int64_t Keys::size(KeyNames names) const {
  const auto out = any_integer(names, 1);
  if (!out) fail(ErrorKind::checkpoint, "{}: no {}, wanted an integer", file_, fmt::join(names, " or "));
  return *out;
}

std::optional<double> Keys::number(const char* key, bool positive) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) wrong(key, *value, "a number");
  const FpGuard guard;  // with subnormals flushed, a tiny one would look like 0
  const auto number = value->get<double>();
  const bool inside = number >= 0 && number <= double{std::numeric_limits<float>::max()};
  if (!inside || (positive && static_cast<float>(number) == 0))
    wrong(key, *value, positive ? "a finite f32 above 0" : "a finite f32, at least 0");
  return number;
}

std::optional<bool> Keys::boolean(const char* key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) wrong(key, *value, "true or false");
  return value->get<bool>();
}

std::optional<std::string> Keys::string(const char* key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) wrong(key, *value, "a string");
  return value->get<std::string>();
}

std::vector<std::string> Keys::strings(const char* key) const {
  const json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) wrong(key, *value, "an array of strings");
  std::vector<std::string> out;
  for (const json& item : *value) {
    if (!item.is_string()) wrong(key, item, "strings in it");
    out.push_back(item.get<std::string>());
  }
  return out;
}

}  // namespace kerf::checkpoint::internal
