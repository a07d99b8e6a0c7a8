// Ranks as processes that meet over TCP, with nothing but the standard library: how the ranks of a device
// group find each other, and the host's side of it. Rank 0 listens, all others come to it; it tells everyone
// where the others are, and each two ranks connect. Nothing here is encrypted or proves who somebody is: the
// ports are for the network that the ranks are on.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "kerf/comm/group.h"
#include "kerf/comm/program.h"

#pragma GCC visibility push(default)
namespace kerf::comm {

// The most ranks of a group over TCP.
inline constexpr int most_tcp_ranks = 512;

// Who this rank is, and where the ranks meet.
struct TcpOptions {
  int rank = 0;  // from 0 on
  int size = 1;  // at most most_tcp_ranks
  // Where rank 0 is: its host and a port that it may listen on;
  std::string host;
  int port = 0;
  // or a file, on a disk that all ranks share: rank 0 writes there how it is reached, and takes it away when
  // all are here. An empty file, and what an earlier run left there, are replaced; whoever reads it before
  // finds nobody, and reads again. Anything else (a link, a pipe, another program's file) is left alone.
  std::string file;
  // How long ranks wait for each other, to meet and in a collective; at least 1.
  std::chrono::milliseconds timeout{60'000};
  // Any words that all ranks of this job share and no other job does. Ranks of another are no ranks of this
  // run, so two jobs may be told the same place. Empty: as good as any other words.
  std::string job = {};
};

// Collective. The group is "tcp": ordered, of the host's memory, for small things: a message goes straight
// from rank to rank, but is packed and not large. Only the thread that starts it uses it. Errors: usage
// (numbers that make no sense, a port that is taken, a file that cannot be written, is no rendezvous or is
// where another run's ranks are meeting, two processes of one number or of programs of another size: on all
// ranks that have come), peer (who did not come, by number;
// that rank 0 was not found, and why). What is no kerf's on a port is closed and told of.
std::unique_ptr<Program> start_tcp(const TcpOptions& options);

}  // namespace kerf::comm
#pragma GCC visibility pop
