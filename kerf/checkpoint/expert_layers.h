// Which layers of a model have routed experts by its configuration: one answer, whatever keys say so. What
// counts layers before there are tensors goes by it, and tensors are compared with it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace kerf::checkpoint {

// Which layers have routed experts, by the configuration.
struct ExpertLayers {
  std::vector<bool> routed;  // a layer each; empty where the configuration does not say
  std::string said_by;  // for messages: "first_k_dense_replace is 3", "mixtral has experts in every layer"

  // Whether the configuration says it.
  [[nodiscard]] bool told() const { return !routed.empty(); }
  // False only where the configuration says that this layer has none.
  [[nodiscard]] bool may_be_in(std::int64_t layer) const { return !told() || has(layer); }
  // True only where the configuration says that this layer has them.
  [[nodiscard]] bool must_be_in(std::int64_t layer) const { return told() && has(layer); }

 private:
  [[nodiscard]] bool has(std::int64_t layer) const {
    return layer >= 0 && layer < static_cast<std::int64_t>(routed.size()) &&
           routed[static_cast<std::size_t>(layer)];
  }
};

}  // namespace kerf::checkpoint
#pragma GCC visibility pop
