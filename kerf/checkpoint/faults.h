// What is wrong with a checkpoint's values, collected instead of thrown one by one, so that one message can
// say how many and where the first ones are, also when each rank has seen only its own experts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kerf/base/error.h"

#pragma GCC visibility push(default)
namespace kerf::checkpoint {

// Faults of one kind (say "NaN block scale"): how many, and where the first five are in file order, each a
// readable place such as "layer 0, model.layers.0.mlp.experts.2.up_proj.weight_scale, expert 2, row 9, block
// 3, byte 0xFF".
struct FaultGroup {
  std::string kind;
  std::int64_t total = 0;
  std::vector<std::string> first;
};

// Faults by kind, kinds in the order they were first met.
class Faults {
 public:
  static constexpr std::size_t kept = 5;

  // Adds one, as coming after what is here.
  void add(const std::string& kind, std::string place);
  // Adds a group, as coming after what is here: `total` counts, and at most `kept` of its places are taken.
  void add(const FaultGroup& group);
  // Adds another's, as coming after this one's.
  void merge(const Faults& other);
  // Whether there are any, how many of all kinds, and the kinds.
  [[nodiscard]] bool empty() const { return groups_.empty(); }
  [[nodiscard]] std::int64_t total() const;
  [[nodiscard]] const std::vector<FaultGroup>& groups() const { return groups_; }
  // One message: every kind with its total and first places.
  [[nodiscard]] std::string text() const;
  // Nothing where empty, else Reason{checkpoint, text()}.
  [[nodiscard]] Verdict verdict() const;

  // For sending over a group, and back. from_json(): Error{bug} for what is not such a text.
  [[nodiscard]] std::string to_json() const;
  static Faults from_json(const std::string& json);

 private:
  std::vector<FaultGroup> groups_;
};

}  // namespace kerf::checkpoint
#pragma GCC visibility pop
