// SwiGLU's parameters of all experts of a row of ranks: what sliced experts are bound with.
#pragma once

#include <span>
#include <vector>

#include "kerf/comm/agree.h"
#include "kerf/comm/group.h"
#include "kerf/op/op.h"

namespace kerf::decode::internal {

// The gated parameters of a row's experts, in global order. Which of them there are is the same on every
// rank.
class RowGated {
 public:
  RowGated() = default;
  // Collective over the row.
  RowGated(const op::GatedParameters& mine, comm::Group& row)
      : alpha_(gather(mine.alpha, row)),
        beta_(gather(mine.beta, row)),
        limit_gate_(gather(mine.limit_gate, row)),
        limit_up_(gather(mine.limit_up, row)) {}
  // Views of this object. Binding reads them.
  [[nodiscard]] op::GatedParameters all() const { return {alpha_, beta_, limit_gate_, limit_up_}; }

 private:
  static std::vector<float> gather(std::span<const float> mine, comm::Group& group) {
    return mine.empty() ? std::vector<float>() : comm::gathered(group, mine, "gated parameters");
  }
  std::vector<float> alpha_, beta_, limit_gate_, limit_up_;
};

}  // namespace kerf::decode::internal
