#include "tests/support/onehot.h"

#include <gtest/gtest.h>

#include "kerf/checkpoint/safetensors.h"
#include "tests/support/test_env.h"

namespace kerf::test {
namespace {

// The files are those that the cases' sizes were taken from.
TEST(Onehot, FilesHaveTheKnownSizes) {
  const TempDir dir;
  Onehot().write(dir.path());
  EXPECT_EQ(std::filesystem::file_size(dir.path() / "model-00001-of-00002.safetensors"), 115'736U);
  EXPECT_EQ(std::filesystem::file_size(dir.path() / "model-00002-of-00002.safetensors"), 113'576U);
}

TEST(Onehot, OutputsBeginAsListed) {
  const std::vector<std::vector<float>> begin = {{648, 324, 108, 648, 216, 54, 432, 162},
                                                 {108, 648, 216, 54, 432, 162, 648, 324},
                                                 {216, 54, 432, 162, 648, 324, 108, 648},
                                                 {432, 162, 648, 324, 108, 648, 216, 54}};
  for (std::size_t e = 0; e < begin.size(); ++e) {
    const std::vector<float> y = onehot_output(static_cast<std::int64_t>(e));
    ASSERT_EQ(y.size(), 256U);
    for (std::size_t h = 0; h < y.size(); ++h) EXPECT_EQ(y[h], begin[e][h % 8]) << e << " " << h;
  }
}

TEST(Onehot, OneChangeReachesTheFile) {
  const TempDir dir;
  Onehot onehot({.shards = 1});
  onehot.set_f32(onehot.name(2, "down_proj.input_scale"), 7.0F);
  onehot.remove(onehot.name(3, "up_proj.weight"));
  onehot.write(dir.path());
  const auto file = checkpoint::SafetensorsFile::open(dir.path() / "model.safetensors");
  EXPECT_EQ(file.at(onehot.name(2, "down_proj.input_scale")).as<float>()[0], 7.0F);
  EXPECT_FALSE(file.find(onehot.name(3, "up_proj.weight")));
  EXPECT_TRUE(file.find(onehot.name(3, "up_proj.weight_scale")));
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "model.safetensors.index.json"));
}

}  // namespace
}  // namespace kerf::test
