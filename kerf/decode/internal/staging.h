// How many converted experts go to a device at once, and what the page-locked memory for that takes.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kerf::decode::internal {

inline constexpr std::int64_t staging_bytes = std::int64_t{128} << 20;  // of each of two slots

// Of `count` experts, of `bytes` bytes together.
constexpr std::int64_t staged_at_once(std::int64_t count, std::int64_t bytes) {
  return std::clamp<std::int64_t>(staging_bytes / std::max<std::int64_t>(bytes / count, 1), 1, count);
}

// Experts that both slots have room for in the end. They are filled in turn; the last turn may be short.
constexpr std::int64_t staged_in_all(std::int64_t count, std::int64_t bytes) {
  const std::int64_t once = staged_at_once(count, bytes);
  return once + std::min(once, count - once);
}

// Slots that are used.
constexpr std::int64_t staging_slots(std::int64_t count, std::int64_t bytes) {
  return staged_at_once(count, bytes) < count ? 2 : 1;
}

}  // namespace kerf::decode::internal
