// A checkpoint that one rank reads for a whole group: the others open it from what that rank sends of its
// configs and headers, and are sent the bytes of their experts, a bounded window at a time. They need no
// file.
#pragma once

#include <functional>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/comm/group.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// Collective: the checkpoint as this rank is to use it, in build() and all above it. `open` is called on rank
// `root` alone. The group must outlive the result. Memory beside what a rank that reads files needs: on the
// root one window for all (32 MiB), elsewhere one window (64 MiB, or one expert where that is more) and the
// scales. Errors, the same on every rank: those of `open`, led by the root's number; usage for a root outside
// the group; unsupported for an export, whose ranks have a file each.
checkpoint::Checkpoint fed_from(comm::Group& group, int root,
                                const std::function<checkpoint::Checkpoint()>& open);

}  // namespace kerf::decode
#pragma GCC visibility pop
