// Workers on std::jthread, for ThreadSanitizer builds: oneTBB's distribution package is not instrumented, so
// a correct parallel loop reports races there.
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/base/threads.h"

namespace kerf {

struct Workers::Pool {
  int size;
};

Workers::Workers(int threads) {
  if (threads < 1) fail(ErrorKind::usage, "got {} worker threads, wanted at least 1", threads);
  pool_ = std::make_shared<Pool>(Pool{threads});
}

int Workers::size() const noexcept { return pool_->size; }

void Workers::for_each(std::size_t tasks, FunctionRef<void(std::size_t, int)> task) const {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr first;
  const auto run = [&](int worker) {
    const FpGuard guard;
    try {
      for (std::size_t i = next++; i < tasks; i = next++) task(i, worker);
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (!first) first = std::current_exception();
      next = tasks;
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int w = 1; w < pool_->size && static_cast<std::size_t>(w) < tasks; ++w) threads.emplace_back(run, w);
    run(0);
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace kerf
