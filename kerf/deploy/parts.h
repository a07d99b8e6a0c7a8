// The parts that a build can lack, in one table, each with the reason where it is absent: what `kerf env`
// shows, what an option that asks for one is answered, and what a deployment's check says are the same words.
#pragma once

#include <string_view>
#include <vector>

#include "kerf/base/error.h"

#pragma GCC visibility push(default)
namespace kerf::deploy {

// A part that may be absent.
struct Part {
  std::string_view name;
  std::string_view what;  // "device" or "group"
  bool built;             // this build has it
  Verdict (*absent)();    // nothing: it can be had here. Asks the machine where it is built
};
// All of them.
std::vector<Part> optional_parts();

// Nothing where the device ("cpu", "cuda") or group ("local", "mpi", "nccl") can be had; otherwise the part's
// own reason why not, and what there is instead; kind usage for a name that nothing has.
Verdict lacking(std::string_view what, std::string_view name);

}  // namespace kerf::deploy
#pragma GCC visibility pop
