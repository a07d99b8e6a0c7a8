// JSON of settings and tactics, which the preferred lists' file and the tuner's cache share: read strictly
// (kerf/base/json.h), written in a fixed order. For this folder's sources only.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "kerf/tactics/setting.h"

namespace kerf::tactics::internal {

using Parsed = nlohmann::json;        // what was read
using Json = nlohmann::ordered_json;  // what is written

Json json_of(const layout::ExpertsShape& shape);
Json json_of(const Setting& setting);
Json json_of(op::Tactic tactic);

// Error{usage}, with the value cut to a line, for one that is missing, of another type or out of range.
Setting setting_from(const Parsed& json);
layout::ExpertsShape shape_from(const Parsed& json);
op::Tactic tactic_from(const Parsed& json);
op::Arithmetic arithmetic_from(const Parsed& json);
std::int64_t number_from(const Parsed& object, const char* key, std::int64_t low);
std::string text_from(const Parsed& object, const char* key);
// The value of a key; Error{usage} where there is none.
const Parsed& at(const Parsed& object, const char* key);
// The same, where the value has to be an array.
const Parsed& array_at(const Parsed& object, const char* key);

// Nothing is there (nor behind a symlink): not the same as a file that cannot be looked at. Never throws.
bool absent(const std::filesystem::path& path);
// A whole file of at most 16 MiB. Error{usage}, led by the path: not a regular file, unreadable, too large.
std::string read_text(const std::filesystem::path& path);
// The JSON object of the given format in a text. Error{usage}, led by the file's name: not JSON, another
// format.
Parsed parse(const std::string& text, const std::string& file, const char* format);
// Error{usage} for another version than 1.
void check_version(const Parsed& json);
// Whole or not at all. Error{usage}.
void write_file(const std::filesystem::path& path, const Json& json);

// Runs `step`; an Error from it is led by `where: `.
void in_context(const std::string& where, const std::function<void()>& step);

}  // namespace kerf::tactics::internal
