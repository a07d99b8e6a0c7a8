// A group as a grid of ep x tp ranks: rank r stands in row r / tp and column r % tp. A row holds the slices
// of the same experts between its ranks (expert TP); the ranks of a column hold the same slice of different
// experts (EP). One row: expert TP over the whole group.
#pragma once

#include <memory>

#include "kerf/comm/group.h"

#pragma GCC visibility push(default)
namespace kerf::comm {

// The ranks of a group as rows of `tp` and columns of `ep`.
class Grid {
 public:
  // Collective where ep is above 1 (the group is split twice), with the same numbers on all ranks.
  // Error{usage} unless ep * tp = group.size() and both are at least 1; the group's errors. The group must
  // outlive the grid.
  Grid(Group& group, int ep, int tp);

  // This rank's row, of tp ranks: those that a slice's partial sums are added over. Its rank is the slice's
  // number. The group itself where there is one row only.
  [[nodiscard]] Group& row() const { return row_ ? *row_ : group_; }
  // This rank's column, of ep ranks, whose rank is the number of the row; null where there is one row only.
  [[nodiscard]] Group* column() const { return column_.get(); }
  [[nodiscard]] int ep() const { return ep_; }
  [[nodiscard]] int tp() const { return tp_; }

 private:
  Group& group_;
  int ep_;
  int tp_;
  std::unique_ptr<Group> row_, column_;
};

}  // namespace kerf::comm
#pragma GCC visibility pop
