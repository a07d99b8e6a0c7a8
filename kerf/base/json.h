// JSON files that others wrote: parsed strictly (no key twice, bounded depth), and values shown in messages.
// For sources only: nlohmann_json stays out of the public headers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kerf/base/error.h"

namespace kerf {

// An Error of `kind` that names `file` for text that is not JSON, for an object with one key twice and for
// nesting beyond 64.
nlohmann::json parse_json(const std::string& text, const std::string& file,
                          ErrorKind kind = ErrorKind::checkpoint);

// A value as a message shows it: its text, cut, and what it is.
std::string got(const nlohmann::json& value);

}  // namespace kerf
