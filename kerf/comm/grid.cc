#include "kerf/comm/grid.h"

#include "kerf/base/format.h"

namespace kerf::comm {

Grid::Grid(Group& group, int ep, int tp) : group_(group), ep_(ep), tp_(tp) {
  if (ep < 1 || tp < 1 || ep > group.size() || tp != group.size() / ep || ep * tp != group.size())
    fail(ErrorKind::usage, "{} x {} ranks (EP x TP) of a group of {}", ep, tp, group.size());
  if (ep == 1) return;
  row_ = group.split(group.rank() / tp, "splitting into rows of slices");
  column_ = group.split(group.rank() % tp, "splitting into columns of equal slices");
}

}  // namespace kerf::comm
