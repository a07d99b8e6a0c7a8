// Patterns of module names in configuration files: plain names, globs, and regular expressions ("re:...", as
// compressed-tensors writes them: Python's, matched from the start of the name).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace re2 {
class RE2;
}

namespace kerf::checkpoint::internal {

class ModulePattern {
 public:
  enum class Kind : unsigned char { name, glob, regex };

  // What a look at a pattern costs that goes no further, in units of about a nanosecond.
  static constexpr std::int64_t look_cost = 20;

  // `text` as it stands in the file. Globs are for lists that have them (ModelOpt's exclude_modules).
  explicit ModulePattern(std::string text, bool globs);

  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] Kind kind() const { return kind_; }
  // False for a regular expression that cannot be read: one that says what RE2 cannot (look-around, back
  // references), or reads in another way than Python does, or that is longer than 1000 characters or too
  // large for 64 KiB once counts are written out.
  [[nodiscard]] bool readable() const { return kind_ != Kind::regex || compiled_ != nullptr; }
  // Whether something that begins with `prefix` may be meant, at a glance.
  [[nodiscard]] bool may_cover(std::string_view prefix) const;
  // Whether `module` or a module that it is part of is meant. Error{unsupported} that shows the pattern for a
  // regular expression that cannot be read.
  [[nodiscard]] bool covers(std::string_view module) const;
  // What covers(module) costs at worst, in units of about a nanosecond.
  [[nodiscard]] std::int64_t cost(std::string_view module) const;

 private:
  std::string text_;
  Kind kind_ = Kind::name;
  std::size_t literal_ = 0;                   // of a glob: characters before the first that stands for others
  std::shared_ptr<const re2::RE2> compiled_;  // of a regular expression that can be read
};

}  // namespace kerf::checkpoint::internal
