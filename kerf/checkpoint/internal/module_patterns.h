// Patterns of module names in configuration files: plain names, globs, and regular expressions ("re:...", as
// compressed-tensors writes them: Python's, matched from the start of the name).
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kerf::checkpoint::internal {

// A Python regular expression as a POSIX extended one, anchored at its start; nothing where it says something
// that those cannot (look-around, back references, counts above 255) or is longer than 1000 characters.
std::optional<std::string> posix_of(std::string_view python);

class ModulePattern {
 public:
  enum class Kind : unsigned char { name, glob, regex };

  // `text` as it stands in the file. Globs are for lists that have them (ModelOpt's exclude_modules).
  explicit ModulePattern(std::string text, bool globs);

  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] Kind kind() const { return kind_; }
  // False for a regular expression that cannot be read.
  [[nodiscard]] bool readable() const { return kind_ != Kind::regex || compiled_ != nullptr; }
  // Whether something that begins with `prefix` may be meant, at a glance.
  [[nodiscard]] bool may_cover(std::string_view prefix) const;
  // Whether `module` or a module that it is part of is meant. Error{unsupported} that shows the pattern for a
  // regular expression that cannot be read.
  [[nodiscard]] bool covers(std::string_view module) const;

 private:
  struct Compiled;
  std::string text_;
  Kind kind_ = Kind::name;
  std::size_t literal_ = 0;                   // of a glob: characters before the first that stands for others
  std::shared_ptr<const Compiled> compiled_;  // of a regular expression that can be read
};

}  // namespace kerf::checkpoint::internal
