// Which algorithm a configuration gives to the experts of a layer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kerf/checkpoint/config.h"
#include "kerf/checkpoint/internal/module_rules.h"

namespace kerf::checkpoint::internal {

// The lists of a configuration, ready to be asked many times. Asking takes from an effort that all questions
// share: Error{unsupported}, with file and key, where they ask for too much.
class QuantisedExperts {
 public:
  // Error{unsupported} with file and key for a pattern that cannot be read, or more of them than 500.
  explicit QuantisedExperts(const ModelConfig& config);

  // The algorithm of the experts of layer `layer`, which are the module `experts`
  // ("model.layers.0.mlp.experts") with the parts `parts` (full names of some modules in it). Empty: not
  // quantised. Error{checkpoint} where the lists give it two, or leave out some of the experts.
  [[nodiscard]] std::string algo(std::int64_t layer, const std::string& experts,
                                 std::span<const std::string> parts);
  // Whether there are rules that give some modules an algorithm, not one for all that is not excluded.
  [[nodiscard]] bool has_rules() const { return has_rules_; }
  // Error{checkpoint} where rules for single modules leave one of `parts` out, all there are of the experts
  // of this layer, or give it another algorithm than `algo`.
  void require_all_parts(std::int64_t layer, const std::string& experts, std::span<const std::string> parts,
                         const std::string& algo);
  // Whether they are excluded.
  [[nodiscard]] bool excludes(std::int64_t layer, const std::string& experts,
                              std::span<const std::string> parts);
  // Whether a module whose name begins with `prefix` ("model.layers.0.") may be named by the lists; where
  // not, its algorithm is elsewhere().
  [[nodiscard]] bool may_name(std::string_view prefix) const;
  [[nodiscard]] const std::string& elsewhere() const { return elsewhere_; }

 private:
  [[nodiscard]] const std::string& algo_of_part(const std::string& part);
  void refuse_some_experts(std::int64_t layer, const std::string& experts,
                           std::span<const std::string> parts);
  // Adds the rule, an exclusion where `algo` is absent.
  void add(const std::string& text, std::string_view key, const std::optional<std::string>& algo);

  std::string said_in_;
  std::string excluded_by_;
  std::int64_t experts_;   // E
  std::string elsewhere_;  // the algorithm of what no rule names
  bool has_rules_;
  int expressions_ = 0;
  ModuleRules excluded_;
  ModuleRules rules_;
  Effort effort_;
};

}  // namespace kerf::checkpoint::internal
