// What runs at every decode step allocates nothing: this program counts its allocations.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "kerf/routing/metadata.h"
#include "kerf/routing/router.h"

namespace {
std::atomic<long> allocations{0};
}  // namespace

// Never inlined: the compiler would take the pair of new and free() for a mismatch. The nothrow form belongs
// to the set, since a sanitizer's own would not match the delete below.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (void* block = operator new(size, std::nothrow)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept { std::free(block); }

namespace kerf::routing {
namespace {

TEST(Allocation, TheCounterCounts) {
  const long before = allocations;
  const std::vector<int> v(100);
  EXPECT_GT(allocations, before);
}

TEST(Allocation, SelectingAndWritingMetadataDoNone) {
  tensor::HostMemory memory;
  const MetadataShape shape{.tokens = 5, .top_k = 4, .experts = 64, .offset = 16, .local = 32, .tile = 8};
  const MetadataBuffer buffer(memory, metadata_words(shape));
  std::vector<float> logits(5 * 64), weights(5 * 4);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 37) % 101) / 32.0F;
  const std::vector<float> bias(64, 0.125F);
  std::vector<std::int32_t> ids(5 * 4);
  for (int m = 0; m < 10; ++m) {
    Router router{.method = static_cast<Method>(m), .experts = 64, .top_k = 4};
    if (router.method == Method::llama4) continue;
    if (router.method == Method::deepseek_v3) {
      router.n_group = 8;
      router.topk_group = 4;
    }
    const bool biased = router.method == Method::deepseek_v3 || router.method == Method::minimax2;
    const long before = allocations;
    select(router, logits, biased ? std::span<const float>(bias) : std::span<const float>(), ids, weights);
    const Verdict verdict = check_ids(ids, 4, 64);
    write_metadata(shape, ids, weights, buffer.view(shape));
    const long after = allocations;
    EXPECT_EQ(after, before) << name(router.method);
    EXPECT_EQ(verdict, std::nullopt);
  }
}

}  // namespace
}  // namespace kerf::routing
