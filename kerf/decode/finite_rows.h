// Output rows that hold no numbers: sound weights and rows can still overflow, and nobody should have to find
// that in a digest.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#pragma GCC visibility push(default)
namespace kerf::decode {

// What to warn of bf16 rows [T, hidden] (raw bits), hidden at least 1; empty where all values are finite.
std::string not_finite_text(std::span<const std::uint16_t> rows, std::int64_t hidden);

}  // namespace kerf::decode
#pragma GCC visibility pop
