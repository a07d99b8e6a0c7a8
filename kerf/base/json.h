// JSON files that others wrote: parsed strictly (no key twice, bounded depth), and values shown in messages.
// For sources only: nlohmann_json stays out of the public headers.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kerf/base/error.h"

namespace kerf {

// What a parsed text may take in memory, beside the text itself: some 80,000 small objects.
inline constexpr std::int64_t most_tree_bytes = std::int64_t{36} << 20;
// Of one string in it.
inline constexpr std::int64_t most_json_token = std::int64_t{16} << 20;
inline constexpr int most_json_depth = 64;

// An Error of `kind` that names `file` for text that is not JSON, for an object with one key twice, for
// nesting beyond most_json_depth, and for more values than most_tree_bytes have room for.
nlohmann::json parse_json(std::string_view text, const std::string& file,
                          ErrorKind kind = ErrorKind::checkpoint);

// The same for text as Python's json module writes it: NaN, Infinity and -Infinity as values are numbers that
// are not finite. Takes another copy of the text where there is one of them.
nlohmann::json parse_python_json(std::string_view text, const std::string& file,
                                 ErrorKind kind = ErrorKind::checkpoint);

// For another parser of such text: strings of as many bytes instead of those words, outside strings; and text
// that was made of what the parser gave with the words back in their places.
std::string with_stand_ins(std::string_view text);
std::string without_stand_ins(std::string_view text);

// A value as text: JSON, and a number that is not finite as Python writes it. Bytes that are not UTF-8 are
// replaced.
std::string json_text(const nlohmann::json& value);

// A value as a message shows it: its text, cut, and what it is.
std::string got(const nlohmann::json& value);

}  // namespace kerf
