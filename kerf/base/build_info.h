// How this library was built: version, compiler, options, and the parts that can be absent, each with the
// reason where it is.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "kerf/base/error.h"

namespace kerf {

std::string_view version();     // "0.1.0"
std::string_view compiler();    // "GNU 12.2.0"
std::string_view build_type();  // "Release"

// Every CMake option, in one table (`kerf env` prints it).
struct BuildOption {
  std::string_view name;
  std::string_view meaning;
  std::string_view value;  // what this library was configured with
};
std::span<const BuildOption> build_options();

// A part that a build may lack. The reason is what every refusal of the part says.
struct Part {
  std::string_view name;
  std::string_view what;  // "device" or "group"
  Verdict absent;         // nothing: it is here
};
std::span<const Part> optional_parts();

}  // namespace kerf
