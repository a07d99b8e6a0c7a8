#include "cli/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <string_view>

#include "kerf/kerf.h"

namespace kerf::cli {

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

std::string widths_text(const std::vector<std::int64_t>& slices) {
  std::vector<std::string> widths;
  for (auto at = slices.begin(); at != slices.end();) {
    const auto next = std::find_if(at, slices.end(), [&](std::int64_t width) { return width != *at; });
    widths.push_back(at == slices.begin() && next == slices.end()
                         ? std::to_string(*at)
                         : fmt::format("{} ({})", *at, counted(next - at, "rank")));
    at = next;
  }
  return widths.empty() ? "none" : fmt::format("{}", fmt::join(widths, " and "));
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

std::string counted(std::int64_t count, std::string_view one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

std::vector<std::int64_t> parse_ranges(const std::string& text, const std::string& option) {
  std::vector<std::int64_t> numbers;
  std::set<std::int64_t> seen;
  const auto number = [&](std::string_view digits, std::string_view piece) {
    std::int64_t value = 0;
    const char* const end = digits.data() + digits.size();
    const auto [last, code] = std::from_chars(digits.data(), end, value);
    if (digits.empty() || digits[0] == '-' || code == std::errc::invalid_argument || last != end)
      throw Error(ErrorKind::usage, fmt::format("{}: '{}' is not a number or a range such as 0-3 (in '{}')",
                                                option, piece, text));
    if (code != std::errc())
      throw Error(ErrorKind::usage, fmt::format("{}: {} is too large a number", option, digits));
    return value;
  };
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view piece = std::string_view(text).substr(begin, end - begin);
    const std::size_t dash = piece.find('-', 1);
    const std::int64_t first = number(piece.substr(0, dash), piece);
    const std::int64_t last = dash == std::string_view::npos ? first : number(piece.substr(dash + 1), piece);
    if (last < first)
      throw Error(ErrorKind::usage, fmt::format("{}: '{}' runs backwards (in '{}')", option, piece, text));
    if (last - first >= most_listed)
      throw Error(ErrorKind::usage, fmt::format("{}: '{}' is too large, wanted at most {} numbers", option,
                                                piece, most_listed));
    for (std::int64_t left = last - first; left >= 0; --left)  // counts down: last + 1 may not exist
      if (const std::int64_t n = last - left; seen.insert(n).second) numbers.push_back(n);
    if (numbers.size() > most_listed)
      throw Error(ErrorKind::usage,
                  fmt::format("{}: the list is too large, wanted at most {} numbers", option, most_listed));
    begin = end + 1;
  }
  return numbers;
}

}  // namespace kerf::cli
