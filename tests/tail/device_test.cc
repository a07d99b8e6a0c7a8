// What a build without the CUDA part answers where a device's tails are asked for.
#include <gtest/gtest.h>

#include "kerf/tail/device_all_reduce.h"

namespace kerf::tail {
namespace {

TEST(DeviceTailsAbsent, AskingGivesTheReason) {
  const Verdict library = cuda::library();
  if (!library || library->text.find("not built") == std::string::npos)
    GTEST_SKIP() << "this build has the CUDA part";
  cuda::PinnedMemory pinned;
  for (const Verdict& v :
       {attempt([] { device_tail({}, nullptr); }), attempt([] { device_sum({}, nullptr); }),
        attempt([] { wait_for_peers(Peers{}, nullptr); }),
        attempt([] { device_all_reduce(DeviceAllReduce{}, nullptr); }),
        attempt([&] { const PeerReport report(pinned); })})
    EXPECT_EQ(v, library);
}

}  // namespace
}  // namespace kerf::tail
