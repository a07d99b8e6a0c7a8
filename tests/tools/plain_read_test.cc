// The plain read: every byte once, whatever the sizes, by any number of workers.
#include "kerf/tools/plain_read.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kerf/numeric/splitmix.h"
#include "kerf/tensor/storage.h"
#include "kerf/tools/made_experts.h"

namespace kerf::tools {
namespace {

std::vector<std::byte> random_bytes(std::size_t size) {
  const numeric::SplitMix stream(size);
  std::vector<std::byte> out(size);
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<std::byte>(stream[i] >> 56);
  return out;
}

// Word by word, the last one filled up with zeros.
std::uint64_t slow(std::span<const std::byte> run) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < run.size(); ++i) sum ^= static_cast<std::uint64_t>(run[i]) << (8 * (i % 8));
  return sum;
}

TEST(PlainRead, ReadsEveryByteOfRunsOfAnySize) {
  for (const std::size_t size : {0, 1, 7, 8, 63, 64, 255, 256, 257, 4096, 524'288, 524'289, 1'700'011}) {
    const std::vector<std::byte> bytes = random_bytes(size + 3);
    for (const std::size_t offset : {0, 3}) {
      const std::span<const std::byte> run = std::span(bytes).subspan(offset, size);
      const PlainRead read(std::span(&run, 1));
      EXPECT_EQ(read.bytes(), static_cast<std::int64_t>(size));
      for (const int threads : {1, 3}) EXPECT_EQ(read.run(Workers(threads)), slow(run)) << size;
    }
  }
}

TEST(PlainRead, RunsAddUp) {
  const std::vector<std::byte> a = random_bytes(700'000);
  const std::vector<std::byte> b = random_bytes(321);
  const std::vector<std::span<const std::byte>> runs = {a, b};
  const PlainRead read(runs);
  EXPECT_EQ(read.bytes(), 700'321);
  EXPECT_EQ(read.run(Workers(2)), slow(a) ^ slow(b));
}

TEST(PlainRead, AnExpertsRunsAreItsTensors) {
  tensor::HostMemory memory;
  const layout::ExpertsShape shape{4, 256, 128};
  const Workers workers(1);
  const layout::Nvfp4Experts e = made_nvfp4(memory, shape, 0, op::Input::nvfp4, 7, workers);
  const auto runs = expert_runs(e.view(), 2);
  ASSERT_EQ(runs.size(), 4U);
  EXPECT_EQ(runs[0].data(), e.w13.bytes().data() + 2 * (2 * 128 * 256 / 2));
  EXPECT_EQ(runs[3].data(), e.w2_sf.bytes().data() + 2 * (256 * 128 / 16));
  EXPECT_EQ(PlainRead(runs).bytes(), 3 * 256 * 128 * 9 / 16);
  const layout::Bf16Experts b = made_bf16(memory, shape, 0, 7, workers);
  EXPECT_EQ(PlainRead(expert_runs(b.view(), 3)).bytes(), 3 * 256 * 128 * 2);
}

}  // namespace
}  // namespace kerf::tools
