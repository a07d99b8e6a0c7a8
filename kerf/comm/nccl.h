// The device group: collectives on device memory by NCCL, whose library is looked for when it is first asked
// for and never linked. It stands on a group of the host's memory (threads, MPI, TCP), over which every
// collective is agreed before NCCL is given anything: so a rank that is late or has left is named, and posts
// that do not fit are refused in words, as by any group.
//
//   memory       Spans may be of the device's memory or the host's, each rank's as it likes. Device memory is
//                read and written where it lies; the host's goes through a staging area on the device, in
//                pieces. Host data of an all-gather that fit the message of the agreement go with that.
//   all-to-all   Grouped sends and receives. A strided block is packed on the device, in pieces, into the
//                staging area; one that is contiguous is sent from where it lies.
//   sums         NCCL's: bf16, in an order that depends on topology and size, rounded at every step. So
//                ordered() is false.
//   waiting      Polled: what a rank enqueued is waited for as long as a collective waits, then the
//                communicator is aborted, and the error says what was awaited and what NCCL says. Final.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "kerf/base/error.h"
#include "kerf/comm/group.h"

#pragma GCC visibility push(default)
namespace kerf::comm {

// Which NCCL, and how its ranks wait.
struct NcclOptions {
  // The library's file; empty: libnccl.so.2, where the loader finds it.
  std::string library;
  std::chrono::milliseconds timeout{60'000};  // how long a collective waits for a rank, at least 1
  // Most bytes of the staging areas on the device, one for what is sent and one for what is received. The
  // same on all ranks.
  std::size_t staging = std::size_t{64} << 20;
};

// Nothing where the group can be had here; otherwise why not: not built, no library or one too old
// (unsupported), no device (device). `library`: as in NcclOptions. Loads it.
Verdict nccl_absent(const std::string& library);
// Its name, version and file, in a line; empty where it cannot be had.
std::string nccl_library(const std::string& library);

// Collective over `host`, which must outlive the group; what else is done with it comes in one order on all
// ranks. The ranks are those of `host`; each one's device is the current one of the thread that calls this,
// and only that thread uses the group. Errors, the same on all ranks: nccl_absent()'s, two ranks on one
// device and libraries of several versions (unsupported), a timeout below 1 ms (usage), NCCL's own words
// (device), and what `host` throws.
std::unique_ptr<Group> make_nccl_group(Group& host, const NcclOptions& options);

}  // namespace kerf::comm
#pragma GCC visibility pop
