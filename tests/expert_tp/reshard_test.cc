// The reshard: bytes against the conversion of slices that were cut first, memory, and refusals that all
// ranks hear.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/comm/grid.h"
#include "kerf/comm/local.h"
#include "kerf/expert_tp/expert_tp.h"
#include "tests/expert_tp/layer.h"

namespace kerf::expert_tp {
namespace {

using test::Bytes;
using test::Layer;

bool contains(const Verdict& verdict, const std::string& part) {
  return verdict && verdict->text.find(part) != std::string::npos;
}

struct Grid {
  int ep, tp;
  std::int64_t experts, hidden, intermediate;
  bool uneven = false;
};

class Reshard : public testing::TestWithParam<Grid> {};

TEST_P(Reshard, EveryByteIsThatOfTheConvertedSlice) {
  const auto [ep, tp, experts, hidden, intermediate, uneven] = GetParam();
  const Layer layer = test::random_layer(experts, hidden, intermediate, 11);
  comm::run_local(ep * tp, {}, [&, ep = ep, tp = tp, experts = experts, uneven = uneven](comm::Group& group) {
    const comm::Grid grid(group, ep, tp);
    tensor::HostMemory memory;
    const std::int64_t each = experts / (ep * tp);
    const auto stock = test::convert_experts(layer, group.rank() * each, each, 1, 0, memory);
    const Bytes before = test::all_bytes(stock.view());
    memory.reset_peak();
    const std::int64_t base = memory.current();
    const layout::Nvfp4Experts sliced = reshard(stock.view(), {group, grid.row()}, experts, memory, uneven);
    // The TP tensors are all that the reshard takes.
    EXPECT_EQ(memory.peak() - base, sliced.bytes());
    EXPECT_EQ(memory.current() - base, sliced.bytes());
    const int row = group.rank() / tp;
    const int part = group.rank() % tp;
    EXPECT_EQ(sliced.first_expert, row * experts / ep);
    EXPECT_FALSE(layout::malformed(sliced.view()));
    const auto want = test::convert_experts(layer, row * experts / ep, experts / ep, tp, part, memory);
    EXPECT_EQ(sliced.shape, want.shape);
    EXPECT_TRUE(test::all_bytes(sliced.view()) == test::all_bytes(want.view())) << "rank " << group.rank();
    EXPECT_TRUE(test::all_bytes(stock.view()) == before) << "stock changed on rank " << group.rank();
    const auto shapes = final_shapes(stock.shape, tp, experts / ep, part, uneven);
    const layout::Nvfp4View view = sliced.view();
    EXPECT_EQ(shapes, (std::array{view.w13.shape, view.w13_sf.shape, view.w2.shape, view.w2_sf.shape}));
  });
}

std::string grid_name(const testing::TestParamInfo<Grid>& made) {
  const Grid& g = made.param;
  return (g.ep > 1 ? "ep" + std::to_string(g.ep) + "_" : std::string()) + "tp" + std::to_string(g.tp) + "_e" +
         std::to_string(g.experts) + "_h" + std::to_string(g.hidden) + "_i" + std::to_string(g.intermediate) +
         (g.uneven ? "_uneven" : "");
}

INSTANTIATE_TEST_SUITE_P(Shapes, Reshard,
                         testing::Values(Grid{1, 2, 2, 128, 128}, Grid{1, 2, 6, 256, 128},
                                         Grid{1, 2, 4, 384, 256}, Grid{1, 2, 4, 256, 640},
                                         Grid{1, 3, 3, 256, 192}, Grid{1, 4, 4, 128, 256},
                                         Grid{1, 4, 8, 256, 512}, Grid{1, 4, 12, 128, 768},
                                         Grid{1, 8, 8, 128, 512}, Grid{1, 8, 16, 256, 512},
                                         Grid{1, 8, 8, 384, 1536}),
                         grid_name);
INSTANTIATE_TEST_SUITE_P(Hybrids, Reshard,
                         testing::Values(Grid{2, 2, 8, 256, 256}, Grid{2, 3, 12, 128, 192},
                                         Grid{3, 2, 6, 256, 128}, Grid{2, 4, 16, 128, 512},
                                         Grid{4, 2, 8, 384, 256}),
                         grid_name);
INSTANTIATE_TEST_SUITE_P(Uneven, Reshard,
                         testing::Values(Grid{1, 8, 8, 128, 768, true}, Grid{1, 2, 4, 256, 320, true},
                                         Grid{1, 3, 6, 128, 320, true}, Grid{1, 4, 4, 256, 320, true},
                                         Grid{1, 2, 4, 256, 256, true}, Grid{2, 3, 12, 128, 320, true},
                                         Grid{2, 4, 8, 256, 448, true}),
                         grid_name);

// Memory that refuses the n-th block.
class ScarceMemory final : public tensor::Memory {
 public:
  explicit ScarceMemory(int blocks) : blocks_(blocks) {}
  std::byte* allocate(std::size_t bytes) override {
    if (blocks_-- == 0) throw Error(ErrorKind::memory, "no memory for a block");
    return host_.allocate(bytes);
  }
  void release(std::byte* block, std::size_t bytes) noexcept override { host_.release(block, bytes); }
  [[nodiscard]] const tensor::HostMemory& host() const { return host_; }

