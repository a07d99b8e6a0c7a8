// How ranks that know rank 0's address, or a file, come to have a connection each.
#pragma once

#include <vector>

#include "kerf/comm/tcp.h"
#include "kerf/comm/tcp/socket.h"

namespace kerf::comm::tcp {

// Collective. One connection a rank, none for the own. Errors as start_tcp()'s.
std::vector<Socket> rendezvous(const TcpOptions& options);

}  // namespace kerf::comm::tcp
