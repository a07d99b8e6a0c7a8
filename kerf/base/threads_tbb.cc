// Workers on oneTBB: each rank has an arena to itself.
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/base/threads.h"

namespace kerf {

namespace {

using Limit = tbb::global_control;

// oneTBB hands out no more threads than the process has cores unless told otherwise, and prints a warning
// where an arena asks for more. A pool that is meant to be larger says so for as long as it lives; a lower
// limit that the program has set holds all the same.
std::optional<Limit> raised(int threads) {
  if (static_cast<std::size_t>(threads) <= Limit::active_value(Limit::max_allowed_parallelism))
    return std::nullopt;
  return std::optional<Limit>(std::in_place, Limit::max_allowed_parallelism,
                              static_cast<std::size_t>(threads));
}

int allowed(int threads) {
  return std::min(threads, static_cast<int>(Limit::active_value(Limit::max_allowed_parallelism)));
}

// oneTBB reports a thread that it cannot make as a std::runtime_error whose words alone say so.
template <typename Step>
void without_threads_no_memory(Step step) {
  try {
    step();
  } catch (const Error&) {
    throw;
  } catch (const std::runtime_error& e) {
    if (std::string_view(e.what()).find("pthread_create") == std::string_view::npos) throw;
    fail(ErrorKind::memory, "no more threads: {}", e.what());
  }
}

}  // namespace

struct Workers::Pool {
  explicit Pool(int threads) : limit(raised(threads)), arena(allowed(threads)) { arena.initialize(); }
  std::optional<Limit> limit;
  tbb::task_arena arena;
};

Workers::Workers(int threads) {
  check_threads(threads);
  without_threads_no_memory([&] { pool_ = std::make_shared<Pool>(threads); });
}

int Workers::size() const noexcept { return pool_->arena.max_concurrency(); }

void Workers::for_each(std::size_t tasks, FunctionRef<void(std::size_t, int)> task) const {
  if (tasks == 0) return;
  if (size() == 1 || tasks == 1) {
    const FpGuard guard;
    for (std::size_t i = 0; i < tasks; ++i) task(i, 0);
    return;
  }
  without_threads_no_memory([&] {
    pool_->arena.execute([&] {
      tbb::parallel_for(
          std::size_t{0}, tasks,
          [&](std::size_t i) {
            const FpGuard guard;
            task(i, tbb::this_task_arena::current_thread_index());
          },
          tbb::simple_partitioner{});
    });
  });
}

}  // namespace kerf
