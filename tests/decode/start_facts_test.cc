// The vote at the start of a runtime: whatever one of 2, 4 or 8 ranks starts from differently, all of them
// end with the ranks and both values, before a byte of a tensor is read.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

#include "kerf/base/build_info.h"
#include "kerf/base/format.h"
#include "kerf/decode/decode.h"
#include "kerf/decode/runtime.h"
#include "kerf/decode/start_facts.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"
#include "tests/decode/watched_group.h"

namespace kerf::test {
namespace {

namespace fs = std::filesystem;

const Synthetic& model() {
  static const Synthetic made(16, 128, 512, {1}, 3);
  return made;
}

std::string read_all(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// A copy of the model for the odd rank to differ in.
class Copy {
 public:
  Copy() {
    fs::copy(model().path(), dir_.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  void replace(const std::string& file, const std::string& what, const std::string& by) const {
    const std::string text = read_all(dir_.path() / file);
    const std::string changed = std::regex_replace(text, std::regex(what), by);
    EXPECT_NE(changed, text) << what;
    std::ofstream(dir_.path() / file, std::ios::binary) << changed;
  }
  [[nodiscard]] checkpoint::Checkpoint open() const { return checkpoint::Checkpoint::open(dir_.path()); }
  [[nodiscard]] const fs::path& path() const { return dir_.path(); }

 private:
  TempDir dir_;
};

struct Ends {
  std::vector<Verdict> verdicts;
  std::int64_t read = 0;  // bytes of tensors, by all ranks
};

// A build in which rank ranks / 2 is given `odd` and `edit`ed options.
Ends ends_of(int ranks, const checkpoint::Checkpoint& odd,
             const std::function<void(decode::RuntimeOptions&)>& edit) {
  Ends out;
  const checkpoint::Checkpoint from = model().open().counted();
  const checkpoint::Checkpoint other = odd.counted();
  out.verdicts = thrown_on({ranks, 1, {}}, [&](const decode::Rank& rank) {
    const bool is_odd = rank.group.rank() == ranks / 2;
    decode::RuntimeOptions options;
    options.expert_tp = true;
    if (is_odd) edit(options);
    (void)decode::Runtime::build(is_odd ? other : from, options, rank);
  });
  out.read = from.read_bytes() + other.read_bytes();
  return out;
}

std::string sides(int ranks, const std::string& name, const std::string& odd, const std::string& others) {
  if (ranks == 2) return fmt::format("{}: rank 0: {}, rank 1: {}", name, others, odd);
  return fmt::format("{}: rank {}: {}, others: {}", name, ranks / 2, odd, others);
}

class StartsAlike : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, StartsAlike, testing::Values(2, 4, 8));

TEST_P(StartsAlike, OptionsThatDiffer) {
  struct Case {
    const char* name;
    const char* odd;
    const char* others;
    std::function<void(decode::RuntimeOptions&)> edit;
  };
  using O = decode::RuntimeOptions;
  for (const Case& c : std::vector<Case>{
           {"activation", "bf16", "nvfp4", [](O& o) { o.build.input = op::Input::bf16; }},
           {"layers", "0,2", "all",
            [](O& o) {
              o.build.layers = {0, 2};
            }},
           {"backend", "reference", "cpu", [](O& o) { o.build.backend = "reference"; }},
           {"uneven slices", "yes", "no", [](O& o) { o.build.fit.uneven = true; }},
           {"padding", "yes", "no", [](O& o) { o.build.fit.pad = true; }},
           {"expert TP", "no", "yes", [](O& o) { o.expert_tp = false; }},
           {"block", "muse-spark", "none", [](O& o) { o.block = decode::BlockKind::muse_spark; }},
           {"probe", "16 tokens, seed 20261023", "8 tokens, seed 20261023",
            [](O& o) { o.probe.tokens = 16; }},
           {"most tokens of a step", "9", "8", [](O& o) { o.max_tokens = 9; }},
           {"tokens of the warm-up", "1", "8", [](O& o) { o.warm_tokens = 1; }},
           {"preferred tactics", "8,0 16,2", "''",
            [](O& o) {
              o.preferred = {{8, 0}, {16, 2}};
            }},
           {"seconds of tuning", "1", "0", [](O& o) { o.tune.seconds = 1; }},
           {"tactic cache", "yes", "no", [](O& o) { o.tune.cache = "a/file"; }},
           {"tail", "exact", "fast", [](O& o) { o.tail.kind = tail::Kind::exact; }},
           {"sum of rows", "all-reduce", "in place", [](O& o) { o.tail.row_sum = tail::RowSum::all_reduce; }},
           {"engine", "(none)", "x", {}},
           {"seed", "2", "1", {}},
       }) {
    SCOPED_TRACE(c.name);
    const int ranks = GetParam();
    const Ends ends = [&] {
      if (c.edit) return ends_of(ranks, model().open(), c.edit);
      // A caller's own facts: one that a rank lacks, one that differs.
      Ends out;
      out.verdicts = thrown_on({ranks, 1, {}}, [&](const decode::Rank& rank) {
        decode::RuntimeOptions options;
        const bool is_odd = rank.group.rank() == ranks / 2;
        if (!is_odd || c.odd != std::string("(none)"))
          options.facts = {{c.name, is_odd ? c.odd : c.others, ErrorKind::usage}};
        (void)decode::Runtime::build(model().open(), options, rank);
      });
      return out;
    }();
    expect_all_refuse(ends.verdicts, ErrorKind::usage, {sides(ranks, c.name, c.odd, c.others)});
    EXPECT_EQ(ends.read, 0);
  }
}

TEST_P(StartsAlike, ListsOfTacticsThatDiffer) {
  const Ends ends = ends_of(GetParam(), model().open(), [](decode::RuntimeOptions& o) {
    o.lists = {{{"a-package", "a device", {4, 128, 64}, 16, 4}, op::Arithmetic::w4a4, {{8, 0}, {16, 1}}, {}}};
  });
  expect_all_refuse(ends.verdicts, ErrorKind::usage,
                    {"lists of tactics: ", "a-package on a device, w4a4", ": 8,0 16,1"});
  EXPECT_EQ(ends.read, 0);
}

TEST_P(StartsAlike, AModelWhoseConfigDiffers) {
  const Copy copy;
  copy.replace("config.json", "(\"num_experts_per_tok\": *)4", "$013");
  const Ends ends = ends_of(GetParam(), copy.open(), [](auto&) {});
  expect_all_refuse(ends.verdicts, ErrorKind::checkpoint,
                    {"model: ", "top 3", "top 4", "model width", "; configuration files' digest: "});
  EXPECT_EQ(ends.read, 0);
}

// No number of the model's changes, and yet it is another file.
TEST_P(StartsAlike, AConfigThatDiffersInAByte) {
  const Copy copy;
  copy.replace("config.json", "\\{", "{ ");
  const Ends ends = ends_of(GetParam(), copy.open(), [](auto&) {});
  expect_all_refuse(ends.verdicts, ErrorKind::checkpoint,
                    {"the ranks do not start alike: configuration files' digest: rank"});
  EXPECT_EQ(ends.read, 0);
}

// The same tensors in a file that is called something else.
TEST_P(StartsAlike, HeadersThatDiffer) {
  const Copy copy;
  fs::remove(copy.path() / "model.safetensors.index.json");
  std::vector<fs::path> shards;
  for (const auto& file : fs::directory_iterator(copy.path()))
    if (file.path().extension() == ".safetensors") shards.push_back(file.path());
  ASSERT_FALSE(shards.empty());
  std::ranges::sort(shards);
  for (std::size_t i = 0; i < shards.size(); ++i)
    fs::rename(shards[i],
               copy.path() / fmt::format("model-{:03}-of-{:03}.safetensors", i + 1, shards.size()));
  const Ends ends = ends_of(GetParam(), copy.open(), [](auto&) {});
  expect_all_refuse(ends.verdicts, ErrorKind::checkpoint,
                    {"the ranks do not start alike: headers' digest: rank"});
  EXPECT_EQ(ends.read, 0);
}

// Ranks of which one stands in another grid than it should.
TEST_P(StartsAlike, APlacementThatDiffers) {
  const int ranks = GetParam();
  if (ranks == 2) GTEST_SKIP() << "a grid of two ranks is one row or one column";
  const checkpoint::Checkpoint from = model().open().counted();
  const auto verdicts = thrown_on({ranks, 1, {}}, [&](const decode::Rank& rank) {
    const comm::Grid grid(rank.group, ranks / 2, 2);
    decode::RuntimeOptions options;
    options.expert_tp = true;
    const decode::Rank in_grid{rank.group, rank.memory, rank.workers, rank.log,
                               rank.group.rank() == ranks / 2 ? nullptr : &grid};
    (void)decode::Runtime::build(from, options, in_grid);
  });
  expect_all_refuse(verdicts, ErrorKind::usage,
                    {sides(ranks, "placement", fmt::format("{0} ranks, EP 1 x TP {0}", ranks),
                           fmt::format("{} ranks, EP {} x TP 2", ranks, ranks / 2))});
  EXPECT_EQ(from.read_bytes(), 0);
}

TEST_P(StartsAlike, SeveralFactsAtOnce) {
  const int ranks = GetParam();
  const Ends ends = ends_of(ranks, model().open(), [](decode::RuntimeOptions& o) {
    o.max_tokens = 4;
    o.tail.kind = tail::Kind::exact;
    o.build.layers = {2};
  });
  expect_all_refuse(ends.verdicts, ErrorKind::usage,
                    {sides(ranks, "layers", "2", "all"), sides(ranks, "most tokens of a step", "4", "8"),
                     sides(ranks, "tail", "exact", "fast")});
}

// What `kerf decode` goes through.
TEST_P(StartsAlike, StepsThatDiffer) {
  const int ranks = GetParam();
  struct Case {
    const char* name;
    const char* odd;
    const char* others;
    std::function<void(decode::Options&)> edit;
  };
  using O = decode::Options;
  const checkpoint::Checkpoint from = model().open().counted();
  for (const Case& c :
       std::vector<Case>{{"batches", "1,8,2", "1,8",
                          [](O& o) {
                            o.batches = {1, 8, 2};
                          }},
                         {"seed", "7", "1", [](O& o) { o.seed = 7; }},
                         {"modes", "ep,tp", "ep",
                          [](O& o) {
                            o.modes = {decode::Mode::ep, decode::Mode::tp};
                          }},
                         {"tails", "fast,exact", "fast",
                          [](O& o) {
                            o.tails = {tail::Kind::fast, tail::Kind::exact};
                          }},
                         {"repetitions", "3", "5", [](O& o) { o.repetitions = 3; }},
                         {"seconds of a step's repetitions", "0.5", "2", [](O& o) { o.seconds = 0.5; }}}) {
    SCOPED_TRACE(c.name);
    const auto verdicts = thrown_on({ranks, 1, {}}, [&](const decode::Rank& rank) {
      decode::Options options;
      if (rank.group.rank() == ranks / 2) c.edit(options);
      (void)decode::run(from, options, rank);
    });
    expect_all_refuse(verdicts, ErrorKind::usage, {sides(ranks, c.name, c.odd, c.others)});
  }
  EXPECT_EQ(from.read_bytes(), 0);
}

// A scale one bit away on one rank, which reads the file's other bytes as they are: before a weight is read.
TEST_P(StartsAlike, AGlobalScaleThatDiffersInItsLastBit) {
  const int ranks = GetParam();
  const TempDir good;
  const TempDir bad;
  Onehot onehot;
  onehot.write(good.path());
  const std::string name = onehot.name(2, "up_proj.weight_scale_2");
  float scale = 0;
  std::memcpy(&scale, onehot.at(name).bytes.data(), sizeof(scale));
  onehot.set_f32(name, std::nextafterf(scale, 2 * scale));
  onehot.write(bad.path());
  const auto from = checkpoint::Checkpoint::open(good.path()).counted();
  const auto other = checkpoint::Checkpoint::open(bad.path()).counted();
  const auto verdicts = thrown_on({std::min(ranks, 4), 1, {}}, [&](const decode::Rank& rank) {
    (void)decode::Runtime::build(rank.group.rank() == 1 ? other : from, {}, rank);
  });
  const auto text = [](float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return fmt::format("{} (0x{:08x})", value, bits);
  };
  const std::string wanted =
      ranks == 2
          ? fmt::format("rank 0: {}, rank 1: {}", text(scale), text(std::nextafterf(scale, 2 * scale)))
          : fmt::format("rank 1: {}, others: {}", text(std::nextafterf(scale, 2 * scale)), text(scale));
  expect_all_refuse(verdicts, ErrorKind::checkpoint, {"layer 0, up's weight_scale_2 of expert 2: " + wanted});
  // Of every rank the scales alone: [E] of six tensors of 4 bytes, and what stands beside the experts.
  const std::int64_t scales = from.layer(0).expert_bytes();
  EXPECT_LT(from.read_bytes(), scales * std::min(ranks, 4) / 4);
}

TEST(StartsAlike, TheVoteIsTheFirstThingThatRanksSayToEachOther) {
  std::vector<std::string> seen;
  const checkpoint::Checkpoint from = model().open();
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    Watched watched(rank.group, [&](std::string_view what) {
      if (rank.group.rank() == 0) seen.emplace_back(what);
    });
    (void)decode::Runtime::build(from, {}, {watched, rank.memory, rank.workers, rank.log});
  });
  EXPECT_EQ(seen.front(), "comparing what the ranks start from");
}

TEST(StartsAlike, VersionPackageAndLayoutAreAmongTheFacts) {
  on_ranks({1, 1, {}}, [&](const decode::Rank& rank) {
    const comm::Facts facts = decode::facts_of(rank, "cpu:scalar");
    const auto value = [&](const std::string& name) {
      for (const comm::Fact& f : facts)
        if (f.name == name) return f.value;
      return std::string("(absent)");
    };
    EXPECT_EQ(value("kerf"), version());
    EXPECT_EQ(value("kernel package"), op::backend("cpu:scalar").package());
    EXPECT_EQ(value("layout"), "trtllm-gen-1");
  });
}

}  // namespace
}  // namespace kerf::test
