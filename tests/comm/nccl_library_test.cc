// NCCL's library as it is found or not, without a device: what is no library, none of NCCL's, too old, or
// lacks a function, is told by its name; the layout of what is handed to it; pieces of strided blocks.
#include "kerf/comm/nccl/library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "kerf/comm/local.h"
#include "kerf/comm/nccl.h"
#include "kerf/comm/nccl/pieces.h"
#include "kerf/cuda/library.h"
#include "tests/support/paths.h"
#include "tests/support/test_env.h"

namespace kerf::comm::nccl {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string why_not(const std::string& path) {
  Library library;
  const Verdict v = open(path, library);
  EXPECT_TRUE(v) << path;
  if (v) {
    EXPECT_EQ(v->kind, ErrorKind::unsupported);
  }
  EXPECT_EQ(library.get_version, nullptr);  // nothing is handed out by halves
  return v ? v->text : "";
}

TEST(NcclLibrary, WhatIsNoneIsToldByItsName) {
  const test::TempDir dir;
  const std::string file = (dir.path() / "libnccl.so.2").string();
  EXPECT_THAT(why_not(file), AllOf(HasSubstr(file), HasSubstr("KERF_NCCL_LIBRARY")));
  std::ofstream(file) << "no library";
  EXPECT_THAT(why_not(file), HasSubstr(file));
  EXPECT_THAT(why_not("libm.so.6"), HasSubstr("is not NCCL's library: it has no ncclGetVersion"));
  const std::string pretends = test::old_nccl_path;
  EXPECT_THAT(why_not(pretends),
              AllOf(HasSubstr(pretends), HasSubstr("is NCCL 2.13.4, wanted 2.14.0 or newer")));
  EXPECT_THAT(why_not(test::half_nccl_path), HasSubstr("(NCCL 2.99.1) has no ncclCommInitRankConfig"));
}

TEST(NcclLibrary, VersionsAreRead) {
  EXPECT_EQ(version_text(2708), "2.7.8");
  EXPECT_EQ(version_text(21'400), "2.14.0");
  EXPECT_EQ(version_text(22'703), "2.27.3");
}

// The public header's: sizes that callers and library must share.
TEST(NcclLibrary, WhatIsHandedOverHasThePublicLayout) {
  EXPECT_EQ(sizeof(Id), 128U);
  const Config config;
  EXPECT_EQ(sizeof(config), 24U);
  EXPECT_EQ(reinterpret_cast<const char*>(&config.blocking) - reinterpret_cast<const char*>(&config), 16);
  EXPECT_EQ(config.size, 24U);
  EXPECT_EQ(config.blocking, 0);
}

// Whoever asks for the group gets the verdict's words, on every rank.
TEST(NcclLibrary, TheGroupIsRefusedWithTheReason) {
  const test::TempDir dir;
  const std::string file = (dir.path() / "none.so").string();
  const Verdict why = nccl_absent(file);
  ASSERT_TRUE(why);
  EXPECT_EQ(nccl_library(file), "");
  const Verdict refused = attempt([&] {
    run_local(2, {}, [&](Group& host) {
      NcclOptions options;
      options.library = file;
      (void)make_nccl_group(host, options);
    });
  });
  EXPECT_EQ(refused, why);
  if (!cuda::built()) {
    EXPECT_THAT(why->text, HasSubstr("not built: configure with -DKERF_CUDA=ON"));
  }
}

// Any part of a block's packed form, put together from its pieces, is what packing the whole gives there.
TEST(NcclPieces, MakeThePackedForm) {
  std::vector<std::byte> memory(2000);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 7 + (i >> 8U));
  const std::vector<tensor::StridedBytes> blocks = {
      {memory.data(), 1, 0, 1, 0, 100},   {memory.data(), 3, 500, 4, 60, 17},
      {memory.data(), 2, 900, 5, 33, 33}, {memory.data(), 1, 7, 40, 21, 1},
      {memory.data(), 4, 128, 2, 64, 64}, {memory.data(), 5, 300, 1, 9, 250},
  };
  for (const tensor::StridedBytes& block : blocks) {
    std::vector<std::byte> whole(static_cast<std::size_t>(block.packed_bytes()));
    tensor::pack(block, whole.data());
    const std::int64_t n = block.packed_bytes();
    for (const std::int64_t step :
         {std::int64_t{1}, std::int64_t{16}, std::int64_t{50}, std::int64_t{256}, n}) {
      for (std::int64_t first = 0; first < n; first += step) {
        const std::int64_t count = std::min(step, n - first);
        std::vector<std::byte> part(static_cast<std::size_t>(count));
        std::int64_t copied = 0;
        for_each_piece(block, first, count, [&](const Piece& p) {
          EXPECT_LE(p.width, p.pitch);
          EXPECT_EQ(p.to, copied);
          for (std::int64_t row = 0; row < p.rows; ++row)
            std::copy_n(memory.begin() + p.from + row * p.pitch, p.width,
                        part.begin() + p.to + row * p.width);
          copied += p.rows * p.width;
        });
        ASSERT_EQ(copied, count);
        ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first)) << first << " " << count;
      }
    }
  }
}

}  // namespace
}  // namespace kerf::comm::nccl
