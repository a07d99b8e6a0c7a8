// The functions of NCCL's library that kerf calls, by their public C interface, found at run time. This file
// restates what is needed of it: no header of NCCL's is needed to build.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "kerf/base/error.h"

// The runtime's own handle; a pointer to it is cudaStream_t.
struct CUstream_st;

namespace kerf::comm::nccl {

// Communicators that do not block, and abort, are since 2.14; finalizing too.
inline constexpr int oldest_version = 21'400;

struct Communicator;  // opaque
struct Id {
  std::array<char, 128> words;
};

enum Result : int { success = 0, in_progress = 7 };
enum Type : int { bytes = 1, bf16 = 9 };  // ncclUint8, ncclBfloat16
enum Operation : int { sum = 0 };

// As of 2.14: a library that knows more takes what is missing by its own defaults.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = oldest_version;
  int blocking = 0;
  int unused = 0;
};

// Calls. They return a Result.
struct Library {
  int (*get_version)(int* version) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
  int (*get_unique_id)(Id* id) = nullptr;
  int (*comm_init_rank_config)(Communicator** made, int ranks, Id id, int rank, Config* config) = nullptr;
  int (*comm_get_async_error)(Communicator* comm, int* result) = nullptr;
  int (*comm_finalize)(Communicator* comm) = nullptr;
  int (*comm_destroy)(Communicator* comm) = nullptr;
  int (*comm_abort)(Communicator* comm) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void* from, std::size_t count, int type, int peer, Communicator* comm,
              CUstream_st* stream) = nullptr;
  int (*recv)(void* to, std::size_t count, int type, int peer, Communicator* comm,
              CUstream_st* stream) = nullptr;
  int (*all_gather)(const void* from, void* to, std::size_t count, int type, Communicator* comm,
                    CUstream_st* stream) = nullptr;
  int (*all_reduce)(const void* from, void* to, std::size_t count, int type, int operation,
                    Communicator* comm, CUstream_st* stream) = nullptr;
  int (*reduce_scatter)(const void* from, void* to, std::size_t count, int type, int operation,
                        Communicator* comm, CUstream_st* stream) = nullptr;
  // Newer than the oldest that is taken: may be null.
  const char* (*get_last_error)(Communicator* comm) = nullptr;

  int version = 0;
  std::string path;
};

// The library, which stays for as long as the process does, or why not: Error{unsupported}'s reason.
// `path` as NcclOptions::library.
Verdict open(const std::string& path, Library& library);

std::string version_text(int version);  // "2.27.3"

}  // namespace kerf::comm::nccl
