#include "kerf/checkpoint/internal/keys.h"

#include <algorithm>
#include <array>
#include <limits>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"

namespace kerf::checkpoint::internal {

using nlohmann::json;

namespace {

// Where a model of several parts keeps what concerns its text part.
constexpr auto kTextParts =
    std::to_array<std::string_view>({"text_config", "llm_config", "language_config", "thinker_config"});
constexpr std::size_t kMostParts = 4;  // one in another, the file's own included

}  // namespace

Keys::Keys(std::string file, const json& top) : file_(std::move(file)) {
  if (!top.is_object()) fail(ErrorKind::checkpoint, "{}: got {}, wanted an object", file_, got(top));
  parts_.push_back({"", &top});
  while (parts_.size() < kMostParts) {
    const Part outer = parts_.front();
    std::optional<Part> inner;
    for (const std::string_view name : kTextParts) {
      const auto found = outer.object->find(name);
      if (found == outer.object->end() || found->is_null()) continue;
      if (!found->is_object()) wrong(outer.path + std::string(name), *found, "an object");
      Part part{fmt::format("{}{}.", outer.path, name), &*found};
      if (inner && *inner->object != *part.object)
        fail(ErrorKind::unsupported,
             "{}: {} and {} are both there, kerf reads a model with one part for text", file_,
             inner->path.substr(0, inner->path.size() - 1), part.path.substr(0, part.path.size() - 1));
      if (!inner) inner = std::move(part);
    }
    if (!inner) break;
    parts_.insert(parts_.begin(), std::move(*inner));
  }
}

std::vector<const json*> Keys::objects() const {
  std::vector<const json*> out;
  for (const Part& part : parts_) out.push_back(part.object);
  return out;
}

const json* Keys::find(std::string_view key) const {
  for (const Part& part : parts_) {
    const auto found = part.object->find(key);
    if (found != part.object->end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

bool Keys::mentions(std::string_view key) const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [&](const Part& part) { return part.object->contains(key); });
}

void Keys::same_in_all(KeyNames names) const {
  for (const std::string_view name : names) {
    const json* first = nullptr;
    std::string path;
    for (const Part& part : parts_) {
      const auto found = part.object->find(name);
      if (found == part.object->end() || found->is_null()) continue;
      if (first != nullptr && *first != *found)
        fail(ErrorKind::checkpoint, "{}: {}{} is {} but {}{} is {}, wanted the same", file_, path, name,
             got(*first), part.path, name, got(*found));
      if (first != nullptr) continue;
      first = &*found;
      path = part.path;
    }
  }
}

std::string Keys::said(KeyNames names) const {
  for (const std::string_view name : names)
    if (const json* value = find(name)) return fmt::format("{} is {}", name, shown(json_text(*value)));
  return {};
}

void Keys::wrong(std::string_view key, const json& value, std::string_view wanted) const {
  fail(ErrorKind::checkpoint, "{}: {} is {}, wanted {}", file_, key, got(value), wanted);
}

namespace {

bool is_integer(const json& value, std::int64_t least) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() || value.get<std::uint64_t>() <= most_size) &&
         value.get<std::int64_t>() >= least && value.get<std::int64_t>() <= most_size;
}

}  // namespace

std::optional<std::int64_t> Keys::integer(std::string_view key, std::int64_t least) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!is_integer(*value, least))
    wrong(key, *value, fmt::format("an integer from {} to {}", least, most_size));
  return value->get<std::int64_t>();
}

namespace {

// What the names that are there agree on.
template <typename Value, typename Read>
std::optional<Value> agreed(const Keys& keys, KeyNames names, const Read& read) {
  std::optional<Value> out;
  std::string_view from;
  for (const std::string_view name : names) {
    const std::optional<Value> value = read(name);
    if (!value) continue;
    if (out && *out != *value)
      fail(ErrorKind::checkpoint, "{}: {} but {}, wanted the same", keys.file(), keys.said(from),
           keys.said(name));
    if (out) continue;
    out = value;
    from = name;
  }
  return out;
}

}  // namespace

std::optional<std::int64_t> Keys::any_integer(KeyNames names, std::int64_t least) const {
  return agreed<std::int64_t>(*this, names, [&](std::string_view name) { return integer(name, least); });
}

std::optional<bool> Keys::any_boolean(KeyNames names) const {
  return agreed<bool>(*this, names, [&](std::string_view name) { return boolean(name); });
}

std::optional<std::string> Keys::any_string(KeyNames names) const {
  return agreed<std::string>(*this, names, [&](std::string_view name) { return string(name); });
}

std::optional<std::int64_t> Keys::same_in_layers(KeyNames names, std::int64_t layers,
                                                 std::int64_t most) const {
  return agreed<std::int64_t>(*this, names, [&](std::string_view name) -> std::optional<std::int64_t> {
    const json* value = find(name);
    if (value == nullptr || !value->is_array()) return integer(name, 1);
    const auto entries = static_cast<std::int64_t>(value->size());
    if (entries < layers || entries > most ||
        std::any_of(value->begin(), value->end(), [](const json& entry) { return !is_integer(entry, 1); }))
      wrong(name, *value,
            fmt::format("an integer from 1 to {}, or one for each of {} layers", most_size, layers));
    if (std::any_of(value->begin(), value->end(), [&](const json& entry) { return entry != value->front(); }))
      fail(ErrorKind::unsupported, "{}: {} is {}, kerf implements the same in every layer", file_, name,
           got(*value));
    return value->front().get<std::int64_t>();
  });
}

void Keys::none_of(KeyNames names) const {
  fail(ErrorKind::checkpoint, "{}: no {}, wanted an integer", file_, fmt::join(names, " or "));
}

std::optional<double> Keys::number(std::string_view key, bool positive) const {
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

std::optional<bool> Keys::boolean(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) wrong(key, *value, "true or false");
  return value->get<bool>();
}

std::optional<std::string> Keys::string(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) wrong(key, *value, "a string");
  return value->get<std::string>();
}

std::vector<std::string> Keys::strings(std::string_view key) const {
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
