// What names a machine is the same each time, and tells how many cores there are.
#include "kerf/base/machine.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace kerf
