// What names a machine is the same each time, and tells how many cores there are.
#include "kerf/base/machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "kerf/base/threads.h"

namespace kerf {
namespace {

TEST(Machine, IsNamedByProcessorAndCores) {
  const std::string name = machine_name();
  EXPECT_EQ(machine_name(), name);
  EXPECT_EQ(name.find('\n'), std::string::npos);
  EXPECT_NE(name.find(", " + std::to_string(available_cores()) + " core"), std::string::npos) << name;
  EXPECT_GT(name.find(", "), 0U) << "a processor comes first";
}

// The kernel lists the same caches, in KiB.
TEST(Machine, LargestCacheIsTheOneTheKernelLists) {
  std::int64_t most = 0;
  for (int i = 0; i < 8; ++i) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/size");
    std::int64_t kib = 0;
    if (file >> kib) most = std::max(most, kib * 1024);
  }
  if (most == 0) GTEST_SKIP() << "no list of caches here";
  EXPECT_EQ(largest_cache(), most);
}

}  // namespace
}  // namespace kerf
