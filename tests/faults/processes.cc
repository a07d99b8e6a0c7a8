#include "tests/faults/processes.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <thread>

namespace kerf::test {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPause{5};

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<char*> pointers(Words& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

Running::Running(const Words& command, const Words& environment) {
  Words argv = command;
  Words env = environment;
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (!std::string_view(*variable).starts_with("KERF_")) env.emplace_back(*variable);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  const std::string out = (dir_.path() / "out").string();
  const std::string err = (dir_.path() / "err").string();
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int failed = posix_spawn(&pid_, argv.front().c_str(), &actions, nullptr, pointers(argv).data(),
                                 pointers(env).data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw std::runtime_error("cannot start " + command.front());
}

Running::~Running() {
  if (ended()) return;
  (void)::kill(pid_, SIGTERM);  // mpirun takes its ranks with it
  (void)wait(std::chrono::seconds{5});
}

std::string Running::err() const { return read_all(dir_.path() / "err"); }

void Running::send(int signal) const { (void)::kill(pid_, signal); }

bool Running::ended() {
  if (!ended_) ended_ = ::waitpid(pid_, &status_, WNOHANG) == pid_;
  return ended_;
}

bool Running::says(const std::string& words, std::chrono::seconds longest) {
  const auto deadline = Clock::now() + longest;
  while (Clock::now() < deadline) {
    if (err().find(words) != std::string::npos) return true;
    if (ended()) return err().find(words) != std::string::npos;
    std::this_thread::sleep_for(kPause);
  }
  return false;
}

Ran Running::wait(std::chrono::seconds longest) {
  const auto deadline = Clock::now() + longest;
  while (!ended() && Clock::now() < deadline) std::this_thread::sleep_for(kPause);
  if (!ended()) {
    (void)::kill(pid_, SIGKILL);
    (void)::waitpid(pid_, &status_, 0);
    ended_ = true;
  }
  return {WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_), read_all(dir_.path() / "out"),
          err()};
}

Timed timed(const Words& command, const Words& environment, std::chrono::seconds longest) {
  const auto begin = Clock::now();
  Running running(command, environment);
  Timed out{running.wait(longest), 0};
  out.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return out;
}

std::vector<int> processes_with(const std::string& word) {
  std::vector<int> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    if (!std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; })) continue;
    if (read_all(entry.path() / "cmdline").find(word) == std::string::npos) continue;
    const std::string stat = read_all(entry.path() / "stat");
    const std::size_t state = stat.rfind(") ");
    if (state == std::string::npos || stat[state + 2] == 'Z' || stat[state + 2] == 'X') continue;
    out.push_back(std::stoi(name));
  }
  return out;
}

bool none_left(const std::string& word, std::chrono::seconds longest) {
  const auto deadline = Clock::now() + longest;
  while (!processes_with(word).empty()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

std::vector<int> those_who_have_open(const std::string& word, const std::string& suffix) {
  std::vector<int> out;
  for (const int pid : processes_with(word)) {
    std::error_code ignored;
    bool open = false;
    for (fs::directory_iterator it(fs::path("/proc") / std::to_string(pid) / "fd", ignored), end;
         !ignored && it != end; it.increment(ignored)) {
      std::error_code gone;
      if (fs::read_symlink(it->path(), gone).string().ends_with(suffix)) open = true;
    }
    if (open) out.push_back(pid);
  }
  return out;
}

}  // namespace kerf::test
