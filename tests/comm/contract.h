// What every group promises, as checks that run on any of them: the ranks of one group call a check together.
#pragma once

#include <span>
#include <string_view>

#include "kerf/comm/group.h"

namespace kerf::test {

struct Contract {
  const char* name;
  void (*check)(comm::Group& group);  // fails as a test does
};

std::span<const Contract> contracts();

}  // namespace kerf::test
