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
  std::chrono::milliseconds timeout{60'000};  // how long a collective waits for a rank, at least 1
  // Moves the bytes of all-gathers and all-to-alls, which may then lie in what memory it knows (sums are of
  // the host's). It must outlive run_local().
  const tensor::Copier* copier = &tensor::host_copier();
};

// Runs body(group) on `ranks` threads and waits for all of them. A rank that throws or returns early leaves
// the group, which wakes every waiting rank with GroupFailed{peer}. Throws the root cause as an Error: the
// lowest rank's error that is not itself "another rank left", of the kind that attempt() gives it.
// Error{usage} for ranks < 1 and a timeout below 1 ms, Error{memory} where there is no thread for a rank. The
// group is ordered().
void run_local(int ranks, const LocalOptions& options, const std::function<void(Group&)>& body);

}  // namespace kerf::comm
#pragma GCC visibility pop
