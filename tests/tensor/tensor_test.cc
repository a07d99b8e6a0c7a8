// Shapes, views, strided blocks and counted memory.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/tensor/storage.h"
#include "kerf/tensor/view.h"

namespace kerf::tensor {
namespace {

TEST(Dtype, NamesAndSizesComeInPairs) {
  for (int d = 0; d <= static_cast<int>(Dtype::c64); ++d) {
    const auto dtype = static_cast<Dtype>(d);
    EXPECT_EQ(dtype_named(name(dtype)), dtype);
    EXPECT_GE(bits(dtype), 4);
  }
  EXPECT_EQ(bits(Dtype::f8_e4m3), 8);
  EXPECT_EQ(dtype_named("F9"), std::nullopt);
}

TEST(Shape, CountsItsElementsOrSaysWhyNot) {
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ((Shape{4, 0, 3}).elements(), 0);
  EXPECT_EQ((Shape{4, 5, 3}).elements(), 60);
  EXPECT_EQ((Shape{4, 5}).text(), "[4, 5]");
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW((void)(Shape{huge, 2}).elements(), Error);
  EXPECT_THROW((void)(Shape{-1, 2}).elements(), Error);
  EXPECT_THROW((void)(Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), Error);
  EXPECT_EQ(bytes_of(Dtype::f4, {3}), 2);
  EXPECT_EQ(bytes_of(Dtype::f6_e2m3, {4, 3}), 9);
  EXPECT_EQ(bytes_of(Dtype::f6_e3m2, {1}), 1);
  EXPECT_EQ(bytes_of(Dtype::f8_e8m0, {5}), 5);
  EXPECT_EQ(bytes_of(Dtype::c64, {5}), 40);
  EXPECT_EQ(bytes_of(Dtype::f32, {3, 2}), 24);
  EXPECT_THROW((void)bytes_of(Dtype::f64, {std::int64_t{1} << 61}), Error);
}

TEST(StridedBytes, PackTakesEveryRunInOrder) {
  std::vector<std::uint8_t> from(1000);
  std::iota(from.begin(), from.end(), std::uint8_t{0});
  // 3 planes 300 apart, 4 runs 50 apart, 7 bytes each, from byte 11.
  const StridedBytes block{reinterpret_cast<const std::byte*>(from.data()) + 11, 3, 300, 4, 50, 7};
  std::vector<std::uint8_t> got(static_cast<std::size_t>(block.packed_bytes()));
  pack(block, reinterpret_cast<std::byte*>(got.data()));
  std::vector<std::uint8_t> want;
  for (std::size_t p = 0; p < 3; ++p)
    for (std::size_t r = 0; r < 4; ++r)
      for (std::size_t b = 0; b < 7; ++b) want.push_back(from[11 + 300 * p + 50 * r + b]);
  EXPECT_EQ(got, want);
}

TEST(HostMemory, CountsWhatIsInUseAndItsPeak) {
  HostMemory memory;
  {
    const Tensor small(memory, Dtype::u8, {100});
    EXPECT_EQ(memory.current(), 100);
    {
      const Tensor large(memory, Dtype::f32, {1 << 20});
      EXPECT_EQ(memory.current(), 100 + (4 << 20));
      std::memset(large.bytes().data(), 1, large.bytes().size());
    }
    EXPECT_EQ(memory.current(), 100);
    EXPECT_EQ(memory.peak(), 100 + (4 << 20));
    memory.reset_peak();
    EXPECT_EQ(memory.peak(), 100);
  }
  EXPECT_EQ(memory.current(), 0);
}

// On a huge page's border, whatever the size, and every byte is there.
TEST(HostMemory, LargeBlocksBeginOnAHugePage) {
  HostMemory memory;
  for (const std::int64_t bytes : {std::int64_t{1} << 21, (std::int64_t{1} << 21) + 1,
                                   (std::int64_t{5} << 20) + 4096, std::int64_t{9'000'001}}) {
    const Tensor first(memory, Dtype::u8, {bytes});
    const Tensor second(memory, Dtype::u8, {bytes});
    for (const Tensor* t : {&first, &second}) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t->bytes().data()) % (1U << 21), 0U) << bytes;
      std::memset(t->bytes().data(), 1, t->bytes().size());
    }
    EXPECT_EQ(memory.current(), 2 * bytes);
  }
}

TEST(HostMemory, SaysWhenThereIsNone) {
  HostMemory memory;
  try {
    (void)memory.allocate(std::size_t{1} << 60);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::memory);
    EXPECT_NE(std::string(e.what()).find("1152921504606846976"), std::string::npos) << e.what();
  }
  EXPECT_EQ(memory.current(), 0);
}

TEST(Tensor, MovesAndReleasesOnce) {
  HostMemory memory;
  Tensor a(memory, Dtype::i32, {5});
  a.as<std::int32_t>()[4] = 42;
  Tensor b = std::move(a);
  EXPECT_EQ(b.as<std::int32_t>()[4], 42);
  EXPECT_EQ(b.shape(), (Shape{5}));
  b = Tensor(memory, Dtype::u8, {7});
  EXPECT_EQ(memory.current(), 7);
  b = Tensor();
  EXPECT_EQ(memory.current(), 0);
}

}  // namespace
}  // namespace kerf::tensor
