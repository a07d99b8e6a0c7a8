// What a test program has allocated at most, by operator new and in huge pieces. For one file of a program
// only: it replaces operator new and delete.
#pragma once

#include <malloc.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#include "kerf/tensor/storage.h"

namespace kerf::test {
inline tensor::Usage heap;  // of this process, through operator new
}  // namespace kerf::test

// Not inline: the compiler would see malloc meet delete and call it a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* block = std::malloc(bytes == 0 ? 1 : bytes);
  if (block == nullptr) throw std::bad_alloc();
  kerf::test::heap.add(static_cast<std::int64_t>(::malloc_usable_size(block)));
  return block;
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  void* block = std::malloc(bytes == 0 ? 1 : bytes);
  if (block != nullptr) kerf::test::heap.add(static_cast<std::int64_t>(::malloc_usable_size(block)));
  return block;
}
[[gnu::noinline]] void operator delete(void* block) noexcept {
  if (block != nullptr) kerf::test::heap.remove(static_cast<std::int64_t>(::malloc_usable_size(block)));
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* block, std::size_t /*bytes*/) noexcept {
  operator delete(block);
}
