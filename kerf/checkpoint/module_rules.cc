#include "kerf/checkpoint/internal/module_rules.h"

#include <algorithm>

#include "kerf/base/file.h"
#include "kerf/base/format.h"

namespace kerf::checkpoint::internal {

void ModuleRules::add(ModulePattern pattern, std::string says) {
  if (pattern.kind() == ModulePattern::Kind::name)
    names_.try_emplace(pattern.text(), std::move(says));
  else
    patterns_.push_back({std::move(pattern), std::move(says)});
}

bool ModuleRules::may_name(std::string_view prefix, Effort& effort) const {
  bool named = false;
  each_name(prefix, [&](std::string_view, const std::string&) { named = true; });
  // "model.layers.0." is part of "model.layers.0", "model.layers" and "model".
  return named || any_name(prefix, [](const std::string&) { return true; }) ||
         std::any_of(patterns_.begin(), patterns_.end(), [&](const Rule& rule) {
           spend(ModulePattern::look_cost, rule, effort);
           return rule.pattern.may_cover(prefix);
         });
}

const std::string* ModuleRules::find(std::string_view module, Effort& effort) const {
  const std::string* found = nullptr;
  any_name(module, [&](const std::string& says) {
    found = &says;
    return true;
  });
  return found != nullptr ? found : find_by_pattern(module, effort);
}

const std::string* ModuleRules::find_by_pattern(std::string_view module, Effort& effort) const {
  const auto found = std::find_if(patterns_.begin(), patterns_.end(),
                                  [&](const Rule& rule) { return covers(rule, module, effort); });
  return found == patterns_.end() ? nullptr : &found->says;
}

void ModuleRules::collect(std::string_view module, std::set<std::string>& out, Effort& effort) const {
  any_name(module, [&](const std::string& says) {
    out.insert(says);
    return false;
  });
  for (const Rule& rule : patterns_)
    if (covers(rule, module, effort)) out.insert(rule.says);
}

void ModuleRules::spend(std::int64_t units, const Rule& rule, Effort& effort) const {
  if (!effort.spend(units))
    fail(ErrorKind::unsupported,
         "{} patterns of modules ('{}') for so many layers and experts are more than can be compared in "
         "seconds: wanted fewer, or names",
         patterns_.size(), shown(rule.pattern.text()));
}

bool ModuleRules::covers(const Rule& rule, std::string_view module, Effort& effort) const {
  spend(rule.pattern.cost(module), rule, effort);
  return rule.pattern.covers(module);
}

template <typename See>
bool ModuleRules::any_name(std::string_view module, See see) const {
  if (names_.empty()) return false;
  for (std::string_view name = module; !name.empty();) {
    if (const auto found = names_.find(name); found != names_.end() && see(found->second)) return true;
    const std::size_t dot = name.rfind('.');
    name = name.substr(0, dot == std::string_view::npos ? 0 : dot);
  }
  return false;
}

}  // namespace kerf::checkpoint::internal
