// Datatypes of bytes: what they hold, asked of MPI, for sizes that no int counts too.
#include "kerf/comm/mpi/datatype.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace kerf::comm::mpi {
namespace {

std::int64_t bytes_of(const Datatype& type) {
  MPI_Count bytes = 0;
  check(MPI_Type_size_x(type.get(), &bytes), "MPI_Type_size_x");
  return static_cast<std::int64_t>(bytes) * type.count();
}

// One past the last byte that the type touches.
std::int64_t end_of(const Datatype& type) {
  MPI_Count low = 0;
  MPI_Count extent = 0;
  check(MPI_Type_get_true_extent_x(type.get(), &low, &extent), "MPI_Type_get_true_extent_x");
  EXPECT_EQ(low, 0);
  return static_cast<std::int64_t>(extent);
}

TEST(MpiDatatype, ContiguousBytesOfAnyNumber) {
  for (const std::int64_t bytes :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{4096}, (std::int64_t{1} << 31) - 1,
        std::int64_t{1} << 31, (std::int64_t{1} << 31) + 1, (std::int64_t{1} << 32) + 7,
        (std::int64_t{1} << 40) + 12'345}) {
    const Datatype type = Datatype::contiguous(bytes);
    EXPECT_EQ(bytes_of(type), bytes);
    if (bytes > 1 && type.count() == 1) {
      EXPECT_EQ(end_of(type), bytes);
    }
  }
}

TEST(MpiDatatype, StridedBlocksOfAnyNumber) {
  constexpr std::int64_t gib = std::int64_t{1} << 30;
  const std::vector<tensor::StridedBytes> blocks = {
      {nullptr, 2, 100, 3, 16, 5},
      {nullptr, 1, 0, 7, 64, 32},
      {nullptr, 3, 4 * gib, 2, 2 * gib, gib + 1},  // planes and runs far apart
      {nullptr, 2, 8 * gib, 1, 0, 3 * gib},        // runs that are long
      {nullptr, 1, 0, 3 * gib, 4, 3},              // more runs than an int counts
      {nullptr, 5, 3 * gib, 1 << 20, 2048, 1024},
  };
  for (const tensor::StridedBytes& b : blocks) {
    const Datatype type = Datatype::strided(b);
    EXPECT_EQ(bytes_of(type), b.packed_bytes());
    EXPECT_EQ(end_of(type), (b.planes - 1) * b.plane_stride + (b.runs - 1) * b.run_stride + b.run_bytes);
  }
}

// MPI's own packing of the type against the block's definition.
TEST(MpiDatatype, TheOrderIsThePackedOne) {
  std::vector<std::byte> memory(1000);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 7 + i / 256);
  for (const tensor::StridedBytes b : {tensor::StridedBytes{memory.data(), 3, 300, 4, 50, 20},
                                       {memory.data(), 4, 100, 5, 20, 20},
                                       {memory.data(), 1, 0, 9, 100, 1},
                                       {memory.data(), 2, 500, 1, 0, 77},
                                       {memory.data(), 1, 0, 1, 0, 640}}) {
    std::vector<std::byte> wanted;
    for (std::int64_t p = 0; p < b.planes; ++p)
      for (std::int64_t r = 0; r < b.runs; ++r)
        for (std::int64_t i = 0; i < b.run_bytes; ++i)
          wanted.push_back(memory[static_cast<std::size_t>(p * b.plane_stride + r * b.run_stride + i)]);
    const Datatype type = Datatype::strided(b);
    std::vector<std::byte> packed(wanted.size());
    int at = 0;
    check(MPI_Pack(memory.data(), type.count(), type.get(), packed.data(), static_cast<int>(packed.size()),
                   &at, MPI_COMM_SELF),
          "MPI_Pack");
    EXPECT_EQ(packed, wanted);
  }
}

}  // namespace
}  // namespace kerf::comm::mpi
