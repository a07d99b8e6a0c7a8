// Memory, streams, events and graphs, on a device.
#include <gmock/gmock.h>

#include "tests/support/gpu.h"

namespace kerf::cuda {
namespace {

using Device = test::OnGpu;
using test::OnDevice;
using testing::Each;
using testing::HasSubstr;

TEST_F(Device, FactsAreOfAHopper) {
  const DeviceFacts f = facts();
  EXPECT_EQ(f.major, 9);
  EXPECT_GT(f.multiprocessors, 0);
  EXPECT_GT(f.free, 0);
  EXPECT_GE(f.memory, f.free);
}

TEST_F(Device, CountsItsMemoryAndRefusesMoreThanThereIs) {
  DeviceMemory memory;
  {
    const tensor::Tensor t(memory, tensor::Dtype::u8, {1 << 20});
    EXPECT_TRUE(on_device(t.bytes().data()));
    EXPECT_EQ(memory.current(), 1 << 20);
  }
  EXPECT_EQ(memory.current(), 0);
  EXPECT_EQ(memory.peak(), 1 << 20);
  try {
    (void)memory.allocate(std::size_t{1} << 50);
    FAIL() << "a PiB of device memory";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::memory);
    EXPECT_THAT(e.what(), HasSubstr("free"));
  }
  const int local = 0;
  EXPECT_FALSE(on_device(&local));
}

TEST_F(Device, AReplayedGraphDoesTheCapturedWorkOnWhatIsThereThen) {
  const Stream stream;
  const OnDevice<std::uint8_t> from(256, 7);
  const OnDevice<std::uint8_t> to(256, 1);
  const Graph graph =
      Graph::capture(stream.handle(), [&] { copy(to.get(), from.get(), 256, stream.handle()); });
  EXPECT_THAT(to.host(), Each(1));  // captured, not run
  graph.launch(stream.handle());
  stream.synchronize();
  EXPECT_THAT(to.host(), Each(7));
  zero(from.get(), 256, stream.handle());
  graph.launch(stream.handle());
  stream.synchronize();
  EXPECT_THAT(to.host(), Each(0));
}

// Streams do not wait for the default one, on which such a copy is.
TEST_F(Device, ABlockingCopyIsThereForEveryStream) {
  constexpr std::size_t bytes = 600'000;  // several of the driver's pieces
  const Stream stream;
  const OnDevice<std::uint8_t> from(bytes, 0);
  const OnDevice<std::uint8_t> to(bytes, 0);
  for (int i = 1; i <= 100; ++i) {
    const std::vector<std::uint8_t> values(bytes, static_cast<std::uint8_t>(i));
    copy(from.get(), values.data(), bytes);
    copy(to.get(), from.get(), bytes, stream.handle());
    stream.synchronize();
    ASSERT_EQ(to.host(), values) << i;
  }
}

TEST_F(Device, EventsOrderStreamsAndTime) {
  const Stream a;
  const Stream b;
  const Event begin;
  const Event end;
  const OnDevice<std::uint8_t> x(1 << 20, 3);
  const OnDevice<std::uint8_t> y(1 << 20, 0);
  begin.record(a.handle());
  zero(x.get(), 1 << 20, a.handle());
  end.record(a.handle());
  end.make_wait(b.handle());
  copy(y.get(), x.get(), 1 << 20, b.handle());
  b.synchronize();
  EXPECT_THAT(y.host(), Each(0));
  EXPECT_GT(end.us_since(begin), 0);
}

}  // namespace
}  // namespace kerf::cuda
