// What configuration files say about quantisation, in the three forms that are in use: ModelOpt's own file
// (hf_quant_config.json), ModelOpt's part of config.json, and compressed-tensors' config_groups.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/checkpoint/config.h"
#include "kerf/checkpoint/internal/keys.h"
#include "kerf/checkpoint/internal/module_patterns.h"

namespace kerf::checkpoint::internal {

// "NVFP4" and "W4A16_NVFP4" for all that is not excluded, MIXED_PRECISION where `modules` says which module
// has what; empty where nothing is quantised.
struct Quantisation {
  std::string algo;
  std::int64_t group_size = 16;
  std::string excluded_by;  // the key that the next are of
  std::vector<std::string> excluded;
  std::vector<QuantisedModules> modules;
  std::string said_in;  // file and key, for messages
};

inline constexpr std::string_view mixed_precision = "MIXED_PRECISION";

// "NVFP4" and "W4A16_NVFP4".
bool is_nvfp4(std::string_view algo);
// hf_quant_config.json's object `quantization`.
Quantisation read_modelopt(const Keys& keys);
// config.json's quantization_config, of either tool. Nothing quantised where there is none.
Quantisation read_quantisation_config(const Keys& config);
// The same of compressed-tensors.
Quantisation read_compressed_tensors(const Keys& keys);

// The lists of a configuration, ready to be asked many times.
class QuantisedExperts {
 public:
  // Error{unsupported} with file and key for a pattern that cannot be read.
  explicit QuantisedExperts(const ModelConfig& config);

  // The algorithm of the experts of layer `layer`, which are the module `experts`
  // ("model.layers.0.mlp.experts") with the parts `parts` (full names of some modules in it). Empty: not
  // quantised. Error{checkpoint} where the lists give it two, Error{unsupported} for a pattern that cannot be
  // read.
  [[nodiscard]] std::string algo(std::int64_t layer, const std::string& experts,
                                 std::span<const std::string> parts) const;
  // Whether there are rules that give some modules an algorithm, not one for all that is not excluded.
  [[nodiscard]] bool has_rules() const { return has_rules_; }
  // Error{checkpoint} where rules for single modules leave one of `parts` out, all there are of the experts
  // of this layer, or give it another algorithm than `algo`.
  void require_all_parts(std::int64_t layer, const std::string& experts, std::span<const std::string> parts,
                         const std::string& algo) const;
  // Whether they are excluded.
  [[nodiscard]] bool excludes(std::int64_t layer, const std::string& experts,
                              std::span<const std::string> parts) const;
  // Whether a module whose name begins with `prefix` ("model.layers.0.") may be named by the lists; where
  // not, its algorithm is elsewhere().
  [[nodiscard]] bool may_name(std::int64_t layer, std::string_view prefix) const;
  [[nodiscard]] std::string elsewhere() const;
  // Patterns that every layer is compared with.
  [[nodiscard]] std::size_t patterns() const;

 private:
  struct Rule {
    ModulePattern pattern;
    std::string algo;
  };

  [[nodiscard]] std::string algo_of_part(std::int64_t layer, const std::string& part) const;
  [[nodiscard]] std::string said_in() const { return said_in_.empty() ? "the configuration" : said_in_; }

  std::string all_;  // the algorithm of everything, where no rules say more
  std::string said_in_;
  std::vector<ModulePattern> excluded_patterns_;
  std::map<std::int64_t, std::vector<ModulePattern>> excluded_names_;  // by the layer in the name
  std::vector<ModulePattern> excluded_others_;                         // names without one
  bool has_rules_ = false;
  std::vector<Rule> patterns_;
  std::map<std::int64_t, std::vector<Rule>> names_;
  std::vector<Rule> others_;
};

}  // namespace kerf::checkpoint::internal
