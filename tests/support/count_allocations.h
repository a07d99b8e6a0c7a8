// Replaces operator new and delete of a test program to count allocations (allocations.h). For one file of a
// program only: they are definitions.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

#include "tests/support/allocations.h"

// Not inline: the compiler would see malloc meet delete and call it a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++kerf::test::allocations;
  kerf::test::all_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* block = std::malloc(bytes == 0 ? 1 : bytes)) return block;
  throw std::bad_alloc();
}
// std::stable_sort asks like this; it must meet the delete below, not another allocator's.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  ++kerf::test::allocations;
  kerf::test::all_allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t /*bytes*/) noexcept { std::free(block); }
