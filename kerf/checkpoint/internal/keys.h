// The keys of one configuration file, as their readers want them: typed, bounded, with errors that name file,
// key, got and wanted. For sources only.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/base/json.h"

namespace kerf::checkpoint::internal {

using KeyNames = std::initializer_list<const char*>;

constexpr std::int64_t most_config_bytes = 8'000'000;      // of a configuration file
constexpr std::int64_t most_size = std::int64_t{1} << 20;  // so that E * H * I fits an int64

// A model with several parts keeps those of its text part under text_config; those come first. null counts
// as absent. Refers to the object that it is made from.
class Keys {
 public:
  Keys(std::string file, const nlohmann::json& top);

  [[nodiscard]] const std::string& file() const { return file_; }
  // text_config's keys where there is one, then the file's own.
  [[nodiscard]] std::vector<const nlohmann::json*> objects() const;
  [[nodiscard]] const nlohmann::json* find(const char* key) const;
  // Whether the file has the key, null included.
  [[nodiscard]] bool mentions(const char* key) const;
  // Error{checkpoint} where one of these keys stands below text_config and beside it with different values.
  void same_in_both(KeyNames names) const;
  [[noreturn]] void wrong(const char* key, const nlohmann::json& value, std::string_view wanted) const;

  [[nodiscard]] std::optional<std::int64_t> integer(const char* key, std::int64_t least) const;
  // An integer under any of these names; where several are given they must agree.
  [[nodiscard]] std::optional<std::int64_t> any_integer(KeyNames names, std::int64_t least) const;
  // The same for one that must be there, at least 1.
  [[nodiscard]] std::int64_t size(KeyNames names) const;
  // A number that f32 holds as a finite one. `positive`: above 0 there, too; otherwise 0 serves.
  [[nodiscard]] std::optional<double> number(const char* key, bool positive) const;
  [[nodiscard]] std::optional<bool> boolean(const char* key) const;
  [[nodiscard]] std::optional<std::string> string(const char* key) const;
  // A boolean or a string under any of these names; where several are given they must agree.
  [[nodiscard]] std::optional<bool> any_boolean(KeyNames names) const;
  [[nodiscard]] std::optional<std::string> any_string(KeyNames names) const;
  // The first of these keys that is there, "is", and its value: "scoring_func is \"sigmoid\"". For messages.
  [[nodiscard]] std::string said(KeyNames names) const;
  [[nodiscard]] std::vector<std::string> strings(const char* key) const;

 private:
  std::string file_;
  const nlohmann::json& top_;
  const nlohmann::json* text_ = nullptr;
};

}  // namespace kerf::checkpoint::internal
