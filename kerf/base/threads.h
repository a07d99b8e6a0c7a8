// The worker threads of one rank. They are passed to whoever needs them and never found: no global pool.
#pragma once

#include <cstddef>
#include <memory>

#include "kerf/base/function_ref.h"

namespace kerf {

// A handle to a pool of `size()` threads (the caller's thread is one of them). Copies share the pool.
class Workers {
 public:
  // threads >= 1, otherwise Error{usage}.
  explicit Workers(int threads);

  [[nodiscard]] int size() const noexcept;

  // Runs task(i, worker) for every i in [0, tasks), worker in [0, size()), in any order, each under an
  // FpGuard, and returns when all have run. The first exception is thrown again here. Two calls must not
  // overlap on one pool.
  void for_each(std::size_t tasks, FunctionRef<void(std::size_t task, int worker)> task) const;

 private:
  struct Pool;
  std::shared_ptr<Pool> pool_;
};

// Cores that this process may run on (its affinity mask), at least 1.
int available_cores();

// Threads for each of `ranks` ranks that share this process: cores / ranks, at least 1. `threads` 0: all
// cores.
int threads_per_rank(int threads, int ranks);

}  // namespace kerf
