#include "kerf/base/threads.h"

#include <sched.h>

#include <algorithm>

#include "kerf/base/format.h"

namespace kerf {

int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

void check_threads(int threads) {
  if (threads < 1 || threads > most_threads)
    fail(ErrorKind::usage, "got {} worker threads, wanted 1 to {}", threads, most_threads);
}

int threads_per_rank(int threads, int ranks) {
  const int total = threads > 0 ? threads : available_cores();
  return std::max(1, total / std::max(1, ranks));
}

}  // namespace kerf
