// The backends' tactics: what is offered when, what is known of each, and that bodies from metadata give the
// public op's bits at all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kerf/op/cpu/groups.h"
#include "kerf/op/cpu/tactics.h"
#include "kerf/op/op.h"
#include "tests/support/experts.h"

namespace kerf::op {
namespace {

bool holds(const std::vector<Tactic>& list, Tactic tactic) {
  return std::find(list.begin(), list.end(), tactic) != list.end();
}

TEST(CpuTactics, TheTableIsTilesTimesConfigs) {
  std::set<std::pair<int, int>> seen;
  std::set<int> all_tiles;
  std::set<int> configs;
  for (const Tactic t : cpu::tactic_table) {
    EXPECT_TRUE(seen.insert({t.tile, t.config}).second) << "twice: " << t.tile << ", " << t.config;
    all_tiles.insert(t.tile);
    configs.insert(t.config);
    EXPECT_FALSE(internal::no_body(cpu::tactic_table, "cpu", t));
    EXPECT_FALSE(internal::no_body(cpu::tactic_table, "cpu", {t.tile, -1}));
  }
  EXPECT_EQ(seen.size(), all_tiles.size() * configs.size());
  EXPECT_GE(all_tiles.size(), 3U);
  EXPECT_GE(configs.size(), 2U);
  // Configs differ in how many rows share a pass; the default is the first.
  EXPECT_EQ(cpu::pass_rows({8, 0}), 8);
  EXPECT_EQ(cpu::pass_rows({8, 1}), 4);
  EXPECT_EQ(cpu::pass_rows({8, 2}), 2);
  EXPECT_EQ(cpu::pass_rows({8, -1}), 8);
  for (const Tactic unknown : {Tactic{24, 0}, Tactic{128, 0}, Tactic{8, 3}}) {
    ASSERT_TRUE(internal::no_body(cpu::tactic_table, "cpu", unknown));
    EXPECT_NE(internal::no_body(cpu::tactic_table, "cpu", unknown)->text.find(std::to_string(unknown.tile)),
              std::string::npos);
  }
}

// A task's rows are a tile's: 20 rows of one expert are three tasks of tile 8, two of 16, one of 32.
TEST(CpuTactics, ATileIsATask) {
  tensor::HostMemory memory;
  for (const auto& [tile, groups] : {std::pair<std::int64_t, std::size_t>{8, 3}, {16, 2}, {32, 1}}) {
    const routing::MetadataShape shape{20, 1, 4, 0, 4, tile};
    const routing::MetadataBuffer buffer(memory, routing::metadata_words(shape));
    const routing::Metadata m = buffer.view(shape);
    routing::write_metadata(shape, std::vector<std::int32_t>(20, 2), std::vector<float>(20, 1.0F), m);
    std::vector<cpu::Group> tasks(static_cast<std::size_t>(shape.max_tiles()));
    std::vector<cpu::Entry> entries(20);
    ASSERT_EQ(cpu::gather(shape, m, tasks, entries), groups) << tile;
    std::int32_t next = 0;
    for (std::size_t g = 0; g < groups; ++g) {
      EXPECT_EQ(tasks[g].expert, 2);
      EXPECT_EQ(tasks[g].first, next);
      EXPECT_LE(tasks[g].count, tile);
      next += tasks[g].count;
    }
    EXPECT_EQ(next, 20);
    for (std::size_t i = 0; i < entries.size(); ++i)
      EXPECT_EQ(entries[i].token, static_cast<std::int32_t>(i));
  }
}

class TacticsOf : public ::testing::TestWithParam<std::string> {};

// An expert has at most a row a token: a tile is offered once the next smaller one could not hold as many.
TEST_P(TacticsOf, TilesThatCannotFillAreNotOffered) {
  tensor::HostMemory memory;
  const auto experts = test::random_nvfp4(memory, {4, 256, 128}, 0, 1);
  const auto bound = backend(GetParam()).bind(Nvfp4Args{experts.view(), 4, 2, Input::nvfp4, {}});
  const std::vector<Tactic> all = backend(GetParam()).tactics(-1);
  const auto largest = [](const std::vector<Tactic>& list) {
    int most = 0;
    for (const Tactic t : list) most = std::max(most, t.tile);
    return most;
  };
  const std::vector<std::pair<std::int64_t, int>> lines = {
      {0, 8}, {1, 8}, {8, 8}, {9, 16}, {16, 16}, {17, 32}, {32, 32}, {33, 64}, {64, 64}, {4096, 64}};
  for (const auto& [tokens, tile] : lines) {
    EXPECT_EQ(largest(bound->tactics(tokens)), tile) << tokens;
    EXPECT_EQ(bound->tactics(tokens), backend(GetParam()).tactics(tokens)) << tokens;
  }
  EXPECT_EQ(bound->tactics(4096), all);
  // Something can be pinned: the smallest tile is valid for any number of tokens.
  for (std::int64_t t = 0; t <= 64; ++t)
    for (const Tactic tactic : all)
      if (tactic.tile == 8) {
        EXPECT_TRUE(holds(bound->tactics(t), tactic)) << t;
      }
}

TEST_P(TacticsOf, EveryOneHasABodyInOneKindOfMemory) {
  tensor::HostMemory memory;
  const auto nvfp4 = test::random_nvfp4(memory, {2, 128, 64}, 0, 2);
  const auto bf16 = test::random_bf16(memory, {2, 128, 64}, 0, 3);
  const Backend& b = backend(GetParam());
  for (const auto& bound :
       {b.bind(Nvfp4Args{nvfp4.view(), 2, 1, Input::nvfp4, {}}),
        b.bind(Nvfp4Args{nvfp4.view(), 2, 1, Input::bf16, {}}), b.bind(Bf16Args{bf16.view(), 2, 1, {}})})
    for (const Tactic t : b.tactics(-1)) {
      EXPECT_FALSE(bound->prepare(t));
      EXPECT_FALSE(bound->prepare({t.tile, -1}));
      EXPECT_EQ(bound->workspace_kind(t), bound->workspace_kind({}));
    }
}

// Routes that are awkward in every way, for experts [2, 6) of 8 and top 3.
std::vector<std::int32_t> awkward(std::int64_t tokens, int way, test::Random& random) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens * 3));
  for (std::size_t r = 0; r < ids.size(); ++r) {
    const auto any = static_cast<std::int32_t>(random.below(9)) - 1;  // -1 among them, repeats too
    switch (way) {
      case 0:
        ids[r] = any;
        break;
      case 1:
        ids[r] = 4;  // all on one expert, thrice a token
        break;
      case 2:
        ids[r] = r % 2 == 0 ? 1 : 7;  // none of them here
        break;
      default:
        ids[r] = r % 3 == 0 ? -1 : 2 + any % 2;  // duplicates within a token
    }
  }
  return ids;
}

