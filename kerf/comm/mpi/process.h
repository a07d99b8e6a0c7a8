// This process among the processes of an MPI program: who has left and why, and how many messages went
// between each pair, so that a rank which left is not waited for, while what it sent before still arrives.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/comm/internal/ended.h"

namespace kerf::comm::mpi {

using Clock = std::chrono::steady_clock;

// How a rank's work ended, as it told the others.
struct Left : internal::Ended {
  std::uint64_t sent = 0;  // messages that it had sent to this rank
  Clock::time_point seen;  // when this rank heard of it
};

// Waits by looking: at first again and again, letting others run; then with pauses that grow.
class Pause {
 public:
  void reset() { looks_ = 0; }
  void once();
  // Whether this look is one of those that also look at what seldom happens.
  [[nodiscard]] bool seldom() const { return looks_ % 16 == 15; }

 private:
  unsigned looks_ = 0;
};

class Process {
 public:
  // Duplicates MPI_COMM_WORLD, twice: data and what ranks tell each other beside them never meet. Error{peer}
  // where not all processes take part in time.
  explicit Process(std::chrono::milliseconds timeout);
  ~Process() = default;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  Process(Process&&) = delete;
  Process& operator=(Process&&) = delete;

  [[nodiscard]] MPI_Comm data() const { return data_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }
  // The highest tag that may be used.
  [[nodiscard]] int most_tag() const { return most_tag_; }

  void count_sent(int to) { ++sent_[static_cast<std::size_t>(to)]; }
  void count_received(int from) { ++received_[static_cast<std::size_t>(from)]; }

  // Hears what ranks have told.
  void listen();
  // Null while the rank takes part.
  [[nodiscard]] const Left* left(int rank) const;
  // Whether more of what the rank had sent to this one may come.
  [[nodiscard]] bool more_from(int rank) const;
  // A group's number that no rank of it uses for another: ask all of its ranks, tell each the largest.
  [[nodiscard]] int next_group() const { return next_group_; }
  void group_opened(int number) { next_group_ = number + 1; }
  // From a fault on, messages may be under way that nobody takes: MPI can't be ended in order then, and
  // memory that it was given stays its own.
  void stray() { stray_ = true; }
  [[nodiscard]] bool astray() const { return stray_; }

  // Tells all others how this rank's work ended.
  void leave(const Verdict& reason, bool group_failed);
  // Waits until all others have left, so long at most; whether they have.
  bool all_left(Clock::time_point deadline);
  // Ends MPI in order and returns where all have met and nothing failed. Otherwise ends the process, with
  // `code`, after what its streams hold was written; where not all have met, the other processes too.
  void end(int code);

 private:
  void expect_news();
  void let_others_speak();
  [[nodiscard]] bool told() const;

  MPI_Comm data_ = MPI_COMM_NULL;
  MPI_Comm control_ = MPI_COMM_NULL;
  std::chrono::milliseconds timeout_;
  int rank_ = 0;
  int size_ = 1;
  int most_tag_ = 32'767;
  int next_group_ = 1;  // 0 is that of all processes
  bool stray_ = false;
  std::vector<std::uint64_t> sent_, received_;  // by rank
  std::vector<Left> left_;
  std::vector<char> has_left_;
  std::vector<char> news_;  // what the next rank tells
  MPI_Request listening_ = MPI_REQUEST_NULL;
  std::vector<std::vector<char>> telling_;  // by rank, as long as it takes
  std::vector<MPI_Request> tellings_;
};

}  // namespace kerf::comm::mpi
