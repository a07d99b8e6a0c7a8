// Whether what is planned has room: asked before anything is allocated, and answered with the whole sum.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/checkpoint/checkpoint.h"
#include "kerf/decode/memory_plan.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// Bytes that can be had, and of what: "this machine (within its cgroup)".
struct Room {
  std::int64_t bytes = 0;
  std::string what;
};

// A request for the layers of `from`, on one rank at one token until the rest is filled in. `block`: with
// what stands around their experts, and its errors (checkpoint::MoeLayer::block()). Error{usage} for a layer
// that is not there.
MemoryRequest request_for(const checkpoint::Checkpoint& from, const std::vector<std::int64_t>& layers,
                          bool block);

// Nothing where ranks that share this memory have room for what each takes at most; otherwise memory, with
// every term of the sum, of how many ranks, and what there is. request.part is not used: all ranks' parts are
// counted. `device`: of requests for one. Also nothing where there can be no such decode: unsupported() says
// why.
Verdict no_room(const MemoryRequest& request, const Room& host, const std::optional<Room>& device = {});

}  // namespace kerf::decode
#pragma GCC visibility pop
