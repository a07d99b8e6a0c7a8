#include "cli/rate.h"

#include <fmt/format.h>

#include <cmath>

namespace kerf::cli {

namespace {

constexpr double shortest = 0.05;    // seconds: before them a rate would be a guess
constexpr double longest = 360'000;  // seconds left that are worth telling

}  // namespace

std::string rate_text(bool bytes, std::int64_t done, std::int64_t total, double seconds) {
  if (done <= 0 || done > total || seconds < shortest) return {};
  std::string out;
  if (bytes) out = fmt::format("{:.2f} GiB/s", static_cast<double>(done) / seconds / (1 << 30));
  if (done == total) return out;
  const double left = static_cast<double>(total - done) * seconds / static_cast<double>(done);
  if (left > longest) return out;
  const auto rounded = static_cast<std::int64_t>(std::ceil(left));
  return fmt::format("{}{}{}:{:02} left", out, out.empty() ? "" : ", ", rounded / 60, rounded % 60);
}

}  // namespace kerf::cli
