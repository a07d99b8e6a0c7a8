#include "kerf/deploy/machine.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "kerf/base/threads.h"

namespace kerf::deploy {

namespace {

constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

// The number that follows `key` in a file of words and numbers; `otherwise` where there is none.
std::int64_t number_after(const char* file, const std::string& key, std::int64_t otherwise) {
  std::ifstream in(file);
  std::int64_t value = 0;
  for (std::string word; in >> word;)
    if (word == key && in >> value) return value;
  return otherwise;
}

// A cgroup's file holds one number, or "max".
std::int64_t number_in(const char* file, std::int64_t otherwise) {
  std::ifstream in(file);
  std::int64_t value = 0;
  return in >> value ? value : otherwise;
}

}  // namespace

Machine this_machine() {
  const std::int64_t available = number_after("/proc/meminfo", "MemAvailable:", 0) * 1024;
  const std::int64_t limit = number_in("/sys/fs/cgroup/memory.max", unlimited);
  const std::int64_t used = number_in("/sys/fs/cgroup/memory.current", 0);
  return {std::max<std::int64_t>(0, std::min(available, limit == unlimited ? limit : limit - used)),
          available_cores()};
}

}  // namespace kerf::deploy
