// A GPU library that is not there: nothing needs it, nothing looks for it, and whoever asks is told why.
#include "kerf/cuda/library.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "kerf/decode/decode.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

// Files mapped into this process whose path holds `word`.
std::string mapped(const std::string& word) {
  std::ifstream maps("/proc/self/maps");
  std::string found;
  for (std::string line; std::getline(maps, line);)
    if (line.find(word) != std::string::npos) found += line + "\n";
  return found;
}

TEST(CudaLibrary, ADecodeNeitherNeedsNorLoadsIt) {
  const checkpoint::Checkpoint from = small_model().open();
  decode::Options options;
  options.modes = {decode::Mode::ep, decode::Mode::tp};
  options.repetitions = 1;
  options.seconds = 0;
  on_ranks({2, 1, {}},
           [&](const decode::Rank& rank) { EXPECT_EQ(decode::run(from, options, rank).steps.size(), 4U); });
  EXPECT_NE(mapped("libstdc++"), "") << "the maps show no library at all";
  for (const char* library : {"libcuda", "libcudart", "libnvrtc", "libcublas", "libnccl", "libnvidia"})
    EXPECT_EQ(mapped(library), "") << library;
}

TEST(CudaLibrary, AskingGivesTheReason) {
  const Verdict v = cuda::library();
  ASSERT_TRUE(v);
  EXPECT_EQ(v->kind, ErrorKind::device);
  EXPECT_NE(v->text.find("not built: configure with -DKERF_CUDA=ON"), std::string::npos) << v->text;
}

}  // namespace
}  // namespace kerf::test
