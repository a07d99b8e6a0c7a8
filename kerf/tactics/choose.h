// Choosing by time: how candidates are timed, who wins, and which token counts share a choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kerf/base/function_ref.h"

#pragma GCC visibility push(default)
namespace kerf::tactics {

// Times closer than this part of the shorter one are a tie: it is more than repeated timings of one tactic
// differ on an idle machine.
inline constexpr double tie_tolerance = 0.03;

// The first of `seconds` that no other beats by more than the tolerance: the least t, then the first that is
// at most (1 + tolerance) * t. So a tie goes to the one that is listed first. Error{bug} for an empty list.
std::size_t best_of(std::span<const double> seconds, double tolerance = tie_tolerance);

// All places, best first: best_of(), again and again, of what is left. Of an empty list none.
std::vector<std::size_t> ranked(std::span<const double> seconds, double tolerance = tie_tolerance);

// Least seconds of each of `count` candidates, run(0) to run(count - 1): one run that does not count, then
// rounds in which each candidate runs once (so that what slows a machine down for a while slows all of them),
// at least one round and at most 50, until `budget` seconds are spent, the first run's among them. What run()
// throws is thrown.
std::vector<double> time_candidates(std::size_t count, double budget, FunctionRef<void(std::size_t)> run);

// Token counts that share a choice: 1, 2, 4, ... and the largest count, ascending. bucket_of() is the first
// that is no smaller than `tokens` (1 for 0 tokens); tokens <= max_tokens, max_tokens >= 1. first_in() is the
// least count of a bucket.
std::vector<std::int64_t> buckets(std::int64_t max_tokens);
std::int64_t bucket_of(std::int64_t tokens, std::int64_t max_tokens);
std::int64_t first_in(std::int64_t bucket);

}  // namespace kerf::tactics
#pragma GCC visibility pop
