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

// The first words of whoever connects.
struct Hello {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t port = 0;  // where it listens itself
  Token token{};
};
Hello hello(int rank, int size, int port, const Token& token);

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
  Reception(const Socket& listener, int size, const Token& token)
      : listener_(listener), size_(size), token_(token) {}

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
    Clock::time_point until;
  };
  // Whether it is done with, having said all or too little.
  bool hear(Coming& from, std::set<int>& wanted, bool greet, std::vector<Guest>& guests);

  const Socket& listener_;
  int size_;
  Token token_;
  std::vector<Coming> coming_;
  int strangers_ = 0;
  Verdict wrong_;
};

}  // namespace kerf::comm::tcp