 private:
  tensor::HostMemory host_;
  int blocks_;
};

constexpr std::int64_t kExperts = 4;
constexpr std::int64_t kHidden = 256;
constexpr std::int64_t kIntermediate = 128;

struct Attempt {
  layout::Nvfp4View view;
  std::int64_t num_experts = kExperts;
  int blocks = 1000;  // that the rank's memory gives out
};

// Two ranks reshard a one-layer checkpoint of 4 experts; `spoil` damages what rank `bad` brings (-1: both).
// Every rank must get the same refusal, at once, and neither keeps memory.
Verdict refusal(int bad, const std::function<void(Attempt&)>& spoil) {
  static const Layer layer = test::random_layer(kExperts, kHidden, kIntermediate, 5);
  std::vector<Verdict> seen(2);
  const auto begin = std::chrono::steady_clock::now();
  comm::run_local(2, {.timeout = std::chrono::seconds{20}}, [&](comm::Group& group) {
    tensor::HostMemory stock_memory;
    const auto stock = test::convert_experts(layer, 2 * group.rank(), 2, 1, 0, stock_memory);
    Attempt mine{stock.view()};
    if (bad == -1 || bad == group.rank()) spoil(mine);
    ScarceMemory memory(mine.blocks);
    seen[static_cast<std::size_t>(group.rank())] =
        attempt([&] { reshard(mine.view, group, mine.num_experts, memory); });
    EXPECT_EQ(memory.host().current(), 0);
    if (mine.blocks == 1000 && bad != -1 &&
        !contains(seen[static_cast<std::size_t>(group.rank())], "no memory")) {
      EXPECT_EQ(memory.host().peak(), 0) << "memory was taken before the checks";
    }
    group.barrier("the group is whole after a refusal");
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds{10});
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_TRUE(seen[0]);
  return seen[0];
}

tensor::TensorView reshaped(tensor::TensorView view, const tensor::Shape& shape) {
  view.shape = shape;
  return view;
}

TEST(ReshardRefuses, DamagedTensorsByName) {
  const auto expect = [](const std::string& part, const std::function<void(layout::Nvfp4View&)>& spoil) {
    for (const int bad : {0, 1}) {
      const Verdict verdict = refusal(bad, [&](Attempt& mine) { spoil(mine.view); });
      EXPECT_TRUE(contains(verdict, part)) << part << " not in: " << (verdict ? verdict->text : "");
      EXPECT_TRUE(contains(verdict, "rank " + std::to_string(bad) + ": ")) << verdict->text;
      EXPECT_EQ(verdict->kind, ErrorKind::unsupported);
    }
  };
  expect("w13", [](auto& v) { v.w13 = reshaped(v.w13, {2, 256 * 128}); });
  expect("w13", [](auto& v) { v.w13.dtype = tensor::Dtype::i8; });
  expect("w13_sf", [](auto& v) { v.w13_sf.dtype = tensor::Dtype::u8; });
  expect("w13_sf", [](auto& v) { v.w13_sf = reshaped(v.w13_sf, {2, 16, 256}); });
  expect("w2", [](auto& v) { v.w2 = reshaped(v.w2, {1, 256, 64}); });
  expect("w2", [](auto& v) { v.w2.bytes = v.w2.bytes.first(v.w2.bytes.size() - 1); });
  expect("w2_sf", [](auto& v) { v.w2_sf = reshaped(v.w2_sf, {2, 256, 9}); });
  expect("g1_alphas", [](auto& v) { v.g1_alphas = reshaped(v.g1_alphas, {1}); });
  expect("g1_scale_c", [](auto& v) { v.g1_scale_c.dtype = tensor::Dtype::bf16; });
  expect("g2_alphas", [](auto& v) { v.g2_alphas.bytes = {}; });
  expect("a1_gscale", [](auto& v) { v.a1_gscale = reshaped(v.a1_gscale, {}); });
  expect("a2_gscale", [](auto& v) { v.a2_gscale = reshaped(v.a2_gscale, {2}); });
}

TEST(ReshardRefuses, WrongPlacement) {
  const Verdict first = refusal(1, [](Attempt& mine) { mine.view.first_expert = 1; });
  EXPECT_TRUE(contains(first, "rank 1 holds expert 1 where linear placement has 2")) << first->text;
  const Verdict swapped = refusal(0, [](Attempt& mine) { mine.view.first_expert = 2; });
  EXPECT_TRUE(contains(swapped, "rank 0 holds expert 2 where linear placement has 0")) << swapped->text;
  // Another number of experts, on both ranks and on one of them.
  EXPECT_TRUE(contains(refusal(-1, [](Attempt& mine) { mine.num_experts = 6; }), "is not 6 experts"));
  EXPECT_TRUE(contains(refusal(-1, [](Attempt& mine) { mine.num_experts = 5; }), "5 experts over 2 ranks"));
  EXPECT_TRUE(contains(refusal(1, [](Attempt& mine) { mine.num_experts = 8; }), "is not 8 experts"));
}

TEST(ReshardRefuses, GlobalScalesThatDifferInTheLastBit) {
  for (const int bad : {0, 1}) {
    static const float one_up = std::bit_cast<float>(0x3F801235U);
    const Verdict verdict = refusal(
        bad, [&](Attempt& mine) { mine.view.a1_gscale.bytes = std::as_bytes(std::span(&one_up, 1)); });
    EXPECT_TRUE(contains(verdict, "a1_gscale")) << verdict->text;
    EXPECT_TRUE(contains(verdict, "0x3F801234")) << verdict->text;
    EXPECT_TRUE(contains(verdict, "0x3F801235")) << verdict->text;
    EXPECT_TRUE(contains(verdict, "rank 1")) << verdict->text;
  }
  static const float other_nan = std::bit_cast<float>(0x7FC00002U);
  EXPECT_TRUE(contains(
      refusal(1, [&](Attempt& mine) { mine.view.a2_gscale.bytes = std::as_bytes(std::span(&other_nan, 1)); }),
      "0x7FC00002"));
}

TEST(ReshardRefuses, MemoryThatOneRankLacks) {
  for (int blocks = 0; blocks < 9; ++blocks)
    for (const int bad : {0, 1}) {
      const Verdict verdict = refusal(bad, [&](Attempt& mine) { mine.blocks = blocks; });
      ASSERT_TRUE(verdict);
      EXPECT_EQ(verdict->kind, ErrorKind::memory);
      EXPECT_EQ(verdict->text, "rank " + std::to_string(bad) + ": no memory for a block");
    }
}

TEST(ReshardRefuses, WidthsThatDifferBetweenRanks) {
  std::vector<Verdict> seen(2);
  comm::run_local(2, {}, [&](comm::Group& group) {
    tensor::HostMemory memory;
    layout::Nvfp4Experts stock(memory, {2, group.rank() == 0 ? 256 : 384, 128}, 2 * group.rank());
    for (auto* t : {&stock.a1_gscale, &stock.a2_gscale}) t->as<float>()[0] = 1;
    seen[static_cast<std::size_t>(group.rank())] = attempt([&] { reshard(stock.view(), group, 4, memory); });
  });
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_TRUE(contains(seen[0], "hidden width differs: rank 0 has 256, rank 1 has 384"));
}

TEST(ReshardRefuses, CutsThatTheLayoutCannotHold) {
  struct Row {
    std::int64_t hidden, intermediate;
    int tp;
    const char* part;
  };
  for (const Row& row :
       {Row{256, 128, 4, "slice 32"}, Row{256, 192, 2, "slice 96"}, Row{2560, 640, 4, "slice 160"},
        Row{256, 128, 3, "does not split 3 ways"}, Row{256, 128, 1, "1 rank"}}) {
    std::vector<Verdict> seen(static_cast<std::size_t>(row.tp));
    comm::run_local(row.tp, {}, [&](comm::Group& group) {
      tensor::HostMemory memory;
      layout::Nvfp4Experts stock(memory, {1, row.hidden, row.intermediate}, group.rank());
      const std::int64_t base = memory.current();
      memory.reset_peak();
      seen[static_cast<std::size_t>(group.rank())] =
          attempt([&] { reshard(stock.view(), group, row.tp, memory); });
      EXPECT_EQ(memory.peak(), base);
    });
    for (const Verdict& verdict : seen) {
      EXPECT_EQ(verdict, seen[0]);
      EXPECT_TRUE(contains(verdict, row.part)) << (verdict ? verdict->text : "accepted");
      EXPECT_TRUE(contains(verdict, "legal tp: 1")) << (verdict ? verdict->text : "accepted");
    }
  }
}

// A fault in one row of two is the reason of both, with the rank's number among all.
TEST(ReshardRefuses, InEveryRowWhatOneRankRefuses) {
  const Layer layer = test::random_layer(8, 128, 128, 5);
  using Spoil = std::function<void(Attempt&)>;
  const auto refused = [&](int bad, const Spoil& spoil) {
    std::vector<Verdict> seen(4);
    comm::run_local(4, {.timeout = std::chrono::seconds{20}}, [&](comm::Group& group) {
      const comm::Grid grid(group, 2, 2);
      tensor::HostMemory stock_memory;
      const auto stock = test::convert_experts(layer, 2 * group.rank(), 2, 1, 0, stock_memory);
      Attempt mine{stock.view(), 8};
      if (bad == group.rank()) spoil(mine);
      ScarceMemory memory(mine.blocks);
      seen[static_cast<std::size_t>(group.rank())] = attempt([&] {
        reshard(mine.view, {group, grid.row()}, mine.num_experts, memory);
      });
      EXPECT_EQ(memory.host().current(), 0);
      group.barrier("the group is whole after a refusal");
      grid.row().barrier("so is the row");
    });
    for (const Verdict& verdict : seen) EXPECT_EQ(verdict, seen[0]);
    return seen[0] ? seen[0]->text : std::string("accepted");
  };
  for (const int bad : {0, 1, 2, 3}) {
    const std::string rank = "rank " + std::to_string(bad);
    EXPECT_EQ(refused(bad, [](Attempt& mine) { mine.blocks = 4; }), rank + ": no memory for a block");
    EXPECT_EQ(refused(bad, [](Attempt& mine) { mine.view.first_expert += 1; })
                  .find(rank + ": " + rank + " holds expert " + std::to_string(2 * bad + 1)),
              0U);
    EXPECT_EQ(refused(bad, [](Attempt& mine) { mine.view.w2.dtype = tensor::Dtype::i8; }).find(rank + ": w2"),
              0U);
  }
  static const float one_up = std::bit_cast<float>(0x3F801235U);
  EXPECT_NE(
      refused(3, [](Attempt& mine) { mine.view.a1_gscale.bytes = std::as_bytes(std::span(&one_up, 1)); })
          .find("a1_gscale must have the same bits on every rank: rank 0 has 1.000"),
      std::string::npos);
}

TEST(ReshardRefuses, RowsThatAreNotThoseOfTheGroup) {
  const Layer layer = test::random_layer(4, 128, 128, 5);
  std::vector<Verdict> seen(4);
  comm::run_local(4, {}, [&](comm::Group& group) {
    const comm::Grid grid(group, 2, 2);
    tensor::HostMemory memory;
    const auto stock = test::convert_experts(layer, group.rank(), 1, 1, 0, memory);
    seen[static_cast<std::size_t>(group.rank())] = attempt([&] {
      reshard(stock.view(), {group, *grid.column()}, 4, memory);
    });
  });
  for (const Verdict& verdict : seen) {
    ASSERT_TRUE(verdict);
    EXPECT_EQ(verdict->kind, ErrorKind::bug);
    EXPECT_EQ(verdict->text, "rank 1: rank 1 of 4 is rank 0 of its row of 2");
  }
}

TEST(FinalShapes, AreThoseOfTheSlice) {
  const auto shapes = final_shapes({4, 256, 512}, 4, 16);
  EXPECT_EQ(shapes, (std::array{tensor::Shape{16, 256, 128}, tensor::Shape{16, 256, 16},
                                tensor::Shape{16, 256, 64}, tensor::Shape{16, 256, 8}}));
  EXPECT_THROW(final_shapes({4, 256, 128}, 4, 16), Error);
  EXPECT_EQ(final_shapes({2, 256, 320}, 2, 4, 1, true)[0], (tensor::Shape{4, 256, 128}));
  EXPECT_EQ(final_shapes({2, 256, 320}, 2, 4, 0, true)[2], (tensor::Shape{4, 256, 96}));
}

TEST(Unsupported, TellsWhichCutsAreLegal) {
  tensor::HostMemory memory;
  const layout::Nvfp4Experts experts(memory, {1, 128, 704}, 0);
  EXPECT_FALSE(unsupported(experts.view(), 11));
  EXPECT_TRUE(contains(unsupported(experts.view(), 4), "slice 176"));
  EXPECT_TRUE(contains(unsupported(experts.view(), 4), "legal tp: 1, 11"));
  EXPECT_TRUE(contains(unsupported(experts.view(), 1), "legal tp: 1, 11"));
  EXPECT_TRUE(contains(unsupported(experts.view(), 4), "--uneven would cut slices of 192 and 128"));
  EXPECT_FALSE(unsupported(experts.view(), 4, true));
  EXPECT_TRUE(unsupported(experts.view(), 12, true));
  for (const int tp : {0, -1}) EXPECT_EQ(unsupported(experts.view(), tp)->kind, ErrorKind::usage);
}

// In a part of a group ranks are called what the whole group calls them.
TEST(CheckGlobalScales, NamesRanksOfTheWholeGroup) {
  std::vector<Verdict> seen(4);
  comm::run_local(4, {}, [&](comm::Group& group) {
    const auto row = group.split(group.rank() / 2, "rows");
    const float value = group.rank() == 3 ? 2.0F : 1.0F;
    layout::Nvfp4View view;
    view.a1_gscale.bytes = std::as_bytes(std::span(&value, 1));
    view.a2_gscale.bytes = view.a1_gscale.bytes;
    seen[static_cast<std::size_t>(group.rank())] = check_global_scales(view, *row);
  });
  EXPECT_FALSE(seen[0] || seen[1]);
  EXPECT_TRUE(contains(seen[2], "rank 2 has 1 (0x3F800000), rank 3 has 2")) << seen[2]->text;
  EXPECT_EQ(seen[2], seen[3]);
}

TEST(CheckGlobalScales, SaysSoOnEveryRank) {
  std::vector<Verdict> seen(3);
  const std::vector<float> values = {1.0F, 1.0F, 1.5F};
  comm::run_local(3, {}, [&](comm::Group& group) {
    layout::Nvfp4View view;
    const float one = 1.0F;
    const auto* mine = &values[static_cast<std::size_t>(group.rank())];
    view.a1_gscale.bytes = std::as_bytes(std::span(&one, 1));
    view.a2_gscale.bytes = std::as_bytes(std::span(&one, 1));
    EXPECT_FALSE(check_global_scales(view, group));
    view.a2_gscale.bytes = std::as_bytes(std::span(mine, 1));
    seen[static_cast<std::size_t>(group.rank())] = check_global_scales(view, group);
    view.a2_gscale.bytes = {};  // no value at all
    EXPECT_TRUE(check_global_scales(view, group));
  });
  for (const Verdict& verdict : seen)
    EXPECT_EQ(verdict, (Reason{ErrorKind::unsupported,
                               "a2_gscale must have the same bits on every rank: rank 0 has 1 (0x3F800000), "
                               "rank 2 has 1.5 (0x3FC00000)"}));
}

}  // namespace
}  // namespace kerf::expert_tp
