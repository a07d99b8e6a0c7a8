// JSON files of a model directory: parsed strictly (no key twice, bounded depth), and values shown in
// messages. For this folder's sources only: nlohmann_json stays out of the public headers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kerf::checkpoint::internal {

// Error{checkpoint} that names `file` for text that is not JSON, for an object with one key twice and for
// nesting beyond 64.
nlohmann::json parse_json(const std::string& text, const std::string& file);

// A value as a message shows it: its text, cut, and what it is.
std::string got(const nlohmann::json& value);

}  // namespace kerf::checkpoint::internal
