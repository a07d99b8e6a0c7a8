// Every environment variable that kerf reads, in one table (`kerf env` prints it). Values are read by whoever
// builds a context, at start; nothing below reads the environment, and nothing reads it while a step runs.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace kerf {

// One of them.
struct EnvVariable {
  const char* name;
  const char* meaning;
  const char* fallback;  // what holds when it is unset
};

inline constexpr std::array<EnvVariable, 7> env_table = {{
    {"KERF_THREADS", "worker threads of this process, shared by its local ranks", "all cores"},
    {"KERF_ISA", "instruction set of the CPU op: scalar, avx2, avx512, neon, dotprod",
     "the best this CPU has"},
    {"KERF_TIMEOUT", "seconds that a collective waits for a rank", "60"},
    {"KERF_NCCL_LIBRARY", "file of NCCL's library", "libnccl.so.2, where the loader finds it"},
    {"KERF_RENDEZVOUS_PORT", "port of MASTER_ADDR at which the ranks of --group nccl meet",
     "MASTER_PORT + 1"},
    {"KERF_RENDEZVOUS_FILE", "file, on a disk that all ranks share, at which they meet instead", "none"},
    {"KERF_JOB_ID", "words that all ranks of a job share, and no other job that meets there",
     "the launcher's number of it"},
}};

// The variable's value, nothing where it is unset or empty. Error{bug} for a name outside the table.
std::optional<std::string> env_value(std::string_view name);

// The variable as a whole number from 1 to `most`, in decimal digits; nothing where it is unset or empty.
// Error{usage} that names the variable for anything else, Error{bug} as env_value().
std::optional<int> env_positive(std::string_view name, int most);

}  // namespace kerf
#pragma GCC visibility pop
