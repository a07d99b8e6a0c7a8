// The keys of one configuration file, as their readers want them: typed, bounded, with errors that name file,
// key, got and wanted. For sources only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/base/json.h"

namespace kerf::checkpoint::internal {

using KeyNames = std::span<const std::string_view>;

constexpr std::int64_t most_config_bytes = 8'000'000;      // of a configuration file
constexpr std::int64_t most_size = std::int64_t{1} << 20;  // so that E * H * I fits an int64

// A model with several parts keeps those of its text part under text_config, llm_config, language_config, or
// text_config of thinker_config; the innermost come first. null counts as absent. Refers to the object that
// it is made from.
class Keys {
 public:
  // Error{unsupported} where two of those parts stand side by side.
  Keys(std::string file, const nlohmann::json& top);

  [[nodiscard]] const std::string& file() const { return file_; }
  // An object and how it is reached: "thinker_config.text_config.", "" for the file's own.
  struct Part {
    std::string path;
    const nlohmann::json* object;
  };
  // The text part's where there is one, what it stands in, then the file's own.
  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }
  [[nodiscard]] std::vector<const nlohmann::json*> objects() const;
  [[nodiscard]] const nlohmann::json* find(std::string_view key) const;
  // Whether the file has the key, null included.
  [[nodiscard]] bool mentions(std::string_view key) const;
  // Error{checkpoint} where one of these keys stands in the text part and beside it with different values.
  void same_in_all(std::span<const std::string_view> names) const;
  [[noreturn]] void wrong(std::string_view key, const nlohmann::json& value, std::string_view wanted) const;

  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key, std::int64_t least) const;
  // An integer under any of these names; where several are given they must agree.
  [[nodiscard]] std::optional<std::int64_t> any_integer(KeyNames names, std::int64_t least) const;
  // The same, at least 1, where an array of one for each of `layers` layers (or up to `most`) serves as well:
  // Error{unsupported} where those differ.
  [[nodiscard]] std::optional<std::int64_t> same_in_layers(KeyNames names, std::int64_t layers,
                                                           std::int64_t most) const;
  // A number that f32 holds as a finite one. `positive`: above 0 there, too; otherwise 0 serves.
  [[nodiscard]] std::optional<double> number(std::string_view key, bool positive) const;
  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const;
  [[nodiscard]] std::optional<std::string> string(std::string_view key) const;
  // A boolean or a string under any of these names; where several are given they must agree.
  [[nodiscard]] std::optional<bool> any_boolean(KeyNames names) const;
  [[nodiscard]] std::optional<std::string> any_string(KeyNames names) const;
  // The first of these keys that is there, "is", and its value: "scoring_func is \"sigmoid\"". For messages.
  [[nodiscard]] std::string said(KeyNames names) const;
  [[nodiscard]] std::string said(std::string_view key) const { return said(KeyNames(&key, 1)); }
  [[nodiscard]] std::vector<std::string> strings(std::string_view key) const;
  // Error{checkpoint}: none of them is there.
  [[noreturn]] void none_of(KeyNames names) const;

 private:
  std::string file_;
  std::vector<Part> parts_;
};

}  // namespace kerf::checkpoint::internal
