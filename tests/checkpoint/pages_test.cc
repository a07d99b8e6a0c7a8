// How much of a checkpoint is read: the experts that are asked for, and no more.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <string>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/tools/synth.h"
#include "tests/support/test_env.h"

namespace kerf::checkpoint {
namespace {

// Bytes that this process has read so far, from a disk or not. Nothing where the system does not tell.
std::optional<std::int64_t> bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string name;
  std::int64_t value = 0;
  while (io >> name >> value)
    if (name == "rchar:") return value;
  return std::nullopt;
}

// A rank that opens a checkpoint, reads all global scales, what stands beside the experts and its own expert
// leaves the other experts alone.
TEST(Pages, OfOtherExpertsStayUnread) {
  for (const tools::SynthModel model : {tools::SynthModel::qwen3_moe, tools::SynthModel::muse_spark}) {
    const test::TempDir dir;
    tools::SynthOptions o = tools::synth_defaults(model);
    o.experts = 4;
    o.hidden = 4096;
    o.intermediate = 2048;
    o.layers = 1;
    o.top_k = 2;
    o.bf16_layers = {};
    tools::synth(dir.path(), o, Workers(2));

    const auto before = bytes_read();
    if (!before) GTEST_SKIP() << "/proc/self/io cannot be read";
    const Checkpoint opened = Checkpoint::open(dir.path());
    const MoeLayer& layer = opened.layer(0);
    Faults faults;
    (void)layer.scales(faults);
    layer.scan_extras(faults);
    layer.scan_block_scales(0, faults);
    EXPECT_TRUE(faults.empty()) << faults.text();
    const auto scanned = bytes_read();
    (void)layer.expert_files(1);  // where it is, not what
    const ExpertViews own = layer.expert(0);
    const auto after = bytes_read();
    // A ninth of an expert is its block scales; headers, configurations and other scales are a few KiB.
    const std::int64_t expert = layer.expert_bytes();
    EXPECT_EQ(expert, 3 * 4096 * 2048 * 9 / 16);
    EXPECT_GE(*scanned - *before, expert / 9) << tools::name(model);
    EXPECT_LT(*scanned - *before, expert / 9 + 100'000) << tools::name(model);
    EXPECT_GE(*after - *scanned, expert) << tools::name(model);
    EXPECT_LT(*after - *scanned, expert + 10'000) << tools::name(model);
  }
}

}  // namespace
}  // namespace kerf::checkpoint
