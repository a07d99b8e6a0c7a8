// Where the processes of --group nccl meet, and which device each takes: from what launchers and the user
// set.
#pragma once

#include <optional>
#include <string>

#include "kerf/kerf.h"

namespace kerf::cli {

inline constexpr int most_port = 65'535;

struct Meeting {
  comm::TcpOptions tcp;           // rank 0 of 1 where no launcher has started several
  std::optional<int> local_rank;  // among those of its host
  std::string launcher;
};

// What KERF_RENDEZVOUS_FILE, KERF_RENDEZVOUS_PORT and KERF_JOB_ID say.
struct MeetingPlace {
  std::string file;
  std::optional<int> port;
  std::string job;
};
MeetingPlace meeting_place();

// Error{usage} where there are several processes and nothing says where they meet.
Meeting find_meeting(const Launch& launch, const Environment& environment, const MeetingPlace& place);

// Of `devices` on this host: the local rank's; the only one, where each process sees its own alone.
// Error{usage} where nothing says the local rank, Error{device} where there are too few.
int device_of(const Meeting& meeting, int devices);

// KERF_NCCL_LIBRARY's, or empty.
std::string nccl_file();

}  // namespace kerf::cli
