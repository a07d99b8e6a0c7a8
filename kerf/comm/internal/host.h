// Which processes of a group are on one host.
#pragma once

#include <string_view>

#include "kerf/comm/group.h"
#include "kerf/comm/program.h"

namespace kerf::comm::internal {

// Collective. `name`: of this host, the same for all of its processes and no other's.
ProgramHost host_of(Group& group, std::string_view name);

}  // namespace kerf::comm::internal
