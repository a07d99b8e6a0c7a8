// What options may be given: the checks that all commands share. A check refuses before any work is done, and
// its words say what was got and what is wanted; CLI11 puts the option's name before them.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>

namespace kerf::cli {

// The most that a size of a model may be on the command line.
inline constexpr std::int64_t most_size = std::int64_t{1} << 40;
// The most layers, and ranks of a plan.
inline constexpr std::int64_t most_count = std::int64_t{1} << 20;

// Decimal digits alone, low to high. These are for transform(): they drop leading zeros, which CLI11 would
// read as octal.
CLI::Validator whole_number(std::int64_t low, std::int64_t high);
// The same for all 64 bits without a sign.
CLI::Validator seed_number();

// A decimal number from 0 to `high`: no infinity, no NaN. For check().
CLI::Validator seconds_number(double high);

// For check().
CLI::Validator not_empty();

}  // namespace kerf::cli
