// The text of kerf/tactics/measured.json, which the build puts into a source file (CMakeLists.txt).
#pragma once

#include <string_view>

namespace kerf::tactics::internal {

extern const std::string_view measured_json;

}  // namespace kerf::tactics::internal
