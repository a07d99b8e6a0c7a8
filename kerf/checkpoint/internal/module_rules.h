// Lists of patterns, each with what it says of the modules that it names: found by name, where a pattern is
// one.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/checkpoint/internal/module_patterns.h"

namespace kerf::checkpoint::internal {

// How much comparing a configuration may ask for: a file of some KiB can name many patterns for many layers.
// In units of about a nanosecond.
class Effort {
 public:
  // False once more has been spent than there was.
  [[nodiscard]] bool spend(std::int64_t units) { return (left_ -= units) >= 0; }

 private:
  std::int64_t left_ = 10'000'000'000;
};

class ModuleRules {
 public:
  void add(ModulePattern pattern, std::string says);

  [[nodiscard]] bool empty() const { return names_.empty() && patterns_.empty(); }
  // Those that are not names: every module is compared with them.
  [[nodiscard]] std::size_t patterns() const { return patterns_.size(); }
  // Whether something that begins with `prefix` may be meant, at a glance. Error as find().
  [[nodiscard]] bool may_name(std::string_view prefix, Effort& effort) const;

  // What the rules say that name `module` or what it is part of; of names first, the longest first. Null:
  // none. Error{unsupported} where that is more than `effort` allows.
  [[nodiscard]] const std::string* find(std::string_view module, Effort& effort) const;
  // The same by patterns alone.
  [[nodiscard]] const std::string* find_by_pattern(std::string_view module, Effort& effort) const;
  // Adds what all of them say, and names of parts of `module`.
  void collect(std::string_view module, std::set<std::string>& out, Effort& effort) const;
  // Names that begin with `prefix`, with what is said of them.
  template <typename See>
  void each_name(std::string_view prefix, See see) const {
    for (auto at = names_.lower_bound(prefix); at != names_.end() && at->first.starts_with(prefix); ++at)
      see(std::string_view(at->first), at->second);
  }

 private:
  struct Rule {
    ModulePattern pattern;
    std::string says;
  };
  [[nodiscard]] bool covers(const Rule& rule, std::string_view module, Effort& effort) const;
  void spend(std::int64_t units, const Rule& rule, Effort& effort) const;
  // The names among `module` and what it is part of, the longest first.
  template <typename See>
  bool any_name(std::string_view module, See see) const;

  std::map<std::string, std::string, std::less<>> names_;
  std::vector<Rule> patterns_;
};

}  // namespace kerf::checkpoint::internal
