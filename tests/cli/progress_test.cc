// The bar that a terminal shows: how far, how fast, how long still.
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <regex>

#include "cli/rate.h"
#include "tests/cli/program.h"

namespace kerf::test {
namespace {

TEST(Progress, RateAndTimeLeft) {
  using cli::rate_text;
  constexpr std::int64_t gib = std::int64_t{1} << 30;
  EXPECT_EQ(rate_text(true, 2 * gib, 8 * gib, 1.0), "2.00 GiB/s, 0:03 left");
  EXPECT_EQ(rate_text(true, gib / 2, 100 * gib, 1.0), "0.50 GiB/s, 3:19 left");
  EXPECT_EQ(rate_text(true, 8 * gib, 8 * gib, 2.5), "3.20 GiB/s");
  EXPECT_EQ(rate_text(false, 1, 4, 20.0), "1:00 left");
  EXPECT_EQ(rate_text(false, 4, 4, 20.0), "");
  EXPECT_EQ(rate_text(true, 0, 8 * gib, 1.0), "");      // nothing is known yet
  EXPECT_EQ(rate_text(true, gib, 8 * gib, 0.001), "");  // nor is it after a moment
  EXPECT_EQ(rate_text(false, 1, 1'000'000, 1.0), "");   // eleven days: a guess
}

// What the program writes to a terminal.
std::string on_a_terminal(const std::vector<std::string>& arguments) {
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    std::vector<std::string> all = {program_path};
    all.insert(all.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& a : all) argv.push_back(a.data());
    argv.push_back(nullptr);
    ::execv(program_path, argv.data());
    ::_exit(127);
  }
  if (child < 0) return "no terminal";
  std::string out;
  std::array<char, 4096> buffer{};
  for (ssize_t n = 0; (n = ::read(terminal, buffer.data(), buffer.size())) > 0;)
    out.append(buffer.data(), static_cast<std::size_t>(n));
  ::close(terminal);
  int status = 0;
  ::waitpid(child, &status, 0);
  return out;
}

// Loading shows its rate and the time left, on rank 0 alone: one bar, which ends at nothing.
TEST(Progress, ABarOnATerminal) {
  const TempDir dir;
  const std::string c = (dir.path() / "c").string();
  ASSERT_EQ(run_program({"synth", c, "--model", "qwen3-moe", "--experts", "16", "--hidden", "2048",
                         "--intermediate", "1024", "--layers", "16", "--bf16-layers", "0", "--top-k", "2"})
                .code,
            0);
  const std::string text =
      on_a_terminal({"decode", c, "--ranks", "2", "--mode", "ep", "--batch", "1", "--seconds", "0"});
  if (text == "no terminal") GTEST_SKIP() << text;
  const std::regex bar(
      R"(\rloading \[#*\.*\] +[0-9]+ % [0-9]+\.[0-9][0-9] GiB/s(, [0-9]+:[0-9][0-9] left)?)");
  // A machine that loads this in less than the bar's first tenth of a second shows none.
  const bool shown = text.find("loading [") != std::string::npos;
  EXPECT_EQ(std::regex_search(text, bar), shown) << text;
  EXPECT_NE(text.find("output SHA-256"), std::string::npos) << text;
}

}  // namespace
}  // namespace kerf::test
