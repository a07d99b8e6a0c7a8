// JSON of settings and tactics, which the preferred lists' file and the tuner's cache share. For this
// folder's sources only.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "kerf/tactics/setting.h"

namespace kerf::tactics::internal {

using Json = nlohmann::ordered_json;

Json json_of(const Setting& setting);
Json json_of(op::Tactic tactic);

// Error{usage} for a value that is missing, of another type or out of range.
Setting setting_from(const Json& json);
op::Tactic tactic_from(const Json& json);
op::Arithmetic arithmetic_from(const Json& json);
std::int64_t number_from(const Json& object, const char* key, std::int64_t low);
// The value of a key; Error{usage} where there is none.
const Json& at(const Json& object, const char* key);
// The same, where the value has to be an array.
const Json& array_at(const Json& object, const char* key);

// A whole file of at most 16 MiB, and its JSON object of the given format and version 1. Error{usage}, led by
// the path: not a regular file, unreadable, not JSON, another format.
Json read_file(const std::filesystem::path& path, const char* format);
Json parse(const std::string& text, const char* format);
// Whole or not at all. Error{usage}.
void write_file(const std::filesystem::path& path, const Json& json);

// Runs `step`; an Error from it is led by `where: `.
void in_context(const std::string& where, const std::function<void()>& step);

}  // namespace kerf::tactics::internal
