// What the program loads: nothing of a GPU's, at start or later, unless somebody asks; then it says why not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "tests/cli/program.h"
#include "tests/support/gpu.h"

namespace kerf::test {
namespace {

// Lines of the dynamic loader's account that name a GPU library.
std::string gpu_lines(const std::string& account) {
  std::string found;
  for (std::size_t at = 0; at < account.size();) {
    const std::size_t end = std::min(account.find('\n', at), account.size());
    const std::string line = account.substr(at, end - at);
    for (const char* word : {"libcuda", "libcudart", "libnvrtc", "libcublas", "libnccl", "libnvidia"})
      if (line.find(word) != std::string::npos) found += line + "\n";
    at = end + 1;
  }
  return found;
}

// LD_DEBUG=files has the loader tell of every library that it opens or is asked to open, found or not.
TEST(Libraries, NoneOfAGpuIsLoadedByADecode) {
  const TempDir dir;
  const std::string model = (dir.path() / "tiny").string();
  ASSERT_EQ(run_program({"synth", model, "--model", "tiny"}).code, 0);
  const Ran ran =
      run_program({"decode", model, "--ranks", "2", "--seconds", "0", "--json"}, {"LD_DEBUG=files"});
  ASSERT_EQ(ran.code, 0);
  EXPECT_EQ(json_of(ran)["steps"].size(), 4U);
  ASSERT_TRUE(contains(ran.err, "libstdc++")) << "the loader did not tell";
  EXPECT_EQ(gpu_lines(ran.err), "");
}

// Everything that does not call the GPU library works; what asks for it is refused with the reason that `kerf
// env` shows.
TEST(Libraries, AskingForTheGpuGivesTheReasonThatEnvShows) {
  if (why_no_gpu().empty()) GTEST_SKIP() << "there is a GPU";
  const Ran env = run_program({"env", "--json"}, {"LD_DEBUG=files"});
  ASSERT_EQ(env.code, 0);
  const auto reason = json_of(env)["absent"]["cuda"].get<std::string>();
  EXPECT_EQ(reason, why_no_gpu());
  // A build with the CUDA part looks for the driver here: it is asked for.
  if (contains(reason, "not built: configure with -DKERF_CUDA=ON")) {
    EXPECT_EQ(gpu_lines(env.err), "");
  }
  const TempDir dir;
  const std::string model = (dir.path() / "tiny").string();
  ASSERT_EQ(run_program({"synth", model, "--model", "tiny"}).code, 0);
  expect_refusal(run_program({"decode", model, "--device", "cuda"}), 8, {"--device cuda: " + reason});
}

}  // namespace
}  // namespace kerf::test
