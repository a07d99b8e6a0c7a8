// One object of a JSON configuration, read key by key. Nothing throws: what is wrong is added to a list of
// faults, so that all of them come out at once. A key that was never asked for is one of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/base/json.h"

namespace kerf::deploy::internal {

class Object {
 public:
  // `where`: "engine", "layers[2].kv_cache"; empty for the whole file.
  Object(const nlohmann::json& value, std::string where, std::vector<std::string>& faults)
      : value_(value), where_(std::move(where)), faults_(faults) {}

  // Each takes the value of a key where it is there (null counts as absent) and leaves `to` alone otherwise.
  template <typename To>  // bool or std::optional<bool>
  void boolean(const char* key, To& to) {
    if (const auto* v = take(key, "true or false", [](const auto& j) { return j.is_boolean(); }))
      to = v->template get<bool>();
  }
  template <typename To>
  void string(const char* key, To& to) {
    if (const auto* v = take(key, "a string that is not empty", is_text)) to = v->template get<std::string>();
  }
  template <typename To>
  void integer(const char* key, To& to, std::int64_t least, std::int64_t most) {
    if (const auto* v = take(key, fmt::format("an integer from {} to {}", least, most),
                             [&](const auto& j) { return is_integer(j, least, most); }))
      to = v->template get<std::int64_t>();
  }
  // A number above 0, to `most`.
  void number(const char* key, std::optional<double>& to, double most) {
    if (const auto* v = take(key, fmt::format("a number above 0, at most {}", most), [&](const auto& j) {
          return j.is_number() && j.template get<double>() > 0 && j.template get<double>() <= most;
        }))
      to = v->get<double>();
  }
  void strings(const char* key, std::vector<std::string>& to) {
    if (const auto* v = take(key, "an array of strings that are not empty",
                             [](const auto& j) { return is_list(j, j.size(), is_text); }))
      to = v->get<std::vector<std::string>>();
  }
  void integers(const char* key, std::vector<std::int64_t>& to, std::int64_t least, std::int64_t highest,
                std::size_t most = 1000) {
    const auto fits = [&](const auto& j) { return is_integer(j, least, highest); };
    if (const auto* v =
            take(key, fmt::format("an array of at most {} integers from {} to {}", most, least, highest),
                 [&](const auto& j) { return is_list(j, most, fits); }))
      to = v->get<std::vector<std::int64_t>>();
  }
  template <typename T, std::size_t N>
  void one_of(const char* key, std::optional<T>& to,
              const std::array<std::pair<std::string_view, T>, N>& names) {
    std::string wanted;
    for (const auto& [name, value] : names) wanted += (wanted.empty() ? "" : " or ") + std::string(name);
    const auto known = [&](const nlohmann::json& j) {
      return j.is_string() && std::any_of(names.begin(), names.end(), [&](const auto& n) {
               return n.first == j.template get_ref<const std::string&>();
             });
    };
    if (const auto* v = take(key, wanted, known))
      for (const auto& [name, value] : names)
        if (name == v->template get_ref<const std::string&>()) to = value;
  }
  void object(const char* key, const std::function<void(Object&)>& read) {
    if (const auto* v = take(key, "an object", [](const auto& j) { return j.is_object(); }))
      inside(*v, path(key), read);
  }
  void objects(const char* key, const std::function<void(Object&, std::size_t)>& read) {
    const auto* list = take(key, "an array of objects", [](const auto& j) {
      return is_list(j, j.size(), [](const auto& item) { return item.is_object(); });
    });
    for (std::size_t i = 0; list != nullptr && i < list->size(); ++i)
      inside((*list)[i], fmt::format("{}[{}]", path(key), i), [&](Object& o) { read(o, i); });
  }

  [[nodiscard]] bool has(const char* key) const {
    const auto found = value_.find(key);
    return found != value_.end() && !found->is_null();
  }
  void fault(const std::string& text) { faults_.push_back(where_.empty() ? text : where_ + ": " + text); }

  // Every key must have been asked for by now.
  void finish() {
    for (const auto& item : value_.items())
      if (!known_.contains(item.key()))
        fault(fmt::format("unknown key '{}', wanted one of {}", shown(item.key()), fmt::join(known_, ", ")));
  }

 private:
  static bool is_text(const nlohmann::json& j) {
    return j.is_string() && !j.get_ref<const std::string&>().empty();
  }
  static bool is_integer(const nlohmann::json& j, std::int64_t least, std::int64_t most) {
    if (!j.is_number_integer()) return false;
    if (j.is_number_unsigned() && j.get<std::uint64_t>() > static_cast<std::uint64_t>(most)) return false;
    return j.get<std::int64_t>() >= least && j.get<std::int64_t>() <= most;
  }
  template <typename Fits>
  static bool is_list(const nlohmann::json& j, std::size_t most, const Fits& fits) {
    return j.is_array() && j.size() <= most && std::all_of(j.begin(), j.end(), fits);
  }

  [[nodiscard]] std::string path(const char* key) const {
    return where_.empty() ? std::string(key) : where_ + "." + key;
  }
  void inside(const nlohmann::json& value, std::string where, const std::function<void(Object&)>& read) {
    Object o(value, std::move(where), faults_);
    read(o);
    o.finish();
  }

  template <typename Fits>
  const nlohmann::json* take(const char* key, const std::string& wanted, const Fits& fits) {
    known_.insert(key);
    if (!has(key)) return nullptr;
    const nlohmann::json& value = value_[key];
    if (fits(value)) return &value;
    faults_.push_back(fmt::format("{} is {}, wanted {}", path(key), got(value), wanted));
    return nullptr;
  }

  const nlohmann::json& value_;
  std::string where_;
  std::vector<std::string>& faults_;
  std::set<std::string> known_;
};

}  // namespace kerf::deploy::internal
