// Which kerf these headers belong to: the one place where the version stands (CMakeLists.txt reads it here).
// Headers and library that do not fit are found when a program is linked or loaded, not later: every file
// that includes kerf/kerf.h refers to a symbol whose name has the version.
#pragma once

#include <string_view>

#pragma GCC visibility push(default)
namespace kerf {

// The parts of headers_version.
inline constexpr int version_major = 0;
inline constexpr int version_minor = 1;
inline constexpr int version_patch = 0;

// "0.1.0": of the headers that a program was compiled with. version() of build_info.h is the library's.
inline constexpr std::string_view headers_version = "0.1.0";

// Before 1.0.0 the library's interface changes with the minor version.
namespace v0_1 {
extern const int library_of_these_headers;  // there in a library of this version alone
[[gnu::used, gnu::retain]] inline const int* const wanted_library = &library_of_these_headers;
}  // namespace v0_1

}  // namespace kerf
#pragma GCC visibility pop
