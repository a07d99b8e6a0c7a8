// What a machine has to offer, as the checks need it. Passed to them, so that a deployment can be checked for
// another machine than this one.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace kerf::deploy {

// What this machine has for a rank's experts.
struct Machine {
  std::int64_t memory = 0;  // bytes that can be had: free, or free for the asking
  std::int64_t cores = 1;   // that this process may run on
};

// This one: available_memory() and available_cores().
Machine this_machine();

}  // namespace kerf::deploy
#pragma GCC visibility pop
