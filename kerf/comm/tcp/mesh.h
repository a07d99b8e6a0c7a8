// A connection between every two ranks, and the messages of one collective over them: all of them begun, then
// waited for together. A message is a head and bytes; between two ranks they come in the order they were
// sent, so groups of the same ranks need no marks of their own. A rank that ends says why in a last message;
// one whose connection closes without is gone.
#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/comm/internal/ended.h"
#include "kerf/comm/tcp/socket.h"

namespace kerf::comm::tcp {

class Mesh {
 public:
  enum class Kind : std::uint32_t { post = 1, data = 2, leave = 3 };
  struct Out {
    int to;
    std::span<const std::byte> bytes;
  };
  struct In {
    int from;
    std::span<std::byte> bytes;  // of data exactly so many; of a post at most
  };
  enum class Result : std::uint8_t { done, left, late };

  // `peers`: one connection a rank, none for the own.
  Mesh(int rank, std::vector<Socket> peers, std::chrono::milliseconds timeout);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(peers_.size()); }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }

  // At most one message to and one from each peer; never this rank. Waits as long as a collective does: in
  // all, or (data) since bytes last moved. Where a rank has left or is late, missing() names those; nothing
  // can be exchanged from then on.
  Result exchange(Kind kind, std::span<const Out> out, std::span<const In> in);
  [[nodiscard]] std::span<const int> missing() const { return missing_; }
  // Bytes that came from the rank in the last exchange.
  [[nodiscard]] std::size_t received(int from) const { return peer(from).received; }
  // Null while the rank takes part, as far as is known.
  [[nodiscard]] const internal::Ended* left(int rank) const;
  // Whether it left without a word.
  [[nodiscard]] bool silent(int rank) const { return peer(rank).silent; }

  // The first fault after which nothing can be exchanged, in words; a group that meets one says so.
  [[nodiscard]] const Verdict& fault() const { return fault_; }
  void set_fault(const Reason& fault) {
    if (!fault_) fault_ = fault;
  }

  // Tells all others how this rank's work ended.
  void leave(const Verdict& reason, bool group_failed);
  // Waits until all others have told the same, so long at most; whether they have.
  bool all_left(Clock::time_point deadline);

 private:
  struct Head {
    std::uint32_t magic = 0;
    std::uint32_t kind = 0;
    std::uint64_t bytes = 0;
  };
  struct Peer {
    Socket socket;
    // Incoming: a head, then its bytes.
    std::array<std::byte, sizeof(Head)> head{};
    std::size_t head_got = 0, body_got = 0;
    std::span<std::byte> into;
    std::size_t received = 0;
    bool wanted = false;  // a message is still to come
    bool drain = false;   // what comes is for nobody, but for the last message
    // Outgoing.
    std::array<std::byte, sizeof(Head)> out_head{};
    std::size_t out_got = 0;  // sent of the head and the bytes
    std::span<const std::byte> out;
    bool sending = false;
    bool deaf = false;             // takes nothing more
    std::vector<std::byte> words;  // of the last message: what is told, then what is heard
    std::vector<std::byte> heard;
    std::optional<internal::Ended> left;
    bool silent = false;  // it left without a word
  };

  [[nodiscard]] Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  static void begin(Peer& to, Kind kind, std::span<const std::byte> bytes);
  // Whether bytes moved.
  static bool push(Peer& to);
  bool pull(Peer& from, Kind kind);
  bool pull_body(Peer& from, Head head, bool last);
  static void gone(Peer& peer);
  bool wait(Kind kind, Clock::time_point deadline);
  void give_up();

  int rank_;
  std::vector<Peer> peers_;
  std::chrono::milliseconds timeout_;
  std::vector<pollfd> polled_;
  std::vector<int> polled_ranks_;
  std::vector<int> missing_;
  Verdict fault_;
};

}  // namespace kerf::comm::tcp
