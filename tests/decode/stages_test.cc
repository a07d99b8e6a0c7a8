// What is planned stage by stage is what the Meters see; for a device it is arithmetic, checked by hand.
#include <gtest/gtest.h>

#include <algorithm>

#include "kerf/decode/device_sizes.h"
#include "kerf/decode/exported.h"
#include "kerf/decode/memory_plan.h"
#include "kerf/decode/room.h"
#include "kerf/decode/runtime.h"
#include "kerf/tools/export.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"
#include "tests/support/test_env.h"

namespace kerf::test {
namespace {

using decode::MemoryPlan;
using decode::MemoryRequest;

// 64 experts of 128 x 128, top 4, one NVFP4 layer: the probe's rows are more than a packed kind.
MemoryRequest small(std::int64_t ep, std::int64_t tp) {
  MemoryRequest r{
      .experts = 64, .hidden = 128, .intermediate = 128, .top_k = 4, .nvfp4_layers = 1, .ranks = ep * tp};
  r.rows = ep;
  r.tp = tp;
  r.tokens = 1;
  return r;
}

TEST(StagePeaks, AreWhatTheMeterSees) {
  const Synthetic model(64, 128, 128, {}, 1);
  const checkpoint::Checkpoint from = model.open();
  const MemoryPlan plan = decode::memory_plan(small(4, 2));
  ASSERT_GT(plan.probe, plan.packed);
  on_grid(4, 2, [&](const decode::Rank& rank) {
    decode::BuildOptions building;
    building.slices = 2;
    std::vector<decode::Layer> layers = decode::build(from, building, rank);
    EXPECT_EQ(rank.memory.peak(), plan.host.load);
    EXPECT_EQ(plan.host.convert, plan.host.load);
    (void)decode::shard(layers, {}, rank);
    EXPECT_EQ(rank.memory.peak(), plan.host.reshard);
  });
  on_grid(4, 2, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.expert_tp = true;
    options.max_tokens = 1;
    const auto runtime = decode::Runtime::build(from, options, rank);
    EXPECT_EQ(rank.memory.current(), plan.host.steps);
    runtime.warm_up();
    EXPECT_EQ(rank.memory.current(), plan.host.steps);
    EXPECT_EQ(rank.memory.peak(), std::max({plan.host.load, plan.host.reshard, plan.host.warm_up}));
  });
}

TEST(StagePeaks, OfAStartFromSlices) {
  const Synthetic model(64, 128, 128, {}, 1);
  const checkpoint::Checkpoint from = model.open();
  const TempDir dir;
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    tools::ExportOptions options;
    options.expert_tp = true;
    (void)tools::export_experts(from, dir.path(), options, rank);
  });
  MemoryRequest request = small(1, 2);
  request.exported_slices = true;
  const MemoryPlan plan = decode::memory_plan(request);
  EXPECT_EQ(plan.ep.total(), 0);
  // 64 experts of 128 x 64, half a byte a weight and a byte a block of 16; five tensors of scalars.
  EXPECT_EQ(plan.tp.total(), 64 * 3 * 128 * 64 * 9 / 16 + 64 * 3 * 4 + 8);
  const auto exported = checkpoint::Checkpoint::open(dir.path());
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.expert_tp = true;
    options.max_tokens = 1;
    const auto runtime = decode::Runtime::build(exported, options, rank);
    EXPECT_EQ(runtime.footprint().sliced, plan.host.load);
    EXPECT_EQ(runtime.footprint().stock, 0);
    EXPECT_EQ(rank.memory.peak(), plan.host.steps);
  });
}

// One token, top 2: two tiles of 8 rows at most.
TEST(DevicePlan, OfOneTokenByHand) {
  MemoryRequest r{.experts = 8, .hidden = 256, .intermediate = 128, .top_k = 2, .nvfp4_layers = 3};
  r.tokens = 1;
  r.backend = "cuda";
  const MemoryPlan plan = decode::memory_plan(r);
  const std::int64_t words = routing::metadata_words({1, 2, 8, 0, 8, 8});
  const std::int64_t layer =
      4 + 2 * 256 + 4 * 8 + 4 * 8 + 2 * 4 + 2 * 4 + 2 * 256;  // gs, x, logits, bias, routes, out
  // Sums of two blocks' halves, 512 for each GEMM and 128 threads; 16 rows of 64 blocks.
  const std::int64_t ended = 2 * 512 * 128 * 16 + 16 * 64 * 16;
  const std::int64_t step = 4 * words + 128 + 16 + 2 * 4 + 2 * 4  // metadata, quantised row, routes
                            + 16 + 16 * 8 * 16  // what launches know; 16 rows of 8 blocks between the GEMMs
                            + ended             // what becomes of rows that the op adds up itself
                            + 2 * 256 * 256     // rows: 128 KiB at least
                            + 2 * 256;          // partial
  EXPECT_EQ(plan.stack, 3 * layer + step);
  const std::int64_t weights = 3 * 8 * 3 * 256 * 128 * 9 / 16;
  EXPECT_EQ(plan.device.load, weights);
  EXPECT_EQ(plan.device.steps, weights + plan.stack);
  // The host has the scalars and, while it converts, all eight experts of a layer at once.
  const std::int64_t scalars = 8 * 3 * 4 + 2 * 4;
  EXPECT_EQ(plan.host.load, 3 * scalars);
  EXPECT_EQ(plan.staging, 8 * 3 * 256 * 128 * 9 / 16 + scalars);
  EXPECT_EQ(plan.host.convert, plan.host.load + plan.staging);
  EXPECT_EQ(plan.run, 128 + 16 + 4 * words + 16 + 16 * 8 * 16 + ended + 2 * 256 * 256);
  EXPECT_EQ(plan.device.warm_up, weights + plan.run);
}

