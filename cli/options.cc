#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

namespace kerf::cli {

namespace {

CLI::Validator decimal(std::uint64_t low, std::uint64_t high) {
  return {[low, high](std::string& text) -> std::string {
            const bool digits = !text.empty() && std::all_of(text.begin(), text.end(),
                                                             [](char c) { return c >= '0' && c <= '9'; });
            std::uint64_t value = 0;
            const bool fits =
                std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc();
            if (!digits || !fits || value < low || value > high)
              return fmt::format("got '{}', wanted a whole number from {} to {}", text, low, high);
            text = std::to_string(value);
            return {};
          },
          "", "whole number"};
}

}  // namespace

CLI::Validator whole_number(std::int64_t low, std::int64_t high) {
  return decimal(static_cast<std::uint64_t>(low), static_cast<std::uint64_t>(high));
}

CLI::Validator seed_number() { return decimal(0, std::numeric_limits<std::uint64_t>::max()); }

CLI::Validator seconds_number(double high) {
  return {[high](const std::string& text) -> std::string {
            double value = 0;
            const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
            if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
                std::signbit(value) || value > high)
              return fmt::format("got '{}', wanted a number from 0 to {:.0f}", text, high);
            return {};
          },
          "", "number"};
}

CLI::Validator not_empty() {
  return {[](const std::string& text) -> std::string {
            return text.empty() ? "got nothing, wanted a value" : "";
          },
          "", "not empty"};
}

}  // namespace kerf::cli
