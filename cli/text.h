// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kerf::cli {

std::string bytes_text(std::int64_t bytes);                         // "1.50 GiB"
std::string ranges_text(const std::vector<std::int64_t>& numbers);  // ascending: "0-3, 7"; "none" for none
std::string counted(std::int64_t count, std::string_view one);      // "1 shard", "2 shards"

// Widths of slices, those that are equal together: "64", "128 (4 ranks) and 64 (4 ranks)".
std::string widths_text(const std::vector<std::int64_t>& slices);

// The most numbers that one option lists.
inline constexpr std::int64_t most_listed = 65'536;

// "0-3,7" as numbers, in the order written, without repeats. Error{usage} that names `option` and the piece:
// nothing at all, no number, a range that runs backwards, more than most_listed numbers.
std::vector<std::int64_t> parse_ranges(const std::string& text, const std::string& option);

}  // namespace kerf::cli
