// The messages of one collective between this rank and its peers: all of them begun, then waited for
// together. Allocates nothing once it was made.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kerf/comm/mpi/datatype.h"
#include "kerf/comm/mpi/process.h"

namespace kerf::comm::mpi {

class Exchange {
 public:
  // `members`: the group's ranks, by their rank in the program.
  Exchange(Process& process, std::span<const int> members);

  void send(int to, const void* from, const Datatype& type, int tag);
  void receive(int from, void* to, const Datatype& type, int tag);

  enum class Ended : std::uint8_t { done, left, late };
  // Waits for what was begun, as long as a collective waits: in all, or (`moving`: data of any size) since a
  // message was last through. Where a peer has left or is late nothing more is waited for: missing() names
  // them. GroupFailed with MPI's words for a message that failed.
  Ended finish(bool moving);
  [[nodiscard]] std::span<const int> missing() const { return missing_; }

  // Bytes that came from the peer in the exchange that finished, and was of one message a peer.
  [[nodiscard]] std::size_t received(int from) const { return bytes_[static_cast<std::size_t>(from)]; }

 private:
  struct About {
    int peer;
    bool receives;
  };

  Process& process_;
  std::span<const int> members_;
  std::vector<MPI_Request> requests_;
  std::vector<About> about_;
  std::vector<int> done_;
  std::vector<MPI_Status> statuses_;
  std::vector<std::size_t> bytes_;
  std::vector<int> missing_;

  MPI_Request* open(int peer, bool receives);
  void note(std::span<const int> done);
  [[nodiscard]] bool somebody_left();
  void give_up(bool moving);
  void fail_message(std::span<const int> done);
};

}  // namespace kerf::comm::mpi
