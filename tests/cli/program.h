// Runs the real program and keeps what it wrote and how it ended.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/test_env.h"

namespace kerf::test {

struct Ran {
  int code = -1;  // exit code; 128 + the signal's number where one ended the program
  std::string out;
  std::string err;

  [[nodiscard]] nlohmann::json json() const { return nlohmann::json::parse(out); }
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// `variables` ("NAME=value") take the place of all KERF_* variables that this process has. `to`: a descriptor
// that becomes standard output, which then is not kept; -1: it is.
inline Ran run_kerf(const std::vector<std::string>& arguments, const std::vector<std::string>& variables = {},
                    int to = -1) {
  const TempDir dir;
  const std::string out = (dir.path() / "out").string();
  const std::string err = (dir.path() / "err").string();
  std::vector<std::string> words = {KERF_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<std::string> settings = variables;
  for (char** v = environ; *v != nullptr; ++v)
    if (!std::string_view(*v).starts_with("KERF_")) settings.emplace_back(*v);
  std::vector<char*> envp;
  for (std::string& s : settings) envp.push_back(s.data());
  envp.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (to >= 0)
    posix_spawn_file_actions_adddup2(&actions, to, STDOUT_FILENO);
  else
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT, 0600);
  pid_t child = 0;
  const int failed = posix_spawn(&child, KERF_PROGRAM, &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw std::runtime_error("cannot run " KERF_PROGRAM);
  int status = 0;
  if (waitpid(child, &status, 0) != child) throw std::runtime_error("waitpid");
  Ran ran;
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (to < 0) ran.out = read_text(out);
  ran.err = read_text(err);
  return ran;
}

// "" where `text` contains `words`, else both, for a readable failure.
inline testing::AssertionResult contains(const std::string& text, std::string_view words) {
  if (text.find(words) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "no '" << words << "' in:\n" << text;
}

// The program refused: this exit code, nothing on standard output, the words on standard error.
inline void expect_refusal(const Ran& ran, int code, std::initializer_list<std::string_view> words) {
  EXPECT_EQ(ran.code, code) << ran.err;
  EXPECT_EQ(ran.out, "");
  for (const std::string_view w : words) EXPECT_TRUE(contains(ran.err, w));
}

}  // namespace kerf::test
