// Which algorithm a configuration gives to the experts of a layer.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/checkpoint/config.h"
#include "kerf/checkpoint/internal/module_rules.h"

namespace kerf::checkpoint::internal {

// How a model calls the modules of a layer's experts, below the one of all: gate, up, down; stacked: one of
// gate and up, and one of down, of all experts.
struct ExpertModules {
  bool stacked = false;
  std::array<std::string_view, 3> projections;

  // "model.layers.0.mlp.experts.3.up_proj"
  [[nodiscard]] std::string name(const std::string& experts, std::int64_t e, std::size_t projection) const;
};

// The lists of a configuration, ready to be asked many times. Asking takes from an effort that all questions
// share: Error{unsupported}, with file and key, where they ask for too much.
class QuantisedExperts {
 public:
  // Error{unsupported} with file and key for a pattern that cannot be read, or more of them than 500.
  explicit QuantisedExperts(const ModelConfig& config);

  // The algorithm of the experts of layer `layer`, which are the module `experts`
  // ("model.layers.0.mlp.experts"). Empty: not quantised. Error{checkpoint} where the lists give it two, or
  // leave out a part of them.
  [[nodiscard]] std::string algo(std::int64_t layer, const std::string& experts,
                                 const ExpertModules& modules);
  // Whether there are rules that give some modules an algorithm, not one for all that is not excluded.
  [[nodiscard]] bool has_rules() const { return has_rules_; }
  // Error{checkpoint} where rules for single modules leave out one of the experts' or give it another
  // algorithm than `algo`.
  void require_all_parts(std::int64_t layer, const std::string& experts, const ExpertModules& modules,
                         const std::string& algo);
  // Whether there are such rules.
  [[nodiscard]] bool names_parts(const std::string& experts, const ExpertModules& modules);
  // Whether they are excluded: all of them, or Error{checkpoint} where a part is.
  [[nodiscard]] bool excludes(std::int64_t layer, const std::string& experts, const ExpertModules& modules);
  // Whether a module whose name begins with `prefix` ("model.layers.0.") may be named by the lists; where
  // not, its algorithm is elsewhere().
  [[nodiscard]] bool may_name(std::string_view prefix);
  [[nodiscard]] const std::string& elsewhere() const { return elsewhere_; }

 private:
  [[nodiscard]] const std::string& algo_of_part(const std::string& part);
  [[nodiscard]] std::int64_t experts_of(const ExpertModules& modules) const {
    return modules.stacked ? 1 : experts_;
  }
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

// What the lists say of each layer's experts, 0 to config.layers - 1, without a tensor to tell the names of
// modules: those that the family has, or may have, are tried. Empty: not quantised. Where the configuration
// names no algorithm at all, the lists alone are asked: NVFP4 stands for what is not left out.
std::vector<std::string> algos_of_layers(const ModelConfig& config);

}  // namespace kerf::checkpoint::internal
