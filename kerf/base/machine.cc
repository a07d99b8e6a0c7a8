#include "kerf/base/machine.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

#include "kerf/base/format.h"
#include "kerf/base/threads.h"

namespace kerf {

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

std::string machine_name() {
  struct Fact {
    std::string_view name;   // in the file
    std::string_view label;  // here
    std::string value;
  };
  // Of the first processor; they are alike.
  // x86 has the first four, AArch64 the rest.
  std::array<Fact, 8> facts = {{{"model name", "", {}},
                                {"cpu family", ", family ", {}},
                                {"model", ", model ", {}},
                                {"stepping", ", stepping ", {}},
                                {"CPU implementer", ", implementer ", {}},
                                {"CPU part", ", part ", {}},
                                {"CPU variant", ", variant ", {}},
                                {"CPU revision", ", revision ", {}}}};
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || colon + 2 >= line.size()) continue;
    const std::string_view name = std::string_view(line).substr(0, line.find_last_not_of(" \t:", colon) + 1);
    for (Fact& fact : facts)
      if (name == fact.name) fact.value = line.substr(colon + 2);
  }
  if (facts[0].value.empty()) facts[0].value = "unknown CPU";
  std::string text;
  for (const Fact& fact : facts)
    if (!fact.value.empty()) text += fmt::format("{}{}", fact.label, fact.value);
  const int cores = available_cores();
  return text + fmt::format(", {} core{}", cores, cores == 1 ? "" : "s");
}

std::int64_t largest_cache() {
  std::int64_t most = 0;
  // "1024K". The C library may add up what the cores of a socket do not share, and on AArch64 it does not
  // know.
  for (int i = 0; i < 8; ++i) {
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", i));
    std::int64_t kib = 0;
    if (file >> kib) most = std::max(most, 1024 * kib);
  }
  if (most > 0) return most;
  for (const int level : {_SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL4_CACHE_SIZE})
    most = std::max<std::int64_t>(most, ::sysconf(level));
  return most;
}

std::int64_t available_memory() {
  const std::int64_t available = number_after("/proc/meminfo", "MemAvailable:", 0) * 1024;
  const std::int64_t limit = number_in("/sys/fs/cgroup/memory.max", unlimited);
  const std::int64_t used = number_in("/sys/fs/cgroup/memory.current", 0);
  return std::max<std::int64_t>(0, std::min(available, limit == unlimited ? limit : limit - used));
}

}  // namespace kerf
