// Lines of the program's log on standard error: "kerf: warning: text". Any thread may write one.
#pragma once

#include <string_view>

#include "kerf/kerf.h"

namespace kerf::cli {

// Where the lines of a Log go.
Log::Sink stderr_sink();

// A line at the level that the library's log does not have.
void write_error(std::string_view text);

}  // namespace kerf::cli
