// Workers on std::jthread: for builds without oneTBB, and for ThreadSanitizer, to which a correct parallel
// loop of oneTBB's distribution package, which is not instrumented, looks like races.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <iterator>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/base/threads.h"

namespace kerf {

namespace {

// The tasks of one for_each, taken by whoever is free.
struct Job {
  std::size_t tasks;
  FunctionRef<void(std::size_t, int)> task;
  std::atomic<std::size_t> next{0};
  std::mutex mutex{};
  std::exception_ptr first{};

  void run(int worker) {
    const FpGuard guard;
    try {
      for (std::size_t i = next++; i < tasks; i = next++) task(i, worker);
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (!first) first = std::current_exception();
      next = tasks;
    }
  }
};

}  // namespace

// Threads start with the first job that has work for two, and sleep between jobs.
struct Workers::Pool {
  explicit Pool(int threads) : size(threads) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    {
      const std::scoped_lock lock(mutex);
      ending = true;
    }
    begin.notify_all();
  }

  void start() {
    try {
      helpers.reserve(static_cast<std::size_t>(size - 1));
      while (std::ssize(helpers) < size - 1)
        helpers.emplace_back([this, worker = static_cast<int>(helpers.size()) + 1] { help(worker); });
    } catch (const std::system_error& e) {
      fail(ErrorKind::memory, "no more threads: {}", e.what());
    }
  }

  void run(Job& work) {
    {
      const std::scoped_lock lock(mutex);
      job = &work;
      ++round;
      // More threads than tasks: the others sleep on.
      helping = static_cast<int>(std::min(helpers.size(), work.tasks - 1));
      working = helping;
    }
    begin.notify_all();
    work.run(0);
    std::unique_lock lock(mutex);
    end.wait(lock, [this] { return working == 0; });
  }

  void help(int worker) {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      begin.wait(lock, [&] { return ending || round != seen; });
      if (ending) return;
      seen = round;
      if (worker > helping) continue;
      Job& mine = *job;
      lock.unlock();
      mine.run(worker);
      lock.lock();
      if (--working == 0) end.notify_one();
    }
  }

  int size;
  std::mutex mutex;  // of all that follows but the list of threads
  std::condition_variable begin;
  std::condition_variable end;
  Job* job = nullptr;
  std::uint64_t round = 0;
  int helping = 0;  // helpers 1 to this take part in the round
  int working = 0;  // how many of them have not ended
  bool ending = false;
  std::vector<std::jthread> helpers;  // last: they end before what they use
};

Workers::Workers(int threads) {
  check_threads(threads);
  pool_ = std::make_shared<Pool>(threads);
}

int Workers::size() const noexcept { return pool_->size; }

void Workers::for_each(std::size_t tasks, FunctionRef<void(std::size_t, int)> task) const {
  if (tasks == 0) return;
  Job job{.tasks = tasks, .task = task};
  if (size() == 1 || tasks == 1) {
    job.run(0);
  } else {
    pool_->start();
    pool_->run(job);
  }
  if (job.first) std::rethrow_exception(job.first);
}

}  // namespace kerf
