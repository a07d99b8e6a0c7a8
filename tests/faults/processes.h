// Processes that tests start, watch and end: what they say so far, signals, and what is left of them.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/program.h"
#include "tests/support/test_env.h"

namespace kerf::test {

// One that runs. It is ended where the test ends before it does.
class Running {
 public:
  explicit Running(const Words& command, const Words& environment = {});
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  Running(Running&&) = delete;
  Running& operator=(Running&&) = delete;

  [[nodiscard]] int pid() const { return pid_; }
  [[nodiscard]] std::string err() const;
  void send(int signal) const;
  // Waits until standard error has the words; false where it ended, or so long has passed.
  [[nodiscard]] bool says(const std::string& words, std::chrono::seconds longest = std::chrono::seconds{30});
  // Waits for its end, which is forced after so long: the code is 137 then.
  Ran wait(std::chrono::seconds longest);

 private:
  [[nodiscard]] bool ended();
  TempDir dir_;
  int pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
};

// Runs it to its end, at most so long (code 137 otherwise), in how many seconds.
struct Timed : Ran {
  double seconds = 0;
};
Timed timed(const Words& command, const Words& environment, std::chrono::seconds longest);

// Process ids whose command line has the word and that are not zombies.
std::vector<int> processes_with(const std::string& word);
// Whether there soon are none: mpirun ends before the last of the ranks that it killed.
bool none_left(const std::string& word, std::chrono::seconds longest);
// Those of them that have a file open whose name ends so.
std::vector<int> those_who_have_open(const std::string& word, const std::string& suffix);

}  // namespace kerf::test
