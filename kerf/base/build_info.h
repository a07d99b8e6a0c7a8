// How this library was built: version, compiler, options.
#pragma once

#include <span>
#include <string_view>

#pragma GCC visibility push(default)
namespace kerf {

// Texts as the build gave them; they live as long as the library is loaded.
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

}  // namespace kerf
#pragma GCC visibility pop
