#include "kerf/routing/metadata.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "kerf/tensor/storage.h"
#include "tests/support/npy.h"

namespace kerf::routing {
namespace {

constexpr std::int32_t untouched = -2;

// The nine tensors, each in its own vector so that a write past an end is seen by a sanitizer.
struct Owned {
  std::vector<std::int32_t> total_padded, expanded_to_permuted, permuted_to_token, histogram,
      tokens_per_expert, tile_to_expert, tile_to_limit, live_tiles;
  std::vector<float> expert_weights;

  explicit Owned(const MetadataShape& s)
      : total_padded(1, untouched),
        expanded_to_permuted(size(s.routes()), untouched),
        permuted_to_token(size(s.max_padded() + 1), untouched),
        histogram(size(std::max<std::int64_t>(2 * s.experts, 512)), untouched),
        tokens_per_expert(size(s.experts), untouched),
        tile_to_expert(size(s.max_tiles()), untouched),
        tile_to_limit(size(s.max_tiles()), untouched),
        live_tiles(1, untouched),
        expert_weights(size(s.routes()), -2.0F) {}

  Metadata view() {
    return {total_padded,      expanded_to_permuted, permuted_to_token, expert_weights, histogram,
            tokens_per_expert, tile_to_expert,       tile_to_limit,     live_tiles};
  }
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
};

std::vector<float> some_weights(std::size_t n) {
  std::vector<float> w(n);
  for (std::size_t i = 0; i < n; ++i) w[i] = 1.0F / static_cast<float>(i + 1);
  return w;
}

Owned written(const MetadataShape& shape, const std::vector<std::int32_t>& ids) {
  Owned m(shape);
  write_metadata(shape, ids, some_weights(ids.size()), m.view());
  return m;
}

// Another way to the same tensors: the local routes sorted by (expert, route), laid out one after the other.
Owned recomputed(const MetadataShape& s, const std::vector<std::int32_t>& ids) {
  Owned m(s);
  std::ranges::fill(m.expanded_to_permuted, -1);
  std::ranges::fill(m.tokens_per_expert, 0);
  std::map<std::int64_t, std::vector<std::size_t>> routes_of;  // std::map: ascending experts
  std::vector<std::size_t> order(ids.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t r) { return ids[r]; });
  for (const std::size_t r : order) {
    if (ids[r] >= s.offset && ids[r] < s.offset + s.local) routes_of[ids[r]].push_back(r);
  }
  std::vector<std::int32_t> token_of_row, expert_of_tile, limit_of_tile;
  for (const auto& [expert, routes] : routes_of) {
    m.tokens_per_expert[Owned::size(expert)] = static_cast<std::int32_t>(routes.size());
    for (const std::size_t r : routes) {
      m.expanded_to_permuted[r] = static_cast<std::int32_t>(token_of_row.size());
      token_of_row.push_back(static_cast<std::int32_t>(r) / static_cast<std::int32_t>(s.top_k));
      if (token_of_row.size() % Owned::size(s.tile) == 1 || s.tile == 1) {
        expert_of_tile.push_back(static_cast<std::int32_t>(expert - s.offset));
        limit_of_tile.push_back(0);
      }
      limit_of_tile.back() = static_cast<std::int32_t>(token_of_row.size());
    }
    while (token_of_row.size() % Owned::size(s.tile) != 0) token_of_row.push_back(untouched);
  }
  std::ranges::copy(token_of_row, m.permuted_to_token.begin());
  std::ranges::copy(expert_of_tile, m.tile_to_expert.begin());
  std::ranges::copy(limit_of_tile, m.tile_to_limit.begin());
  m.total_padded[0] = static_cast<std::int32_t>(token_of_row.size());
  m.live_tiles[0] = static_cast<std::int32_t>(expert_of_tile.size());
  m.expert_weights = some_weights(ids.size());
  return m;
}

bool same(const Owned& a, const Owned& b) {
  return a.total_padded == b.total_padded && a.expanded_to_permuted == b.expanded_to_permuted &&
         a.permuted_to_token == b.permuted_to_token && a.tokens_per_expert == b.tokens_per_expert &&
         a.tile_to_expert == b.tile_to_expert && a.tile_to_limit == b.tile_to_limit &&
         a.live_tiles == b.live_tiles && a.expert_weights == b.expert_weights;
}

TEST(Metadata, GoldenCasesBitForBit) {
  const auto manifest = nlohmann::json::parse(test::golden_manifest());
  int cases = 0;
  for (const auto& c : manifest.at("meta").at("routing_metadata")) {
    const auto name = c.at("name").get<std::string>();
    SCOPED_TRACE(name);
    const MetadataShape shape{c.at("tokens"),       c.at("top_k"),     c.at("num_experts"),
                              c.at("local_offset"), c.at("num_local"), c.at("tile")};
    EXPECT_EQ(shape.max_tiles(), c.at("max_ctas").get<std::int64_t>());
    EXPECT_EQ(shape.max_padded(), c.at("max_padded").get<std::int64_t>());
    const auto ids = test::golden<std::int32_t>(name + "_ids");
    const Owned m = written(shape, ids);
    const auto expected = [&](const char* tensor) { return test::golden<std::int32_t>(name + "_" + tensor); };
    EXPECT_EQ(m.total_padded, expected("total_num_padded_tokens"));
    EXPECT_EQ(m.expanded_to_permuted, expected("expanded_idx_to_permuted_idx"));
    EXPECT_EQ(m.permuted_to_token, expected("permuted_idx_to_token_idx"));
    EXPECT_EQ(m.tokens_per_expert, expected("num_tokens_per_expert"));
    EXPECT_EQ(m.tile_to_expert, expected("cta_idx_xy_to_batch_idx"));
    EXPECT_EQ(m.tile_to_limit, expected("cta_idx_xy_to_mn_limit"));
    EXPECT_EQ(m.live_tiles, expected("num_non_exiting_ctas"));
    EXPECT_EQ(m.expert_weights, some_weights(ids.size()));
    ++cases;
  }
  EXPECT_EQ(cases, 18);
}

RC_GTEST_PROP(Metadata, EqualsASortOfTheRoutes, ()) {
  MetadataShape s;
  s.experts = *rc::gen::inRange<std::int64_t>(1, 40);
  s.offset = *rc::gen::inRange<std::int64_t>(0, s.experts + 1);
  s.local = *rc::gen::inRange<std::int64_t>(0, s.experts - s.offset + 1);
  s.tokens = *rc::gen::inRange<std::int64_t>(0, 70);
  s.top_k = *rc::gen::inRange<std::int64_t>(1, 9);
  s.tile = *rc::gen::element<std::int64_t>(1, 3, 8, 16, 32, 64, 128, 192, 256);
  // Ids past both ends, so that -1, other ranks' and illegal ids all occur; few distinct ones, so that
  // experts span several tiles and tokens hold duplicates.
  const auto low = *rc::gen::inRange<std::int32_t>(-3, static_cast<std::int32_t>(s.experts));
  const auto high = *rc::gen::inRange<std::int32_t>(low + 1, static_cast<std::int32_t>(s.experts) + 4);
  const auto ids = *rc::gen::container<std::vector<std::int32_t>>(Owned::size(s.routes()),
                                                                  rc::gen::inRange<std::int32_t>(low, high));
  RC_ASSERT(same(written(s, ids), recomputed(s, ids)));
}

TEST(Metadata, RowsOfEveryLocalRouteAreDistinctAndLeadBackToItsToken) {
  const MetadataShape s{.tokens = 37, .top_k = 5, .experts = 12, .offset = 3, .local = 6, .tile = 8};
  std::vector<std::int32_t> ids(Owned::size(s.routes()));
  for (std::size_t r = 0; r < ids.size(); ++r) ids[r] = static_cast<std::int32_t>((r * r + 3 * r) % 12);
  const Owned m = written(s, ids);
  std::vector<int> seen(m.permuted_to_token.size(), 0);
  for (std::size_t r = 0; r < ids.size(); ++r) {
    const std::int32_t row = m.expanded_to_permuted[r];
    const bool here = ids[r] >= 3 && ids[r] < 9;
    ASSERT_EQ(row >= 0, here);
    if (!here) continue;
    const auto i = static_cast<std::size_t>(row);
    EXPECT_EQ(seen[i]++, 0);
    EXPECT_EQ(m.permuted_to_token[i], static_cast<std::int32_t>(r / 5));
    EXPECT_EQ(m.tile_to_expert[i / 8], ids[r] - 3);
    EXPECT_LT(row, m.tile_to_limit[i / 8]);
  }
}

TEST(Metadata, NoTokensGiveNoTiles) {
  const MetadataShape s{.tokens = 0, .top_k = 8, .experts = 256, .offset = 0, .local = 256, .tile = 8};
  EXPECT_EQ(s.max_tiles(), 0);
  const Owned m = written(s, {});
  EXPECT_EQ(m.total_padded[0], 0);
  EXPECT_EQ(m.live_tiles[0], 0);
  EXPECT_EQ(m.permuted_to_token, std::vector<std::int32_t>{untouched});
  EXPECT_EQ(m.tokens_per_expert, std::vector<std::int32_t>(256, 0));
}

TEST(Metadata, IllegalIdsAreNotRouted) {
  constexpr std::int32_t lowest = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t highest = std::numeric_limits<std::int32_t>::max();
  const MetadataShape s{.tokens = 3, .top_k = 2, .experts = 4, .offset = 0, .local = 4, .tile = 8};
  const Owned m = written(s, {-1, lowest, 4, highest, -2, 3});
  EXPECT_EQ(m.expanded_to_permuted, (std::vector<std::int32_t>{-1, -1, -1, -1, -1, 0}));
  EXPECT_EQ(m.tokens_per_expert, (std::vector<std::int32_t>{0, 0, 0, 1}));
  EXPECT_EQ(m.live_tiles[0], 1);
  EXPECT_EQ(m.tile_to_expert[0], 3);
  EXPECT_EQ(m.tile_to_limit[0], 1);
  EXPECT_EQ(m.permuted_to_token[0], 2);
  EXPECT_EQ(m.permuted_to_token[1], untouched);
}

TEST(Metadata, DuplicatesInATokenCountOncePerRoute) {
  const MetadataShape s{.tokens = 2, .top_k = 3, .experts = 4, .offset = 2, .local = 2, .tile = 8};
  const Owned m = written(s, {3, 3, 0, 2, 3, 3});
  EXPECT_EQ(m.expanded_to_permuted, (std::vector<std::int32_t>{8, 9, -1, 0, 10, 11}));
  EXPECT_EQ(m.tokens_per_expert, (std::vector<std::int32_t>{0, 0, 1, 4}));
  EXPECT_EQ(m.total_padded[0], 16);
}

TEST(Metadata, EveryRouteOnOneExpertFillsExactlyTheBound) {
  const MetadataShape s{.tokens = 64, .top_k = 8, .experts = 1, .offset = 0, .local = 1, .tile = 8};
  const Owned m = written(s, std::vector<std::int32_t>(512, 0));
  EXPECT_EQ(m.live_tiles[0], 64);
  EXPECT_EQ(m.tile_to_limit[63], 512);
  for (std::int32_t r = 0; r < 512; ++r) ASSERT_EQ(m.expanded_to_permuted[Owned::size(r)], r);
}

TEST(Metadata, TheTileBoundIsReachedAndNeverPassed) {
  // One route on each of E - 1 experts and tile + 1 on the last: E + 1 tiles, what max_tiles() promises.
  const MetadataShape s{.tokens = 15, .top_k = 1, .experts = 7, .offset = 0, .local = 7, .tile = 8};
  std::vector<std::int32_t> ids(15, 6);
  for (std::int32_t e = 0; e < 6; ++e) ids[Owned::size(e)] = e;
  EXPECT_EQ(written(s, ids).live_tiles[0], s.max_tiles());
}

TEST(Metadata, SizesThatDoNotFitAreABug) {
  const MetadataShape s{.tokens = 2, .top_k = 2, .experts = 4, .offset = 0, .local = 4, .tile = 8};
  const std::vector<std::int32_t> ids(4, 0);
  const std::vector<float> weights(4, 1.0F);
  const auto kind_of = [&](const MetadataShape& shape, std::span<const std::int32_t> i,
                           std::span<const float> w, const Metadata& m) {
    try {
      write_metadata(shape, i, w, m);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::usage;
  };
  Owned m(s);
  EXPECT_EQ(kind_of(s, std::span(ids).first(3), weights, m.view()), ErrorKind::bug);
  EXPECT_EQ(kind_of(s, ids, std::span(weights).first(3), m.view()), ErrorKind::bug);
  Metadata small = m.view();
  small.permuted_to_token = small.permuted_to_token.first(small.permuted_to_token.size() - 1);
  EXPECT_EQ(kind_of(s, ids, weights, small), ErrorKind::bug);
  MetadataShape past_the_end = s;
  past_the_end.offset = 1;
  EXPECT_EQ(kind_of(past_the_end, ids, weights, m.view()), ErrorKind::bug);
  EXPECT_EQ(m.live_tiles[0], untouched);
}

TEST(Metadata, ShapesPastThirtyTwoBitsAreRefused) {
  MetadataShape s{.tokens = std::int64_t{1} << 30, .top_k = 8, .experts = 4, .offset = 0, .local = 4};
  EXPECT_THROW(metadata_words(s), Error);
  s.tokens = std::numeric_limits<std::int64_t>::max();  // must not wrap into something legal
  EXPECT_THROW(metadata_words(s), Error);
  s = {.tokens = 8, .top_k = 8, .experts = 64, .offset = 0, .local = 64, .tile = std::int64_t{1} << 30};
  EXPECT_THROW(metadata_words(s), Error);
}

TEST(MetadataBuffer, LaysNineAlignedTensorsOutWithoutOverlap) {
  tensor::HostMemory memory;
  for (const std::int64_t tokens : {0, 1, 8, 61}) {
    const MetadataShape s{
        .tokens = tokens, .top_k = 3, .experts = 300, .offset = 20, .local = 40, .tile = 16};
    const MetadataBuffer buffer(memory, metadata_words(s));
    EXPECT_EQ(buffer.words(), metadata_words(s));
    const Metadata m = buffer.view(s);
    const std::vector<std::span<std::int32_t>> ints = {
        m.total_padded,      m.expanded_to_permuted, m.permuted_to_token, m.histogram,
        m.tokens_per_expert, m.tile_to_expert,       m.tile_to_limit,     m.live_tiles};
    EXPECT_EQ(m.expanded_to_permuted.size(), Owned::size(s.routes()));
    EXPECT_EQ(m.permuted_to_token.size(), Owned::size(s.max_padded() + 1));
    EXPECT_EQ(m.expert_weights.size(), Owned::size(s.routes()));
    EXPECT_EQ(m.histogram.size(), 600U);
    EXPECT_EQ(m.tokens_per_expert.size(), 300U);
    EXPECT_EQ(m.tile_to_expert.size(), Owned::size(s.max_tiles()));
    EXPECT_EQ(m.tile_to_limit.size(), Owned::size(s.max_tiles()));
    std::int32_t mark = 0;
    for (const auto tensor : ints) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data()) % 64, 0U);
      for (std::int32_t& word : tensor) {
        ASSERT_EQ(word, -1) << "words are -1 at first, and no other tensor holds this one";
        word = mark;
      }
      ++mark;
    }
    for (float& w : m.expert_weights) {
      std::int32_t bits = 0;
      std::memcpy(&bits, &w, sizeof(bits));
      ASSERT_EQ(bits, -1);
      w = 0.5F;
    }
    mark = 0;
    for (const auto tensor : ints) {
      for (const std::int32_t word : tensor) ASSERT_EQ(word, mark);
      ++mark;
    }
  }
}

