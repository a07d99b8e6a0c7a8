// Ranks as threads of one process: the default group, and the reference for every other.
#pragma once

#include <chrono>
#include <functional>

#include "kerf/comm/group.h"
#include "kerf/tensor/view.h"

#pragma GCC visibility push(default)
namespace kerf::comm {

// How local ranks wait and copy.
struct LocalOptions {
  std::chrono::milliseconds timeout{60'000};  // how long a collective waits for a rank
  // Moves the bytes of all-gathers and all-to-alls, which may then lie in what memory it knows (sums are of
  // the host's).
  const tensor::Copier* copier = &tensor::host_copier();
};

// Runs body(group) on `ranks` threads and waits for all of them. A rank that throws or returns early leaves
// the group, which wakes every waiting rank with Error{peer}. Throws the root cause: the lowest rank's error
// that is not itself "another rank left"; Error{usage} for ranks < 1.
void run_local(int ranks, const LocalOptions& options, const std::function<void(Group&)>& body);

}  // namespace kerf::comm
#pragma GCC visibility pop
