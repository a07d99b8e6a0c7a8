// The worker threads of one rank. They are passed to whoever needs them and never found: no global pool.
#pragma once

#include <cstddef>
#include <memory>

#include "kerf/base/function_ref.h"

#pragma GCC visibility push(default)
namespace kerf {

// Most threads of one pool.
inline constexpr int most_threads = 1024;

// Error{usage} unless 1 <= threads <= most_threads.
void check_threads(int threads);

// A handle to a pool of `size()` threads (the caller's thread is one of them). Copies share the pool.
class Workers {
 public:
  // 1 to most_threads, otherwise Error{usage}. More than the process has cores is possible, and slower.
  // Error{memory} where a thread cannot be made, here or at the first for_each().
  explicit Workers(int threads);

  // Threads that really run: what was asked for, or fewer where the program limits oneTBB.
  [[nodiscard]] int size() const noexcept;

  // Runs task(i, worker) for every i in [0, tasks), worker in [0, size()), in any order, rounding to nearest
  // with subnormals kept whatever the caller's floating point mode is, and returns when all have run. The
  // first exception is thrown again here, once no task runs any more; those that had not begun are left out.
  // Two calls must not overlap on one pool.
  void for_each(std::size_t tasks, FunctionRef<void(std::size_t task, int worker)> task) const;

 private:
  struct Pool;
  std::shared_ptr<Pool> pool_;
};

// Cores that this process may run on (its affinity mask), at least 1.
int available_cores();

// Threads for each of `ranks` ranks that share this process: threads / ranks, at least 1. `threads` 0:
// available_cores().
int threads_per_rank(int threads, int ranks);

}  // namespace kerf
#pragma GCC visibility pop
