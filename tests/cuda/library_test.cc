// A GPU library that is not there: nothing needs it, nothing looks for it, and whoever asks is told why.
#include "kerf/cuda/library.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "kerf/base/build_info.h"
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
  if (!v) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(v->kind, ErrorKind::device);
  const auto options = build_options();
  const auto option = std::ranges::find(options, "KERF_CUDA", &BuildOption::name);
  ASSERT_NE(option, options.end());
  const char* const words =
      option->value == "ON" ? "NVIDIA driver" : "not built: configure with -DKERF_CUDA=ON";
  EXPECT_NE(v->text.find(words), std::string::npos) << v->text;
}

}  // namespace
}  // namespace kerf::test
