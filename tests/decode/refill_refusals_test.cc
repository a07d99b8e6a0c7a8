// Refills that are refused: one rank's fault, or a source that is of something else, leaves every byte of the
// layer what it was on every rank, says why on all of them, and the next refill succeeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <regex>

#include "kerf/comm/agree.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/forwarding_group.h"
#include "tests/decode/refill_support.h"
#include "tests/faults/faulty.h"
#include "tests/faults/spoilt.h"

namespace kerf::test {
namespace {

namespace fs = std::filesystem;

using decode::Runtime;
using decode::RuntimeOptions;

constexpr int kRanks = 4;
constexpr int kOdd = 2;  // the faulty rank

tools::SynthOptions plain_options() {
  tools::SynthOptions o = spark_options();
  o.model = tools::SynthModel::qwen3_moe;
  return o;
}

// A directory that a test may spoil.
class Copy {
 public:
  explicit Copy(const Weights& of) {
    fs::copy(of.path(), dir_.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  void replace(const std::string& file, const std::string& what, const std::string& by) const {
    std::ifstream in(dir_.path() / file, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    in.close();
    const std::string changed = std::regex_replace(text, std::regex(what), by);
    ASSERT_NE(changed, text) << what;
    std::ofstream(dir_.path() / file, std::ios::binary) << changed;
  }
  [[nodiscard]] fs::path shard() const {
    for (const auto& file : fs::directory_iterator(dir_.path()))
      if (file.path().extension() == ".safetensors") return file.path();
    return {};
  }
  [[nodiscard]] checkpoint::Checkpoint open() const { return checkpoint::Checkpoint::open(dir_.path()); }
  [[nodiscard]] const fs::path& path() const { return dir_.path(); }

 private:
  TempDir dir_;
};

const Weights& old_weights() {
  static const Weights w(plain_options(), 1);
  return w;
}
const Weights& new_weights() {
  static const Weights w(plain_options(), 2);
  return w;
}

// Memory that ends when it is told to.
class Ending final : public tensor::Memory {
 public:
  std::byte* allocate(std::size_t bytes) override {
    if (left == 0) fail(ErrorKind::memory, "no {} bytes left on this machine", bytes);
    if (left > 0) --left;
    return below_.allocate(bytes);
  }
  void release(std::byte* block, std::size_t bytes) noexcept override { below_.release(block, bytes); }
  std::int64_t left = -1;  // blocks; -1: as many as are asked for

 private:
  tensor::HostMemory below_;
};

// A group whose all-to-all turns what one rank receives of one tensor kind round, when it is told to.
class Turning final : public ForwardingGroup {
 public:
  Turning(comm::Group& below, bool odd) : ForwardingGroup(below), odd_(odd) {}
  void all_to_all(std::span<const tensor::StridedBytes> send, std::span<const std::span<std::byte>> received,
                  std::string_view what) override {
    ForwardingGroup::all_to_all(send, received, what);
    if (turn && odd_ && what == "w2")
      for (const auto& part : received) std::reverse(part.begin(), part.end());
  }
  bool turn = false;

 private:
  bool odd_;
};

struct Attempted {
  decode::Rank rank;
  Runtime& runtime;
  Ending& memory;
  Turning& group;
};

// Four ranks with a runtime each; `refill` is refused with the kind and the words on all of them, and leaves
// what it found. `mine`: only this layer may be named.
void expect_refused(int tp, ErrorKind kind, std::initializer_list<std::string> words,
                    const std::function<void(const Attempted&)>& refill) {
  const checkpoint::Checkpoint a = old_weights().open();
  const checkpoint::Checkpoint b = new_weights().open();
  std::vector<Verdict> verdicts(kRanks);
  comm::run_local(kRanks, {}, [&](comm::Group& below) {
    Turning group(below, below.rank() == kOdd);
    Ending memory;
    decode::Meter meter(memory);
    const decode::Rank rank{group, meter, Workers(1), {}};
    RuntimeOptions options;
    options.expert_tp = tp > 1;
    Runtime runtime = Runtime::build(a, options, rank);
    const std::vector<Bits> before = steps_of(runtime);
    std::vector<std::vector<std::byte>> bytes;
    for (std::size_t i = 0; i < before.size(); ++i) bytes.push_back(contents_of(runtime, i));
    const std::int64_t in_use = rank.memory.current();
    verdicts[static_cast<std::size_t>(group.rank())] = attempt([&] {
      refill({rank, runtime, memory, group});
    });
    memory.left = -1;
    group.turn = false;
    EXPECT_EQ(rank.memory.current(), in_use);
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(contents_of(runtime, i), bytes[i]) << i;
    EXPECT_EQ(steps_of(runtime), before);
    // The ranks are together still: a sound refill goes through.
    (void)runtime.refill(0, b);
    EXPECT_NE(steps_of(runtime, 0), before[0]);
    EXPECT_EQ(steps_of(runtime, 1), before[1]);
  });
  expect_all_refuse(verdicts, kind, words);
}

class RefillRefusals : public testing::TestWithParam<int> {};  // 1: EP, 4: expert TP
INSTANTIATE_TEST_SUITE_P(Tp, RefillRefusals, testing::Values(1, 4));

// A refill in which one rank has a source of its own.
std::function<void(const Attempted&)> with_odd_source(const checkpoint::Checkpoint& good,
                                                      const checkpoint::Checkpoint& odd) {
  return [&](const Attempted& a) { (void)a.runtime.refill(0, a.rank.group.rank() == kOdd ? odd : good); };
}

TEST_P(RefillRefusals, ABlockScaleThatIsNan) {
  const checkpoint::Checkpoint good = new_weights().open();
  const checkpoint::Checkpoint odd = Corrupt::in(good);
  expect_refused(GetParam(), ErrorKind::checkpoint, {"layer 0", "expert 4", "0x7F"},
                 with_odd_source(good, odd));
}

TEST_P(RefillRefusals, AGlobalScaleThatDiffersInItsLastBit) {
  const Copy copy(new_weights());
  const auto header = checkpoint::read_header(copy.shard());
  const auto entry = std::ranges::find_if(header.tensors, [](const auto& t) {
    return t.first.find("layers.0.mlp.experts.5.down_proj.weight_scale_2") != std::string::npos;
  });
  ASSERT_NE(entry, header.tensors.end());
  {
    std::fstream file(copy.shard(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(entry->second.begin);
    const char last = static_cast<char>(file.get() ^ 1);
    file.seekp(entry->second.begin);
    file.put(last);
  }
  const checkpoint::Checkpoint good = new_weights().open();
  const checkpoint::Checkpoint odd = copy.open();
  expect_refused(GetParam(), ErrorKind::checkpoint,
                 {"layer 0, down's weight_scale_2 of expert 5: rank 2: ", ", others: "},
                 with_odd_source(good, odd));
}

// Opening is agreed on by who opens; a tensor that is gone by then is another header.
TEST_P(RefillRefusals, ATensorThatIsMissing) {
  const Copy copy(new_weights());
  {
    std::fstream file(copy.shard(), std::ios::in | std::ios::out | std::ios::binary);
    std::string head(1 << 16, '\0');
    file.read(head.data(), std::ssize(head));
    const std::size_t at = head.find("layers.0.mlp.experts.5.down_proj.weight\"");
    ASSERT_NE(at, std::string::npos);
    file.clear();
    file.seekp(static_cast<std::streamoff>(head.find("down_proj", at)));
    file.write("gone_proj", 9);
  }
  const checkpoint::Checkpoint good = new_weights().open();
  expect_refused(GetParam(), ErrorKind::checkpoint, {"rank 2: ", "layers.0.mlp.experts.5.down_proj"},
                 [&](const Attempted& a) {
                   checkpoint::Checkpoint source = good;
                   comm::agreed(a.rank.group, "opening the new weights", [&] {
                     if (a.rank.group.rank() == kOdd) source = copy.open();
                     (void)source.layer(0);
                   });
                   (void)a.runtime.refill(0, source);
                 });
}

TEST_P(RefillRefusals, AFileThatChangesAfterItWasOpened) {
  const Copy copy(new_weights());
  const checkpoint::Checkpoint good = new_weights().open();
  const checkpoint::Checkpoint odd = copy.open();
  fs::resize_file(copy.shard(), fs::file_size(copy.shard()) / 2);
  expect_refused(GetParam(), ErrorKind::checkpoint, {"rank 2: ", copy.shard().filename().string()},
                 with_odd_source(good, odd));
}

TEST_P(RefillRefusals, AConfigurationThatDiffersOnOneRank) {
  const Copy copy(new_weights());
  change_top_k(copy.path() / "config.json");
  const checkpoint::Checkpoint good = new_weights().open();
  const checkpoint::Checkpoint odd = copy.open();
  expect_refused(GetParam(), ErrorKind::checkpoint, {"model: rank 2: ", "top 2", "others: ", "top 4"},
                 with_odd_source(good, odd));
}

// Wherever memory ends, from the first block to the last.
TEST_P(RefillRefusals, AnAllocationThatFails) {
  const checkpoint::Checkpoint b = new_weights().open();
  const int blocks = GetParam() > 1 ? 21 : 9;  // stock; slices; two runs of the probe, three each and none
  for (int left = 0; left<blocks; left += GetParam()> 1 ? 4 : 2) {
    SCOPED_TRACE(left);
    expect_refused(GetParam(), ErrorKind::memory, {"rank 2: ", " bytes left on this machine"},
                   [&](const Attempted& a) {
                     if (a.rank.group.rank() == kOdd) a.memory.left = left;
                     (void)a.runtime.refill(0, b);
                   });
  }
}

TEST_P(RefillRefusals, RanksThatRefillDifferentLayers) {
  const checkpoint::Checkpoint b = new_weights().open();
  expect_refused(GetParam(), ErrorKind::usage, {"layer to refill: rank 2: 2, others: 0"},
                 [&](const Attempted& a) { (void)a.runtime.refill(a.rank.group.rank() == kOdd ? 2 : 0, b); });
  expect_refused(GetParam(), ErrorKind::usage, {"rank 2: layer number 3 of a runtime with 3 layers"},
                 [&](const Attempted& a) { (void)a.runtime.refill(a.rank.group.rank() == kOdd ? 3 : 0, b); });
}

TEST_P(RefillRefusals, ASourceOfAnotherKindOnOneRank) {
  const checkpoint::Checkpoint b = new_weights().open();
  expect_refused(GetParam(), ErrorKind::usage, {"source: rank 2: an engine's layer, others: a checkpoint"},
                 [&](const Attempted& a) {
                   if (a.rank.group.rank() == kOdd)
                     (void)a.runtime.refill(0, decode::StockLayer{});
                   else
                     (void)a.runtime.refill(0, b);
                 });
}

// A bad cut, on one rank: the probe finds it before a byte has landed.
TEST(RefillProbe, ABadCutDoesNotLand) {
  const checkpoint::Checkpoint b = new_weights().open();
  expect_refused(4, ErrorKind::probe, {"layer 0: the probe found rel L2", "limit 0.01"},
                 [&](const Attempted& a) {
                   a.group.turn = true;
                   (void)a.runtime.refill(0, b);
                 });
}

// All ranks have one source, of another model: each value with what it is and what it should be.
struct Other {
  std::string label;
  std::function<void(tools::SynthOptions&)> change;
  std::vector<std::string> words;

  friend void PrintTo(const Other& o, std::ostream* to) { *to << o.label; }
};

class OtherModels : public testing::TestWithParam<Other> {};

INSTANTIATE_TEST_SUITE_P(
    Each, OtherModels,
    testing::Values(
        Other{"Experts", [](auto& o) { o.experts = 16; }, {"experts: got 16, wanted 8"}},
        Other{"TopK", [](auto& o) { o.top_k = 2; }, {"experts of a token: got 2, wanted 4"}},
        Other{"Hidden", [](auto& o) { o.hidden = 256; }, {"width of the experts: got 256, wanted 128"}},
        Other{"Intermediate",
              [](auto& o) { o.intermediate = 512; },
              {"intermediate width: got 512, wanted 256"}},
        Other{"Layers", [](auto& o) { o.layers = 2; }, {"layers: got 2, wanted 3"}},
        Other{"Architecture",
              [](auto& o) { o.model = tools::SynthModel::muse_spark; },
              {"architecture: got ", "norm after the experts: got eps ", "wanted none"}},
        Other{"Activation", [](auto& o) { o.dialect = "gpt-oss"; }, {"SwiGLU's alpha: got 1.702, wanted 1"}},
        Other{"Kind",
              [](auto& o) {
                o.bf16_layers = {0, 1};
              },
              {"layer 0: kind of experts: got BF16, wanted NVFP4"}},
        Other{"WeightOnly",
              [](auto& o) { o.weight_only = true; },
              {"layer 0: input of the experts: got bf16 rows, wanted quantised rows (W4A4)"}}),
    [](const auto& listed) { return listed.param.label; });

TEST_P(OtherModels, AreRefusedByName) {
  tools::SynthOptions options = plain_options();
  GetParam().change(options);
  const Weights weights(options, 2);
  const checkpoint::Checkpoint source = weights.open();
  for (const int tp : {1, 4})
    expect_refused(tp, ErrorKind::checkpoint, {weights.path().string()}, [&](const Attempted& a) {
      const Verdict v = attempt([&] { (void)a.runtime.refill(0, source); });
      ASSERT_TRUE(v);
      for (const std::string& word : GetParam().words)
        EXPECT_NE(v->text.find(word), std::string::npos) << "no '" << word << "' in: " << v->text;
      require(v);
    });
}

TEST(RefillRefusal, ARouterThatChoosesInAnotherWay) {
  const Copy copy(new_weights());
  copy.replace("config.json", "\"norm_topk_prob\": *true", "\"norm_topk_prob\": false");
  const checkpoint::Checkpoint source = copy.open();
  expect_refused(4, ErrorKind::checkpoint, {"normalised weights: got false, wanted true"},
                 [&](const Attempted& a) { (void)a.runtime.refill(0, source); });
}

// The room is asked for one layer, before it is read: a host that a runtime just fits into has none left.
TEST(RefillRefusal, NoRoomForOneLayer) {
  const checkpoint::Checkpoint a = old_weights().open();
  const checkpoint::Checkpoint b = new_weights().open().counted();
  const std::vector<Verdict> verdicts = thrown_on({2, 1, {}}, [&](const decode::Rank& rank) {
    RuntimeOptions options;
    options.expert_tp = true;
    options.room = decode::Room{std::int64_t{1} << 40, "the host"};
    rank.memory.reset_peak();
    (void)Runtime::build(a, options, rank);
    options.room->bytes = 2 * rank.memory.peak() + (std::int64_t{64} << 10);
    Runtime runtime = Runtime::build(a, options, rank);
    const auto bytes = contents_of(runtime, 0);
    const Verdict v = attempt([&] { (void)runtime.refill(0, b); });
    EXPECT_EQ(contents_of(runtime, 0), bytes);
    require(v);
  });
  expect_all_refuse(verdicts, ErrorKind::memory, {"the refill of layer 0", "wanted, and the host has"});
  EXPECT_EQ(b.read_bytes(), 0);
}

}  // namespace
}  // namespace kerf::test
