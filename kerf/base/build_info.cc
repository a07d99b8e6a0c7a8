#include "kerf/base/build_info.h"

namespace kerf {

std::string_view version() { return KERF_VERSION; }

std::string_view compiler() { return KERF_COMPILER; }

std::string_view build_type() { return KERF_BUILD_TYPE; }

std::span<const BuildOption> build_options() {
  static constexpr std::array<BuildOption, 7> table = {{
      {"KERF_BUILD_TESTS", "build the tests", KERF_OPTION_TESTS},
      {"KERF_BUILD_BENCH", "build the benchmarks", KERF_OPTION_BENCH},
      {"KERF_WERROR", "treat warnings as errors", KERF_OPTION_WERROR},
      {"KERF_SANITIZE", "sanitizers: empty, address (with undefined) or thread", KERF_OPTION_SANITIZE},
      {"KERF_CUDA", "NVIDIA devices (kept for a later version)", KERF_OPTION_CUDA},
      {"KERF_MPI", "ranks as MPI processes (kept for a later version)", KERF_OPTION_MPI},
      {"KERF_NCCL", "device groups over NCCL (kept for a later version)", KERF_OPTION_NCCL},
  }};
  return table;
}

std::span<const Part> optional_parts() {
  static const std::array<Part, 3> table = {{
      {"cuda", "device",
       Reason{ErrorKind::device,
              "not built: configure with -DKERF_CUDA=ON (this version has no CUDA backend yet)"}},
      {"mpi", "group",
       Reason{ErrorKind::unsupported,
              "not built: configure with -DKERF_MPI=ON (this version has no MPI group yet)"}},
      {"nccl", "group",
       Reason{ErrorKind::unsupported,
              "not built: configure with -DKERF_NCCL=ON (this version has no NCCL group yet)"}},
  }};
  return table;
}

}  // namespace kerf