TEST_P(TacticsOf, TheBodyFromMetadataHasThePublicOpsBitsAtEveryTactic) {
  tensor::HostMemory memory;
  const layout::ExpertsShape shape{4, 128, 64};
  const auto experts = test::random_nvfp4(memory, shape, 2, 61);
  const Nvfp4Args args{experts.view(), 8, 3, Input::nvfp4, {}};
  const auto reference = backend("reference").bind(args);
  const auto bound = backend(GetParam()).bind(args);
  test::Random random(62);
  for (std::int64_t tokens = 0; tokens <= 64; ++tokens) {
    for (int way = 0; way < 4; ++way) {
      // All ways at some counts, one way at the others.
      if (tokens > 20 && tokens % 4 != way) continue;
      test::StepData step = test::random_step(tokens, 3, 8, shape.hidden, static_cast<std::uint64_t>(tokens));
      step.ids = awkward(tokens, way, random);
      const test::OpResult want = test::run_op(*reference, step);
      std::vector<Tactic> tactics = backend(GetParam()).tactics(-1);
      for (const int tile : tiles) tactics.push_back({tile, -1});
      for (const Tactic tactic : tactics) {
        const test::OpResult open = test::run_op(*bound, step, tactic);
        ASSERT_EQ(open.rows, want.rows) << tokens << " tokens, way " << way << ", tile " << tactic.tile;
        const routing::MetadataShape s = bound->metadata_shape(tokens, tactic.tile);
        const routing::MetadataBuffer buffer(memory, routing::metadata_words(s));
        const routing::Metadata m = buffer.view(s);
        routing::write_metadata(s, step.ids, step.weights, m);
        std::vector<std::byte> workspace(bound->workspace_bytes(s, tactic), std::byte{0xFF});
        std::vector<std::uint16_t> rows(static_cast<std::size_t>(gemm2_rows(s, 128) * 128), 0x7FC1);
        bound->body(step.input(), s, m, tactic, Workers(1), workspace, rows);
        std::vector<std::uint16_t> got;
        for (const std::int32_t row : m.expanded_to_permuted)
          for (std::int64_t h = 0; h < 128; ++h)
            got.push_back(row < 0 ? std::uint16_t{0} : rows[static_cast<std::size_t>(row * 128 + h)]);
        ASSERT_EQ(got, want.rows) << tokens << " tokens, way " << way << ", tile " << tactic.tile
                                  << ", config " << tactic.config;
      }
    }
  }
}

TEST_P(TacticsOf, PackageAndDeviceAreNamed) {
  EXPECT_FALSE(backend(GetParam()).package().empty());
  EXPECT_NE(backend(GetParam()).device().find("core"), std::string::npos);
  EXPECT_EQ(backend(GetParam()).device(), backend("reference").device());
}

INSTANTIATE_TEST_SUITE_P(Listed, TacticsOf, ::testing::ValuesIn(backend_names()), [](const auto& listed) {
  std::string name = listed.param;
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
});

// An instruction set is a package of its own; "cpu" is the best of them under another name.
TEST(Packages, DifferByInstructionSet) {
  std::set<std::string_view> packages;
  std::size_t count = 0;
  for (const std::string& name : backend_names()) {
    if (name == "cpu") continue;
    packages.insert(backend(name).package());
    ++count;
  }
  EXPECT_EQ(packages.size(), count);
  EXPECT_TRUE(packages.contains(backend("cpu").package()));
}

}  // namespace
}  // namespace kerf::op
