// The fuzzing targets on the seeds, in every build: what was once found stays found.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/targets.h"
#include "tests/support/paths.h"

namespace kerf::fuzz {
namespace {

// A target that lets out what it should not ends the process.
TEST(Seeds, AreReadOrRefusedAndSomeReadWhole) {
  const std::filesystem::path seeds = kerf::test::fuzz_seeds_folder;
  for (const Target& target : targets) {
    int count = 0;
    int whole = 0;
    for (const auto& item : std::filesystem::directory_iterator(seeds / target.name)) {
      std::ifstream file(item.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
      SCOPED_TRACE(item.path().string());
      whole += target.run({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}) ? 1 : 0;
      ++count;
    }
    EXPECT_GE(count, 4) << target.name;
    // Seeds of another format than today's would keep the fuzzer at the door.
    EXPECT_GE(whole, 1) << target.name;
  }
}

}  // namespace
}  // namespace kerf::fuzz
