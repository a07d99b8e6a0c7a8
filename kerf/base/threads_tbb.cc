// Workers on oneTBB: each pool has an arena to itself, for as long as it lives.
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

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

// The arenas that no pool has at present, for the next one of their size. oneTBB frees an arena that has had
// work when a worker thread comes by and finds it empty. Where pools follow each other closely none comes to
// most of them, and they stay: 7 to 18 KiB for each pool of 2 to 8 threads.
class Arenas {
 public:
  using One = std::list<tbb::task_arena>;  // of one

  One take(int size) {
    One out;
    {
      const std::scoped_lock lock(mutex_);
      const auto found =
          std::ranges::find_if(idle_, [&](const auto& arena) { return arena.max_concurrency() == size; });
      if (found != idle_.end()) out.splice(out.end(), idle_, found);
    }
    if (out.empty()) out.emplace_back(size).initialize();
    return out;
  }

  void give_back(One arena) noexcept {
    const std::scoped_lock lock(mutex_);
    idle_.splice(idle_.begin(), arena);
  }

 private:
  std::mutex mutex_;
  One idle_;
};

// Never destroyed: when the process ends oneTBB may have ended before.
Arenas& arenas() {
  static Arenas& all = *new Arenas;
  return all;
}

}  // namespace

struct Workers::Pool {
  explicit Pool(int threads) : limit(raised(threads)), own(arenas().take(allowed(threads))) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() { arenas().give_back(std::move(own)); }
  [[nodiscard]] tbb::task_arena& arena() { return own.front(); }

  std::optional<Limit> limit;
  Arenas::One own;
};

Workers::Workers(int threads) {
  check_threads(threads);
  without_threads_no_memory([&] { pool_ = std::make_shared<Pool>(threads); });
}

int Workers::size() const noexcept { return pool_->arena().max_concurrency(); }

void Workers::for_each(std::size_t tasks, FunctionRef<void(std::size_t, int)> task) const {
  if (tasks == 0) return;
  if (size() == 1 || tasks == 1) {
    const FpGuard guard;
    for (std::size_t i = 0; i < tasks; ++i) task(i, 0);
    return;
  }
  without_threads_no_memory([&] {
    pool_->arena().execute([&] {
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
