#include "kerf/base/build_info.h"

#include <array>

#include "kerf/base/version.h"

namespace kerf {

const int v0_1::library_of_these_headers = version_patch;

std::string_view version() { return headers_version; }

std::string_view compiler() { return KERF_COMPILER; }

std::string_view build_type() { return KERF_BUILD_TYPE; }

std::span<const BuildOption> build_options() {
  static constexpr std::array<BuildOption, 7> table = {{
      {"KERF_BUILD_TESTS", "build the tests", KERF_OPTION_TESTS},
      {"KERF_BUILD_BENCH", "build the benchmarks", KERF_OPTION_BENCH},
      {"KERF_PORTABLE", "without Highway, oneTBB, spdlog, OpenSSL, rapidcheck: scalar CPU kernels",
       KERF_OPTION_PORTABLE},
      {"KERF_WERROR", "treat warnings as errors", KERF_OPTION_WERROR},
      {"KERF_SANITIZE", "sanitizers: empty, address (with undefined) or thread", KERF_OPTION_SANITIZE},
      {"KERF_CUDA", "NVIDIA devices (Hopper)", KERF_OPTION_CUDA},
      {"KERF_MPI", "ranks as MPI processes, on one host or several", KERF_OPTION_MPI},
  }};
  return table;
}

}  // namespace kerf
