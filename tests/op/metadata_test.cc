// The body on metadata from elsewhere: any that is valid gives the public op's bits, any that is not is
// refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "kerf/op/op.h"
#include "tests/support/experts.h"

namespace kerf::op {
namespace {

constexpr layout::ExpertsShape kShape{3, 256, 128};
constexpr std::int64_t kHidden = 256;

struct Fixture {
  tensor::HostMemory memory;
  layout::Nvfp4Experts experts = test::random_nvfp4(memory, kShape, 1, 51);
  test::StepData step = test::random_step(11, 2, 5, kHidden, 52);
  std::unique_ptr<RoutedExperts> bound;
  routing::MetadataShape shape;
  routing::MetadataBuffer buffer;
  std::vector<std::byte> workspace;
  std::vector<std::uint16_t> rows;

  explicit Fixture(const std::string& name, std::int64_t tile = 8)
      : bound(backend(name).bind(Nvfp4Args{experts.view(), 5, 2, Input::nvfp4, {}})),
        shape(bound->metadata_shape(11, tile)),
        buffer(memory, routing::metadata_words(shape)),
        workspace(bound->workspace_bytes(shape, {})),
        rows(static_cast<std::size_t>(gemm2_rows(shape, kHidden) * kHidden), 0x7FC1) {
    routing::write_metadata(shape, step.ids, step.weights, buffer.view(shape));
  }
  void run(const routing::Metadata& metadata) {
    bound->body(step.input(), shape, metadata, {}, Workers(2), workspace, rows);
  }
  std::vector<std::uint16_t> route_rows(std::span<const std::int32_t> map) const {
    std::vector<std::uint16_t> out;
    for (const std::int32_t row : map)
      for (std::int64_t h = 0; h < kHidden; ++h)
        out.push_back(row < 0 ? std::uint16_t{0} : rows[static_cast<std::size_t>(row * kHidden + h)]);
    return out;
  }
};

class MetadataOn : public ::testing::TestWithParam<std::string> {};

TEST_P(MetadataOn, TheBodyGivesThePublicOpsBits) {
  for (const std::int64_t tile : {8, 16, 64}) {
    Fixture s(GetParam(), tile);
    const routing::Metadata m = s.buffer.view(s.shape);
    s.run(m);
    EXPECT_EQ(s.route_rows(m.expanded_to_permuted), test::run_op(*s.bound, s.step).rows) << tile;
  }
}

TEST_P(MetadataOn, LongerArraysAreCutToTheStep) {
  Fixture s(GetParam());
  routing::Metadata m = s.buffer.view(s.shape);
  std::vector<std::int32_t> map(m.expanded_to_permuted.begin(), m.expanded_to_permuted.end());
  std::vector<float> weights(m.expert_weights.begin(), m.expert_weights.end());
  map.resize(map.size() + 7, 12345);
  weights.resize(weights.size() + 7);
  m.expanded_to_permuted = map;
  m.expert_weights = weights;
  const Unfinalized got = routed_experts_from_metadata(*s.bound, s.step.input(), s.shape, m, {}, Workers(2),
                                                       {nullptr, s.workspace, s.rows, nullptr});
  EXPECT_EQ(got.map.size(), 22U);
  EXPECT_EQ(got.weights.size(), 22U);
  EXPECT_EQ(s.route_rows(got.map), test::run_op(*s.bound, s.step).rows);
}

TEST_P(MetadataOn, RowsOfAnExpertMayComeInAnyOrder) {
  Fixture s(GetParam());
  const routing::Metadata m = s.buffer.view(s.shape);
  // Swap the first two rows of a tile that has two, and what points at them.
  std::int32_t row = 0;
  while (m.tile_to_limit[static_cast<std::size_t>(row / 8)] < row + 2) row += 8;
  ASSERT_LT(row / 8, m.live_tiles[0]);
  const auto at = static_cast<std::size_t>(row);
  std::swap(m.permuted_to_token[at], m.permuted_to_token[at + 1]);
  for (std::int32_t& r : m.expanded_to_permuted)
    if (r == row || r == row + 1) r = 2 * row + 1 - r;
  s.run(m);
  EXPECT_EQ(s.route_rows(m.expanded_to_permuted), test::run_op(*s.bound, s.step).rows);
}

TEST_P(MetadataOn, RowsThatNoTileOwnsAreNotWritten) {
  Fixture s(GetParam());
  const routing::Metadata m = s.buffer.view(s.shape);
  s.run(m);
  std::vector<bool> owned(s.rows.size() / kHidden, false);
  for (const std::int32_t row : m.expanded_to_permuted)
    if (row >= 0) owned[static_cast<std::size_t>(row)] = true;
  for (std::size_t r = 0; r < owned.size(); ++r) EXPECT_TRUE(owned[r] || s.rows[r * kHidden] == 0x7FC1) << r;
}

TEST_P(MetadataOn, DamagedMetadataIsRefusedBeforeAnythingRuns) {
  using Damage = std::function<void(Fixture&, routing::Metadata&)>;
  const std::vector<std::pair<const char*, Damage>> damages = {
      {"live tiles",
       [](Fixture& s, routing::Metadata& m) {
         m.live_tiles[0] = static_cast<std::int32_t>(s.shape.max_tiles() + 1);
       }},
      {"negative tiles", [](Fixture&, routing::Metadata& m) { m.live_tiles[0] = -1; }},
      {"expert", [](Fixture&, routing::Metadata& m) { m.tile_to_expert[0] = 3; }},
      {"limit", [](Fixture&, routing::Metadata& m) { m.tile_to_limit[0] = 9; }},
      {"token", [](Fixture&, routing::Metadata& m) { m.permuted_to_token[0] = 11; }},
      {"negative token", [](Fixture&, routing::Metadata& m) { m.permuted_to_token[0] = -1; }},
      {"short tokens",
       [](Fixture&, routing::Metadata& m) { m.permuted_to_token = m.permuted_to_token.first(4); }},
      {"short tiles", [](Fixture&, routing::Metadata& m) { m.tile_to_expert = m.tile_to_expert.first(1); }},
      {"no tiles", [](Fixture&, routing::Metadata& m) { m.live_tiles = {}; }},
      {"other offset", [](Fixture& s, routing::Metadata&) { s.shape.offset = 0; }},
      {"other top_k", [](Fixture& s, routing::Metadata&) { s.shape.top_k = 1; }},
  };
  for (const auto& [what, damage] : damages) {
    Fixture s(GetParam());
    routing::Metadata m = s.buffer.view(s.shape);
    damage(s, m);
    try {
      s.run(m);
      ADD_FAILURE() << what;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::bug) << what << ": " << e.what();
    }
    EXPECT_TRUE(std::all_of(s.rows.begin(), s.rows.end(), [](std::uint16_t v) { return v == 0x7FC1; }))
        << what;
  }
}

TEST_P(MetadataOn, WrongSizesAreNamed) {
  Fixture s(GetParam());
  s.step.a.pop_back();
  try {
    s.run(s.buffer.view(s.shape));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(e.what()).find("a has 1407 elements, wanted 1408"), std::string::npos) << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Listed, MetadataOn, ::testing::ValuesIn(backend_names()), [](const auto& listed) {
  std::string name = listed.param;
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
});

}  // namespace
}  // namespace kerf::op
