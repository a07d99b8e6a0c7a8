// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kerf::cli {

std::string bytes_text(std::int64_t bytes);                         // "1.50 GiB"
std::string ranges_text(const std::vector<std::int64_t>& numbers);  // ascending: "0-3, 7"; "none" for none
// "0-3,7" as numbers, in the order written, without repeats. Error{usage} that names `option` and the piece.
std::vector<std::int64_t> parse_ranges(const std::string& text, const std::string& option);

}  // namespace kerf::cli
