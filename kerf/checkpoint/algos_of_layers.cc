// Which layers a configuration quantises, by the names that a model of its family gives to its modules.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/checkpoint/internal/dialect.h"
#include "kerf/checkpoint/internal/quantised_experts.h"

namespace kerf::checkpoint::internal {

namespace {

// Families whose experts lie elsewhere than below mlp.experts, or there and elsewhere.
struct Root {
  std::string_view family;
  std::string_view root;
};
constexpr auto kRoots = std::to_array<Root>({{"mixtral", "block_sparse_moe.experts."},
                                             {"minimax-m2", "block_sparse_moe.experts."},
                                             {"minimax-m3", "block_sparse_moe.experts."},
                                             {"phimoe", "block_sparse_moe.experts."},
                                             {"granite-moe", "block_sparse_moe.experts."},
                                             {"llama-4", "feed_forward.experts."},
                                             {"jamba", "feed_forward.experts."},
                                             {"lfm2-moe", "feed_forward.experts."},
                                             {"nemotron-h", "mixer.experts."}});

constexpr std::array<ExpertModules, 3> kModules = {{{false, {"gate_proj", "up_proj", "down_proj"}},
                                                    {false, {"w1", "w3", "w2"}},
                                                    {true, {"gate_up_proj", "gate_up_proj", "down_proj"}}}};

std::vector<std::string_view> bases_of(const ModelConfig& config) {
  std::vector<std::string_view> out;
  for (const std::string_view base : layer_bases) {
    const bool backbone = base == "backbone.";
    const bool fits = backbone ? config.family == "nemotron-h" : config.text_part || base == "model.";
    if (fits || config.family.empty()) out.push_back(base);
  }
  return out;
}

std::vector<std::string_view> roots_of(const ModelConfig& config) {
  std::vector<std::string_view> out;
  for (const std::string_view root : expert_roots) {
    const bool own = std::any_of(kRoots.begin(), kRoots.end(),
                                 [&](const Root& r) { return r.family == config.family && r.root == root; });
    if (own || config.family.empty() || root == "mlp.experts.") out.push_back(root);
  }
  return out;
}

}  // namespace

std::vector<std::string> algos_of_layers(const ModelConfig& config) {
  ModelConfig asked = config;
  if (asked.quant_algo.empty()) asked.quant_algo = "NVFP4";
  QuantisedExperts quantised(asked);
  const std::vector<std::string_view> bases = bases_of(config);
  const std::vector<std::string_view> roots = roots_of(config);
  const auto algo_of = [&](std::int64_t layer) {
    std::string named = quantised.elsewhere();
    for (const std::string_view base : bases) {
      const std::string prefix = fmt::format("{}layers.{}.", base, layer);
      if (!quantised.may_name(prefix)) continue;
      for (const std::string_view root : roots) {
        const std::string experts = fmt::format("{}{}", prefix, root.substr(0, root.size() - 1));
        for (const ExpertModules& modules : kModules) {
          if (quantised.excludes(layer, experts, modules)) return std::string();
          const std::string algo = quantised.algo(layer, experts, modules);
          if (quantised.names_parts(experts, modules))
            quantised.require_all_parts(layer, experts, modules, algo);
          if (algo != quantised.elsewhere()) named = algo;
        }
      }
    }
    return named;
  };
  std::vector<std::string> out;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) out.push_back(algo_of(layer));
  return out;
}

}  // namespace kerf::checkpoint::internal
