#include "cli/meeting.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

namespace kerf::cli {

namespace {

// A launcher may keep its own port for itself: ranks meet at the next one.
int next_port(const std::string& text) {
  int port = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (code != std::errc() || end != text.data() + text.size() || port < 1 || port > most_port)
    throw Error(ErrorKind::usage,
                fmt::format("MASTER_PORT is '{}', wanted a whole number from 1 to {}", text, most_port));
  return port < most_port ? port + 1 : port - 1;
}

std::string value_of(const Environment& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

}  // namespace

MeetingPlace meeting_place() {
  return {env_value("KERF_RENDEZVOUS_FILE").value_or(""), env_positive("KERF_RENDEZVOUS_PORT", most_port),
          env_value("KERF_JOB_ID").value_or("")};
}

Meeting find_meeting(const Launch& launch, const Environment& environment, const MeetingPlace& place) {
  Meeting out;
  if (!launch.started) return out;
  out.launcher = launch.launcher;
  out.local_rank = launch.local_rank;
  out.tcp.rank = launch.rank;
  out.tcp.size = launch.size;
  if (launch.size == 1) return out;
  out.tcp.job = place.job.empty() ? launch.job : place.job;
  if (!place.file.empty()) {
    out.tcp.file = place.file;
    return out;
  }
  out.tcp.host = value_of(environment, "MASTER_ADDR");
  const std::string master = value_of(environment, "MASTER_PORT");
  if (out.tcp.host.empty() || (!place.port && master.empty()))
    throw Error(ErrorKind::usage,
                fmt::format("--group nccl: {} started {} processes, and nothing says where they meet: set "
                            "MASTER_ADDR and KERF_RENDEZVOUS_PORT (or MASTER_PORT), or KERF_RENDEZVOUS_FILE",
                            launch.launcher, launch.size));
  out.tcp.port = place.port ? *place.port : next_port(master);
  return out;
}

int device_of(const Meeting& meeting, int devices) {
  if (meeting.tcp.size == 1 && !meeting.local_rank) return 0;
  if (devices == 1) return 0;
  if (!meeting.local_rank)
    throw Error(
        ErrorKind::usage,
        fmt::format("--group nccl: {} does not say which of this host's processes this is, and it has "
                    "{} devices: let each see one (CUDA_VISIBLE_DEVICES), or set LOCAL_RANK",
                    meeting.launcher, devices));
  if (*meeting.local_rank >= devices)
    throw Error(ErrorKind::device,
                fmt::format("--group nccl: this is process {} of its host, which has {} devices",
                            *meeting.local_rank, devices));
  return *meeting.local_rank;
}

std::string nccl_file() { return env_value("KERF_NCCL_LIBRARY").value_or(""); }

}  // namespace kerf::cli
