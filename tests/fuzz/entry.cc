// libFuzzer's entry into the target that the build names. Compiled once a target.
#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kerf::fuzz::KERF_FUZZ_TARGET({data, size});
  return 0;
}
