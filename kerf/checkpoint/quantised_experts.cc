#include "kerf/checkpoint/internal/quantised_experts.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/checkpoint/internal/quantisation.h"

namespace kerf::checkpoint::internal {

namespace {

// Each of them may take 64 KiB, and every module's name is compared with all.
constexpr int kMostExpressions = 500;

constexpr std::array<std::size_t, 3> kAll = {0, 1, 2};  // projections

// A class of modules, as compressed-tensors' targets may name: "Linear".
bool is_class(const std::string& pattern) {
  return !pattern.empty() && pattern.front() >= 'A' && pattern.front() <= 'Z' &&
         pattern.find('.') == std::string::npos;
}

// Whether routed experts may be of a class with this name.
bool is_class_of_experts(const std::string& name) {
  constexpr auto words = std::to_array<std::string_view>({"Linear", "Expert", "MoE", "Moe", "MLP"});
  const auto has = [&](std::string_view word) { return name.find(word) != std::string::npos; };
  return std::any_of(words.begin(), words.end(), has) && !has("Gate") && !has("Router");
}

// Of "PREFIX12.gate_proj" 12, where it begins with `prefix`.
std::optional<std::int64_t> number_after(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  std::int64_t out = 0;
  const char* const begin = name.data() + prefix.size();
  const char* const last = name.data() + name.size();
  const auto [end, error] = std::from_chars(begin, last, out);
  if (error != std::errc() || out < 0 || (end != last && *end != '.')) return std::nullopt;
  return out;
}

// Adds file and key to what asking fails with.
template <typename Ask>
auto told(const std::string& said_in, Ask ask) {
  try {
    return ask();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::unsupported) throw;
    fail(e.kind(), "{}: {}", said_in, e.what());
  }
}

}  // namespace

std::string ExpertModules::name(const std::string& experts, std::int64_t e, std::size_t projection) const {
  if (stacked) return fmt::format("{}.{}", experts, projections[projection]);
  return fmt::format("{}.{}.{}", experts, e, projections[projection]);
}

QuantisedExperts::QuantisedExperts(const ModelConfig& config)
    : said_in_(config.quant_said_in.empty() ? "the configuration" : config.quant_said_in),
      excluded_by_(config.excluded_by),
      experts_(config.experts),
      elsewhere_(config.quantised_modules.empty() ? config.quant_algo : std::string()),
      has_rules_(!config.quantised_modules.empty()) {
  for (const std::string& text : config.excluded_modules) add(text, config.excluded_by, std::nullopt);
  const QuantisedModules* of_class = nullptr;
  for (const QuantisedModules& modules : config.quantised_modules) {
    if (!is_class(modules.pattern)) {
      add(modules.pattern, modules.by, modules.algo);
      continue;
    }
    if (!is_class_of_experts(modules.pattern)) continue;
    if (of_class != nullptr && of_class->algo != modules.algo)
      fail(ErrorKind::checkpoint, "{}: {} names the class {} for {}, but {} the class {} for {}: wanted one",
           said_in_, modules.by, shown(modules.pattern), shown(modules.algo), of_class->by,
           shown(of_class->pattern), shown(of_class->algo));
    of_class = &modules;
    elsewhere_ = modules.algo;
  }
}

void QuantisedExperts::add(const std::string& text, std::string_view key,
                           const std::optional<std::string>& algo) {
  ModulePattern pattern(text, true);
  if (!pattern.readable())
    fail(ErrorKind::unsupported,
         "{}: {} has the pattern '{}', which kerf cannot read: wanted a name, a glob, or after re: an "
         "expression without look-around, back references and large counts",
         said_in_, key, shown(text));
  if (pattern.kind() == ModulePattern::Kind::regex && ++expressions_ > kMostExpressions)
    fail(ErrorKind::unsupported, "{}: {} has more than {} expressions (re:), '{}' among them: wanted fewer",
         said_in_, key, kMostExpressions, shown(text));
  (algo ? rules_ : excluded_).add(std::move(pattern), algo.value_or(""));
}