TEST(DevicePlan, StagesTwoSlotsOfAtMost128Mib) {
  MemoryRequest r{
      .experts = 256, .hidden = 7168, .intermediate = 2048, .top_k = 8, .nvfp4_layers = 58, .ranks = 8};
  r.backend = "cuda";
  const MemoryPlan plan = decode::memory_plan(r);
  const std::int64_t expert = 3 * 7168 * 2048 / 16 * 9 + 3 * 4;
  const std::int64_t once = (std::int64_t{128} << 20) / expert;
  EXPECT_EQ(plan.staging, 2 * (once * expert + 8));
}

TEST(DevicePlan, GrowsWithExactTailsOnSlices) {
  MemoryRequest r{
      .experts = 8, .hidden = 256, .intermediate = 1024, .top_k = 2, .nvfp4_layers = 1, .ranks = 2};
  r.tp = 2;
  r.backend = "cuda";
  const MemoryPlan fast = decode::memory_plan(r);
  r.tail.kind = tail::Kind::exact;
  const MemoryPlan exact = decode::memory_plan(r);
  EXPECT_GE(exact.stack, fast.stack + (256 << 10));  // f32 rows, 256 KiB at least, beside bf16 ones
}

TEST(Room, SaysTheSumTermByTermAndWhatThereIs) {
  MemoryRequest r{
      .experts = 256, .hidden = 4096, .intermediate = 4096, .top_k = 8, .nvfp4_layers = 60, .ranks = 8};
  r.bf16_layers = 2;
  r.tp = 8;
  const MemoryPlan plan = decode::memory_plan(r);
  const auto stage = decode::worst_stage(plan, false);
  std::int64_t sum = 0;
  for (const auto& [what, bytes] : stage.terms) sum += bytes;
  EXPECT_EQ(sum, stage.total);
  EXPECT_EQ(stage.total, std::max({plan.host.load, plan.host.reshard, plan.host.steps}));
  EXPECT_EQ(decode::no_room(r, {8 * stage.total, "this machine"}), std::nullopt);
  const Verdict why = decode::no_room(r, {8 * stage.total - 1, "this machine"});
  ASSERT_TRUE(why.has_value());
  EXPECT_EQ(why->kind, ErrorKind::memory);
  for (const char* word : {"this machine has", "8 ranks x (stock experts", "+ sliced experts",
                           "one packed kind or a probe", "at the stage reshard"})
    EXPECT_NE(why->text.find(word), std::string::npos) << word << " in: " << why->text;
}

TEST(Room, CountsRanksOfUnequalSlices) {
  MemoryRequest r{
      .experts = 8, .hidden = 256, .intermediate = 192, .top_k = 2, .nvfp4_layers = 1, .ranks = 2};
  r.tp = 2;
  r.fit = {true, false};
  MemoryRequest narrow = r;
  narrow.part = 1;
  const std::int64_t wide = decode::worst_stage(decode::memory_plan(r), false).total;
  const std::int64_t thin = decode::worst_stage(decode::memory_plan(narrow), false).total;
  ASSERT_LT(thin, wide);
  EXPECT_EQ(decode::no_room(r, {wide + thin, "m"}), std::nullopt);
  EXPECT_TRUE(decode::no_room(r, {wide + thin - 1, "m"}).has_value());
}

TEST(Room, AsksTheDeviceToo) {
  MemoryRequest r{.experts = 8, .hidden = 256, .intermediate = 128, .top_k = 2, .nvfp4_layers = 3};
  r.backend = "cuda";
  const MemoryPlan plan = decode::memory_plan(r);
  const std::int64_t host = decode::worst_stage(plan, false).total;
  const std::int64_t device = decode::worst_stage(plan, true).total;
  EXPECT_EQ(decode::no_room(r, {host, "m"}, decode::Room{device, "the device"}), std::nullopt);
  const Verdict why = decode::no_room(r, {host, "m"}, decode::Room{device - 1, "the device"});
  ASSERT_TRUE(why.has_value());
  EXPECT_NE(why->text.find("the device has"), std::string::npos);
}

}  // namespace
}  // namespace kerf::test
