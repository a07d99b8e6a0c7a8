// How the W4A4 kernel cuts its work: every unit of every tile once, GEMM1 first; every segment in one part,
// and parts that are nodes of the sum's tree. Arithmetic alone, so it is tested where there is no GPU.
#include "kerf/op/sm90/w4a4_shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace kerf::op::sm90::w4a4 {
namespace {

constexpr std::array widths = {64,   128,  192,  512,  576,  1024, 1536,  2560,  3072, 3584,
                               4096, 5120, 6144, 7168, 8192, 9216, 16384, 32768, 65536};

TEST(W4a4Shape, PartsAreNodesThatMakeUpTheSum) {
  for (const int k : widths)
    for (const Cut cut : {Cut::shared, Cut::alone}) {
      const Gemm g = gemm_of(k, 4096, cut);
      EXPECT_EQ(warpgroups % g.parts, 0);
      int next = 0;
      int used = 0;
      for (int part = 0; part < g.parts; ++part) {
        if (g.part_begin(part) >= g.part_end(part)) continue;
        EXPECT_EQ(g.part_begin(part), next);
        next = g.part_end(part);
        ++used;
        EXPECT_TRUE(numeric::is_node(g.segments, g.part_begin(part), next - g.part_begin(part)))
            << "K " << k << ", part " << part;
      }
      EXPECT_EQ(next, g.segments) << "K " << k;
      EXPECT_EQ(used, g.parts_in_use);
      EXPECT_TRUE(used <= 4 && (used != 2 || g.parts == 2)) << "what joins parts knows 2, 3 and 4";
      int chunks = 0;
      for (int s = 0; s < g.segments; ++s) chunks += g.chunks(s);
      EXPECT_EQ(chunks, divided_up(k, chunk_values));
    }
}

TEST(W4a4Shape, TheStackHoldsWhatWaits) {
  for (const int k : widths)
    for (const Cut cut : {Cut::shared, Cut::alone}) {
      const Gemm g = gemm_of(k, 4096, cut);
      const int segments = std::min(g.segments, g.part_segments);
      for (int index = 0; index + 1 < segments; ++index)  // what add() leaves behind segment `index`
        EXPECT_LE(std::popcount(static_cast<unsigned>(index + 1)), stack_levels(g)) << "K " << k;
    }
}

TEST(W4a4Shape, SharedMemoryHoldsTwoChunksAWarpgroupAtLeast) {
  for (const int k : widths)
    for (const Cut cut : {Cut::shared, Cut::alone}) {
      const int levels = stack_levels(gemm_of(k, 4096, cut));
      for (const SharedPlan& p : {shared_plan<1>(levels), shared_plan<2>(levels)}) {
        EXPECT_GE(p.stages, 2) << "K " << k;
        EXPECT_LE(p.stages, most_stages);
        EXPECT_LE(p.bytes, most_shared);
      }
    }
}

TEST(W4a4Shape, ItemsAreEveryUnitOnceAndGemm1sComeFirst) {
  for (const auto& [hidden, inter] :
       {std::pair{4096, 4096}, {4096, 512}, {128, 64}, {640, 576}, {1536, 192}}) {
    Gemm gemm[4];
    for (const Cut cut : {Cut::shared, Cut::alone}) {
      const int at = cut == Cut::alone ? 2 : 0;
      gemm[at] = gemm_of(hidden, 2 * inter, cut);
      gemm[at + 1] = gemm_of(inter, hidden, cut);
    }
    for (const int blocks : {1, 7, 132})
      for (const int live : {0, 1, 8, 59, 226, 1500}) {
        std::map<std::tuple<int, int, int>, int> seen;  // stage, tile, unit
        int stage = 0;
        int n = 0;
        for (Item item; (item = item_of(gemm, live, blocks, n)).kind >= 0; ++n) {
          EXPECT_GE(item.kind % 2, stage);
          stage = item.kind % 2;
          ASSERT_LT(item.tile, live);
          const Gemm& g = gemm[item.kind];
          for (int i = 0; i < warpgroups / g.parts; ++i)
            if (item.first_unit + i < g.units) ++seen[{stage, item.tile, item.first_unit + i}];
        }
        EXPECT_EQ(seen.size(), static_cast<std::size_t>(live * (gemm[0].units + gemm[1].units)));
        for (const auto& [what, times] : seen) ASSERT_EQ(times, 1);
        EXPECT_LT(item_of(gemm, live, blocks, n + 1000).kind, 0);
      }
  }
}

}  // namespace
}  // namespace kerf::op::sm90::w4a4