TEST(MetadataBuffer, ServesSmallerShapesAndRefusesLargerOnes) {
  tensor::HostMemory memory;
  const MetadataShape large{.tokens = 16, .top_k = 4, .experts = 32, .offset = 0, .local = 32, .tile = 64};
  MetadataShape small = large;
  small.tokens = 3;
  const MetadataBuffer buffer(memory, metadata_words(large));
  const std::vector<std::int32_t> ids = {5, 4, 3, 2, 9, 9, -1, 0, 31, 30, 29, 28};
  write_metadata(small, ids, some_weights(12), buffer.view(small));
  EXPECT_EQ(buffer.view(small).live_tiles[0], 10);
  MetadataShape larger = large;
  larger.tokens = 17;
  try {
    static_cast<void>(buffer.view(larger));
    FAIL() << "a shape that does not fit was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bug);
    EXPECT_NE(std::string(error.what()).find(std::to_string(metadata_words(large))), std::string::npos);
  }
  EXPECT_THROW(static_cast<void>(MetadataBuffer().view(small)), Error);
  EXPECT_EQ(MetadataBuffer().words(), 0);
}

TEST(CheckIds, AcceptsLegalIdsAndMinusOne) {
  EXPECT_EQ(check_ids({}, 8, 256), std::nullopt);
  const std::vector<std::int32_t> ids = {0, 255, -1, 128};
  EXPECT_EQ(check_ids(ids, 2, 256), std::nullopt);
}

TEST(CheckIds, NamesTheFirstIllegalIdWithItsTokenAndSlot) {
  for (const std::int32_t id : {4, -2, std::numeric_limits<std::int32_t>::max()}) {
    const std::vector<std::int32_t> ids = {0, 1, -1, -1, 2, id, 9, 9};
    const Verdict verdict = check_ids(ids, 2, 4);
    ASSERT_TRUE(verdict.has_value());
    EXPECT_EQ(verdict->kind, ErrorKind::usage);
    EXPECT_EQ(verdict->text, "token 2, slot 1: expert id " + std::to_string(id) +
                                 " is neither in [0, 4) nor -1 (not routed)");
  }
}

TEST(CheckIds, RefusesIdsThatMakeNoRows) {
  const std::vector<std::int32_t> ids = {0, 1, 2};
  EXPECT_TRUE(check_ids(ids, 2, 4).has_value());
  EXPECT_TRUE(check_ids(ids, 0, 4).has_value());
}

}  // namespace
}  // namespace kerf::routing
