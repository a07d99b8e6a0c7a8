// What ranks say to each other when they meet, as bytes, and the reception of those who come.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/comm/tcp/socket.h"

namespace kerf::comm::tcp {

// Tells runs apart, so that nobody takes another run's ranks for its own.
using Token = std::array<std::uint64_t, 2>;
Token new_token();

// A job's words as a number (FNV-1a), the same on all hosts.
std::uint64_t job_number(std::string_view job);

// Whose ranks meet.
struct Run {
  Token token{};
  std::uint64_t job = 0;
  bool operator==(const Run&) const = default;
};

// The first words of whoever connects.
struct Hello {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::int32_t rank = 0;  // nobody: only asks whether this run is here
  std::int32_t size = 0;
  std::int32_t port = 0;  // where it listens itself
  Run run;
};
inline constexpr int nobody = -1;
Hello hello(int rank, int size, int port, const Run& run);

// What rank 0 answers at once, so that nobody waits for a stranger.
inline constexpr std::array<char, 8> welcome = {'k', 'e', 'r', 'f', 'h', 'e', 'r', 'e'};

// What it says when all are here, or that they will not be.
struct Answer {
  std::int32_t kind = 0;  // 0: text is the table of addresses; otherwise an ErrorKind and why
  std::uint32_t bytes = 0;
  Token token{};  // of the run
};

// Says why not, as well as it can be said.
void refuse(const Socket& guest, const Reason& why);

// Those who connect to a listener, until all that are wanted are here.
class Reception {
 public:
  Reception(const Socket& listener, int size, const Run& run) : listener_(listener), size_(size), run_(run) {}

  struct Guest {
    Socket socket;
    int rank = 0;
    int port = 0;
  };
  // The ranks of `wanted`, greeted where `greet`. Guests who are no ranks of this run are closed: a silent
  // one after some seconds, and nobody waits for it. Where it fails, whoever has come is in `guests`: peer
  // (who is missing), usage (two of one number, another number of ranks).
  Verdict receive(std::set<int> wanted, bool greet, Clock::time_point deadline, std::string_view where,
                  std::chrono::milliseconds waited, std::vector<Guest>& guests);

 private:
  struct Coming {
    Socket socket;
    std::array<std::byte, sizeof(Hello)> words{};
    std::size_t got = 0;
    Clock::time_point since;
  };
  // Where there are too many, those who have not said all go, for who waits at the door.
  void make_room(Clock::time_point now);
  // Whether it is done with, having said all or too little.
  bool hear(Coming& from, std::set<int>& wanted, bool greet, std::vector<Guest>& guests);

  const Socket& listener_;
  int size_;
  Run run_;
  std::vector<Coming> coming_;
  int strangers_ = 0;
  Verdict wrong_;
};

}  // namespace kerf::comm::tcp
