#include "cli/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "kerf/kerf.h"

namespace kerf::cli {

namespace {

constexpr std::int64_t most_listed = 1 << 20;  // numbers that one range may stand for

// A number >= 0 and nothing else.
bool parse(std::string_view text, std::int64_t& value) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc() && end == text.data() + text.size() && value >= 0;
}

}  // namespace

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array<const char*, 5> units = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.2f} {}", value, units[unit]);
}

std::string ranges_text(const std::vector<std::int64_t>& numbers) {
  if (numbers.empty()) return "none";
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(numbers[i]);
    if (last > i) text += (last == i + 1 ? ", " : "-") + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

std::vector<std::int64_t> parse_ranges(const std::string& text, const std::string& option) {
  std::vector<std::int64_t> numbers;
  if (text.empty()) return numbers;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view piece = std::string_view(text).substr(begin, end - begin);
    const std::size_t dash = piece.find('-');
    std::int64_t first = 0;
    std::int64_t last = 0;
    const bool sound = dash == std::string_view::npos
                           ? parse(piece, first) && parse(piece, last)
                           : parse(piece.substr(0, dash), first) && parse(piece.substr(dash + 1), last);
    if (!sound || last < first || last - first >= most_listed)
      throw Error(ErrorKind::usage, fmt::format("{}: '{}' is not a number or a range such as 0-3 (in '{}')",
                                                option, piece, text));
    for (std::int64_t n = first; n <= last; ++n)
      if (std::find(numbers.begin(), numbers.end(), n) == numbers.end()) numbers.push_back(n);
    begin = end + 1;
  }
  return numbers;
}

}  // namespace kerf::cli
