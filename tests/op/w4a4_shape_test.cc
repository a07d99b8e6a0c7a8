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

constexpr std::array all_cuts = {Cut::shared, Cut::alone, Cut::spread};

TEST(W4a4Shape, PartsAreNodesThatMakeUpTheSum) {
  for (const int k : widths)
    for (const Cut cut : all_cuts) {
      const Gemm g = gemm_of(k, 4096, cut);
      EXPECT_EQ(warpgroups % g.parts, 0);
      EXPECT_LE(g.block_units * g.parts, warpgroups);
      int next = 0;
      int used = 0;
      for (int part = 0; part < g.parts * g.sides; ++part) {
        if (g.part_begin(part) >= g.part_end(part)) continue;
        EXPECT_EQ(g.part_begin(part), next);
        next = g.part_end(part);
        ++used;
        EXPECT_TRUE(numeric::is_node(g.segments, g.part_begin(part), next - g.part_begin(part)))
            << "K " << k << ", part " << part;
      }
      EXPECT_EQ(next, g.segments) << "K " << k;
      EXPECT_EQ(used, g.parts_in_use);
      int on_sides = 0;
      for (int side = 0; side < g.sides; ++side) {
        const int in_use = g.side_parts_in_use(side);
        on_sides += in_use;
        EXPECT_TRUE(in_use >= 1 && in_use <= g.parts) << "what joins parts knows 2, 3 and 4";
        // Both sides are nodes, so that each may be added up by itself.
        const int begin = g.part_begin(side * g.parts);
        EXPECT_TRUE(numeric::is_node(g.segments, begin, g.part_end(side * g.parts + in_use - 1) - begin));
      }
      EXPECT_EQ(on_sides, used);
      int chunks = 0;
      for (int s = 0; s < g.segments; ++s) chunks += g.chunks(s);
      EXPECT_EQ(chunks, divided_up(k, chunk_values));
    }
}

TEST(W4a4Shape, TheStackHoldsWhatWaits) {
  for (const int k : widths)
    for (const Cut cut : all_cuts) {
      const Gemm g = gemm_of(k, 4096, cut);
      const int segments = std::min(g.segments, g.part_segments);
      for (int index = 0; index + 1 < segments; ++index)  // what add() leaves behind segment `index`
        EXPECT_LE(std::popcount(static_cast<unsigned>(index + 1)), stack_levels(g)) << "K " << k;
    }
}

TEST(W4a4Shape, SharedMemoryHoldsTwoChunksAWarpgroupAtLeast) {
  for (const int k : widths)
    for (const Cut cut : all_cuts) {
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
    Gemm gemm[2 * cuts];
    for (const Cut cut : all_cuts) {
      gemm[kind_of(cut, 0)] = gemm_of(hidden, 2 * inter, cut);
      gemm[kind_of(cut, 1)] = gemm_of(inter, hidden, cut);
    }
    for (const int blocks : {1, 7, 132})
      for (const int live : {0, 1, 8, 59, 226, 1500})
        for (const bool spread : {false, true}) {
          std::map<std::tuple<int, int, int, int>, int> seen;  // stage, tile, unit, side
          int stage = 0;
          int n = 0;
          std::size_t wanted = 0;
          for (int s = 0; s < 2; ++s)
            wanted += static_cast<std::size_t>(live * gemm[s].units *
                                               (spread ? gemm[kind_of(Cut::spread, s)].sides : 1));
          for (Item item; (item = item_of(gemm, live, blocks, spread, n)).kind >= 0; ++n) {
            EXPECT_GE(item.kind % 2, stage);
            stage = item.kind % 2;
            ASSERT_LT(item.tile, live);
            const Gemm& g = gemm[item.kind];
            ASSERT_LT(item.side, g.sides);
            for (int i = 0; i < g.block_units; ++i) {
              const int unit = item.first_unit + i;
              if (unit >= g.units) continue;
              ++seen[{stage, item.tile, unit, item.side}];
              // Who waits is drawn later than whom it waits for.
              if (g.sides == 2 && item.side == 0) {
                ASSERT_TRUE(seen.contains({stage, item.tile, unit, 1})) << "unit " << unit;
              }
            }
          }
          EXPECT_EQ(seen.size(), wanted);
          for (const auto& [what, times] : seen) ASSERT_EQ(times, 1);
          EXPECT_LT(item_of(gemm, live, blocks, spread, n + 1000).kind, 0);
        }
  }
}

TEST(W4a4Shape, OneTokensSliceIsSpreadOverAllBlocks) {
  const auto gemms = [](int hidden, int inter, Gemm* gemm) {
    for (const Cut cut : all_cuts) {
      gemm[kind_of(cut, 0)] = gemm_of(hidden, 2 * inter, cut);
      gemm[kind_of(cut, 1)] = gemm_of(inter, hidden, cut);
    }
  };
  Gemm gemm[2 * cuts];
  gemms(4096, 512, gemm);
  EXPECT_TRUE(spreads(gemm, 8, 132, 8));
  const Gemm& first = gemm[kind_of(Cut::spread, 0)];
  const Gemm& second = gemm[kind_of(Cut::spread, 1)];
  EXPECT_EQ(8 * first.groups * first.sides, 128);
  EXPECT_EQ(8 * second.groups * second.sides, 128);
  EXPECT_FALSE(spreads(gemm, 9, 132, 8)) << "that fills the blocks as it is";
  EXPECT_FALSE(spreads(gemm, 8, 64, 8));
  EXPECT_FALSE(spreads(gemm, 8, 132, 64)) << "there is no room for so many rows' sums";
  gemms(4096, 4096, gemm);
  EXPECT_TRUE(spreads(gemm, 1, 132, 8));
  EXPECT_EQ(gemm[kind_of(Cut::spread, 1)].sides, 2);
  EXPECT_FALSE(spreads(gemm, 8, 132, 8));
}

}  // namespace
}  // namespace kerf::op::sm90::w4a4