bool QuantisedExperts::may_name(std::string_view prefix) {
  return told(said_in_,
              [&] { return excluded_.may_name(prefix, effort_) || rules_.may_name(prefix, effort_); });
}

// Names are looked up for every expert that has one. Patterns that tell one expert from another are looked
// for with a few.
bool QuantisedExperts::excludes(std::int64_t layer, const std::string& experts,
                                const ExpertModules& modules) {
  return told(said_in_, [&] {
    if (excluded_.empty()) return false;
    if (excluded_.find(experts, effort_) != nullptr) return true;
    const std::string below = experts + ".";
    std::set<std::int64_t> looked_at;
    excluded_.each_name(below, [&](std::string_view name, const std::string&) {
      if (const auto e = number_after(name, below)) looked_at.insert(*e);
    });
    const std::int64_t count = experts_of(modules);
    std::int64_t unnamed = 0;
    while (looked_at.contains(unnamed)) ++unnamed;
    looked_at.insert({0, unnamed, 1, count / 2, count - 1});
    std::string in;
    std::string out;
    for (const std::int64_t e : looked_at) {
      if (e < 0 || e >= count) continue;
      for (const std::size_t projection : kAll) {
        std::string name = modules.name(experts, e, projection);
        std::string& first = excluded_.find(name, effort_) != nullptr ? out : in;
        if (first.empty()) first = std::move(name);
      }
    }
    if (!in.empty() && !out.empty())
      fail(ErrorKind::checkpoint,
           "{}: layer {}: {} leaves out {} but not {}: wanted all of its experts or none", said_in_, layer,
           excluded_by_, shown(out), shown(in));
    return in.empty();
  });
}

std::string QuantisedExperts::algo(std::int64_t layer, const std::string& experts,
                                   const ExpertModules& modules) {
  if (excludes(layer, experts, modules)) return {};
  if (!has_rules_) return elsewhere_;
  std::set<std::string> found;
  told(said_in_, [&] {
    rules_.collect(experts, found, effort_);
    for (const std::size_t projection : kAll)
      rules_.collect(modules.name(experts, 0, projection), found, effort_);
  });
  rules_.each_name(experts + ".", [&](std::string_view, const std::string& says) { found.insert(says); });
  if (found.size() > 1)
    fail(ErrorKind::checkpoint, "{}: layer {}: quantises its experts in {} ways ({}), wanted one", said_in_,
         layer, found.size(), fmt::join(found, ", "));
  return found.empty() ? elsewhere_ : *found.begin();
}

bool QuantisedExperts::names_parts(const std::string& experts, const ExpertModules& modules) {
  return told(said_in_, [&] {
    if (rules_.find(experts, effort_) != nullptr) return false;
    return std::any_of(kAll.begin(), kAll.end(), [&](std::size_t projection) {
      return rules_.find(modules.name(experts, 0, projection), effort_) != nullptr;
    });
  });
}

const std::string& QuantisedExperts::algo_of_part(const std::string& part) {
  const std::string* found = told(said_in_, [&] { return rules_.find(part, effort_); });
  return found == nullptr ? elsewhere_ : *found;
}

void QuantisedExperts::require_all_parts(std::int64_t layer, const std::string& experts,
                                         const ExpertModules& modules, const std::string& algo) {
  if (!has_rules_ || algo.empty() || algo_of_part(experts) == algo) return;
  for (std::int64_t e = 0; e < experts_of(modules); ++e)
    for (const std::size_t projection : kAll) {
      const std::string part = modules.name(experts, e, projection);
      if (const std::string& other = algo_of_part(part); other != algo)
        fail(ErrorKind::checkpoint,
             "{}: layer {}: {} is {}, but other modules of its experts are {}: wanted one for all", said_in_,
             layer, part, other.empty() ? "not quantised" : other, algo);
    }
}

}  // namespace kerf::checkpoint::internal
