// The group over a mesh of connections. For internal use: tcp.h makes it.
#pragma once

#include <memory>
#include <vector>

#include "kerf/comm/group.h"
#include "kerf/comm/tcp/mesh.h"

namespace kerf::comm::tcp {

// Of the ranks `members` of the mesh, this one among them.
std::unique_ptr<Group> make_group(Mesh& mesh, std::vector<int> members);

}  // namespace kerf::comm::tcp
