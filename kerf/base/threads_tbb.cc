// Workers on oneTBB: one arena a rank.
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/base/threads.h"

namespace kerf {

struct Workers::Pool {
  // An arena of more threads than the process has workers for would print a warning; it would not get them
  // either.
  explicit Pool(int threads) : size(threads), arena(std::min(threads, most())) { arena.initialize(); }

  static int most() {
    return static_cast<int>(tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism));
  }

  int size;
  tbb::task_arena arena;
};

Workers::Workers(int threads) {
  if (threads < 1) fail(ErrorKind::usage, "got {} worker threads, wanted at least 1", threads);
  pool_ = std::make_shared<Pool>(threads);
}

int Workers::size() const noexcept { return pool_->size; }

void Workers::for_each(std::size_t tasks, FunctionRef<void(std::size_t, int)> task) const {
  if (tasks == 0) return;
  if (pool_->size == 1 || tasks == 1) {
    const FpGuard guard;
    for (std::size_t i = 0; i < tasks; ++i) task(i, 0);
    return;
  }
  pool_->arena.execute([&] {
    tbb::parallel_for(
        std::size_t{0}, tasks,
        [&](std::size_t i) {
          const FpGuard guard;
          task(i, tbb::this_task_arena::current_thread_index());
        },
        tbb::simple_partitioner{});
  });
}

}  // namespace kerf
