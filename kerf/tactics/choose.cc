#include "kerf/tactics/choose.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>

#include "kerf/base/format.h"

namespace kerf::tactics {

std::size_t best_of(std::span<const double> seconds, double tolerance) {
  if (seconds.empty()) fail(ErrorKind::bug, "no candidate to choose from");
  const double least = *std::ranges::min_element(seconds);
  const auto within = [&](double t) { return t <= least * (1 + tolerance); };
  return static_cast<std::size_t>(std::ranges::find_if(seconds, within) - seconds.begin());
}

std::vector<std::size_t> ranked(std::span<const double> seconds, double tolerance) {
  std::vector<double> left(seconds.begin(), seconds.end());
  std::vector<std::size_t> places(seconds.size());
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = i;
  std::vector<std::size_t> out;
  while (!left.empty()) {
    const auto best = static_cast<std::ptrdiff_t>(best_of(left, tolerance));
    out.push_back(places[static_cast<std::size_t>(best)]);
    left.erase(left.begin() + best);
    places.erase(places.begin() + best);
  }
  return out;
}

std::vector<double> time_candidates(std::size_t count, double budget, FunctionRef<void(std::size_t)> run) {
  using Clock = std::chrono::steady_clock;
  constexpr int most_rounds = 50;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  std::vector<double> least(count, std::numeric_limits<double>::infinity());
  const auto start = Clock::now();
  for (std::size_t i = 0; i < count; ++i) run(i);
  for (int round = 0; round < most_rounds && (round == 0 || since(start) < budget); ++round) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto begun = Clock::now();
      run(i);
      least[i] = std::min(least[i], since(begun));
    }
  }
  return least;
}

std::vector<std::int64_t> buckets(std::int64_t max_tokens) {
  std::vector<std::int64_t> out;
  for (std::int64_t b = 1; b < max_tokens; b *= 2) out.push_back(b);
  out.push_back(max_tokens);
  return out;
}

std::int64_t bucket_of(std::int64_t tokens, std::int64_t max_tokens) {
  const auto rounded = std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(tokens, 1)));
  return std::min(static_cast<std::int64_t>(rounded), max_tokens);
}

std::int64_t first_in(std::int64_t bucket) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(bucket))) / 2 + 1;
}

}  // namespace kerf::tactics
