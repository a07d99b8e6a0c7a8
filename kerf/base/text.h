// Text that others wrote, made fit for a terminal and for JSON: what would steer a terminal, end a line or
// turn the direction of the text around it is spelt out, and names without end are cut.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace kerf {

// One line of text for a terminal: control characters (C0, DEL, C1), line and paragraph separators,
// characters that set the direction of text, and bytes that are not UTF-8 as \xNN, byte by byte.
std::string printable(std::string_view text);

// Text of at most `most` bytes as it is; of more, the first of them (whole UTF-8 characters) and how long it
// is: "abc... (300 bytes)".
std::string cut(std::string_view text, std::size_t most = 200);

// A name or value from a file as a message can carry it: cut, and printable.
std::string shown(std::string_view name);

// JSON text with the same characters as \uNNNN, which say the same in it. `json` is UTF-8 in which they stand
// in strings alone, and its line feeds are those between values.
std::string plain_json(std::string_view json);

}  // namespace kerf
#pragma GCC visibility pop
