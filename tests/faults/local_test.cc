// What breaks on one of four ranks of one process, twenty times each: all ranks end, soon, with that rank's
// number and its reason.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/inputs.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"
#include "tests/decode/watched_group.h"

namespace kerf::test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr int kRanks = 4;
constexpr int kOdd = 2;  // where it breaks
constexpr int kTimes = 20;

// One rank's files are its own to break.
class TwoDirectories {
 public:
  TwoDirectories() {
    fs::copy(model().path(), good_.path(),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    fs::copy(model().path(), bad_.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  // NVFP4 alone, small: a start takes a few milliseconds.
  static const Synthetic& model() {
    static const Synthetic made(8, 128, 256, {}, 2);
    return made;
  }
  [[nodiscard]] const fs::path& bad() const { return bad_.path(); }
  [[nodiscard]] checkpoint::Checkpoint open(int rank) const {
    return checkpoint::Checkpoint::open(rank == kOdd ? bad_.path() : good_.path());
  }
  [[nodiscard]] fs::path shard() const {
    for (const auto& file : fs::directory_iterator(bad_.path()))
      if (file.path().extension() == ".safetensors") return file.path();
    return {};
  }

 private:
  TempDir good_, bad_;
};

decode::RuntimeOptions expert_tp() {
  decode::RuntimeOptions options;
  options.expert_tp = true;
  return options;
}

// A start on every rank, opening included, as a program does it: what one rank meets, all agree on.
void start(comm::Group& group, tensor::Memory& memory, const decode::RuntimeOptions& options,
           const std::function<checkpoint::Checkpoint()>& open) {
  decode::Meter meter(memory);
  checkpoint::Checkpoint from;
  comm::agreed(group, "opening the checkpoint", [&] { from = open(); });
  const decode::Runtime runtime = decode::Runtime::build(from, options, {group, meter, Workers(1), {}});
  runtime.warm_up();
}

struct Ended {
  std::vector<Verdict> verdicts;
  double seconds = 0;
};

// Runs the body on every rank; ranks end as they end, and all of them do.
Ended end_of(std::chrono::milliseconds timeout,
             const std::function<void(comm::Group&, tensor::Memory&)>& body) {
  Ended ended;
  ended.verdicts.resize(kRanks);
  const auto begin = std::chrono::steady_clock::now();
  (void)attempt([&] {
    comm::run_local(kRanks, {.timeout = timeout}, [&](comm::Group& group) {
      Checked checked(group.rank());
      Verdict& mine = ended.verdicts[static_cast<std::size_t>(group.rank())];
      mine = attempt([&] { body(group, checked.memory); });
      require(mine);
    });
  });
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return ended;
}

// All ranks but those in `but` refused with the kind and the words, within 10 s.
void expect_ended(const Ended& ended, ErrorKind kind, std::initializer_list<std::string> words,
                  std::vector<int> but = {}) {
  EXPECT_LT(ended.seconds, 10);
  for (int r = 0; r < kRanks; ++r) {
    if (std::ranges::find(but, r) != but.end()) continue;
    const Verdict& v = ended.verdicts[static_cast<std::size_t>(r)];
    ASSERT_TRUE(v) << "rank " << r << " went on";
    EXPECT_EQ(v->kind, kind) << v->text;
    for (const std::string& word : words)
      EXPECT_NE(v->text.find(word), std::string::npos) << "no '" << word << "' in: " << v->text;
  }
}

void with_files(const TwoDirectories& files, ErrorKind kind, std::initializer_list<std::string> words) {
  for (int i = 0; i < kTimes; ++i)
    expect_ended(end_of(60s,
                        [&](comm::Group& group, tensor::Memory& memory) {
                          start(group, memory, expert_tp(), [&] { return files.open(group.rank()); });
                        }),
                 kind, words);
}

TEST(AFaultOnOneRank, AShardIsMissing) {
  const TwoDirectories files;
  fs::remove(files.shard());
  with_files(files, ErrorKind::checkpoint, {"rank 2: ", files.bad().string()});
}

TEST(AFaultOnOneRank, AShardIsAByteShort) {
  const TwoDirectories files;
  const fs::path shard = files.shard();
  fs::resize_file(shard, fs::file_size(shard) - 1);
  with_files(files, ErrorKind::checkpoint, {"rank 2: ", shard.filename().string()});
}

TEST(AFaultOnOneRank, AnAllocationFails) {
  class Scarce final : public tensor::Memory {
   public:
    Scarce(tensor::Memory& below, bool scarce) : below_(below), scarce_(scarce) {}
    std::byte* allocate(std::size_t bytes) override {
      if (scarce_ && ++count_ > 5) fail(ErrorKind::memory, "no {} bytes left on this machine", bytes);
      return below_.allocate(bytes);
    }
    void release(std::byte* block, std::size_t bytes) noexcept override { below_.release(block, bytes); }

   private:
    tensor::Memory& below_;
    bool scarce_;
    int count_ = 0;
  };
  const checkpoint::Checkpoint from = TwoDirectories::model().open();
  for (int i = 0; i < kTimes; ++i)
    expect_ended(end_of(60s,
                        [&](comm::Group& group, tensor::Memory& memory) {
                          Scarce scarce(memory, group.rank() == kOdd);
                          start(group, scarce, expert_tp(), [&] { return from; });
                        }),
                 ErrorKind::memory, {"rank 2: ", "bytes left on this machine"});
}

// Files in which one rank reads other bytes than the others.
TEST(AFaultOnOneRank, ABlockScaleIsNaN) {
  class Corrupt final : public tensor::Reader {
   public:
    explicit Corrupt(std::shared_ptr<const tensor::Reader> file) : file_(std::move(file)) {}
    void read(std::int64_t offset, std::span<std::byte> to) const override {
      file_->read(offset, to);
      if (to.size() > 256)
        std::fill(to.begin(), to.end(), std::byte{0x7F});  // scales alone are this long first
    }
    void will_need(std::int64_t /*offset*/, std::int64_t /*bytes*/) const noexcept override {}

   private:
    std::shared_ptr<const tensor::Reader> file_;
  };
  const checkpoint::Checkpoint good = TwoDirectories::model().open();
  const checkpoint::Checkpoint bad = good.through(
      [](std::shared_ptr<const tensor::Reader> file) { return std::make_shared<Corrupt>(std::move(file)); });
  for (int i = 0; i < kTimes; ++i)
    expect_ended(end_of(60s,
                        [&](comm::Group& group, tensor::Memory& memory) {
                          start(group, memory, expert_tp(),
                                [&] { return group.rank() == kOdd ? bad : good; });
                        }),
                 ErrorKind::checkpoint, {"layer 0", "0x7F"});
}

TEST(AFaultOnOneRank, TheProbeIsOverTheLimitThereAlone) {
  const checkpoint::Checkpoint from = TwoDirectories::model().open();
  for (int i = 0; i < kTimes; ++i)
    expect_ended(end_of(60s,
                        [&](comm::Group& group, tensor::Memory& memory) {
                          decode::RuntimeOptions options = expert_tp();
                          if (group.rank() == kOdd) options.probe.limit = 1e-9;
                          start(group, memory, options, [&] { return from; });
                        }),
                 ErrorKind::probe, {"rank 2: layer 0", "limit 1e-09"});
}

TEST(AFaultOnOneRank, ItSleepsBeforeTheFirstVote) {
  const checkpoint::Checkpoint from = TwoDirectories::model().open();
  for (int i = 0; i < kTimes; ++i)
    expect_ended(end_of(100ms,
                        [&](comm::Group& group, tensor::Memory& memory) {
                          if (group.rank() == kOdd) std::this_thread::sleep_for(250ms);
                          start(group, memory, expert_tp(), [&] { return from; });
                        }),
                 ErrorKind::peer, {"rank 2 did not reach 'opening the checkpoint' within 0.1 s"});
}

// It ends at the first exchange of weights: the others hear why, and what they waited for.
TEST(AFaultOnOneRank, ItLeavesDuringTheReshard) {
  const checkpoint::Checkpoint from = TwoDirectories::model().open();
  for (int i = 0; i < kTimes; ++i)
    expect_ended(end_of(60s,
                        [&](comm::Group& group, tensor::Memory& memory) {
                          Watched watched(group, [&](std::string_view what) {
                            if (group.rank() == kOdd && what == "w13") throw std::runtime_error("killed");
                          });
                          start(watched, memory, expert_tp(), [&] { return from; });
                        }),
                 ErrorKind::peer, {"rank 2 left while 'w13' was awaited: killed"}, {kOdd});
}

TEST(AFaultOnOneRank, ItLeavesBetweenTwoSteps) {
  const checkpoint::Checkpoint from = TwoDirectories::model().open();
  const auto in = decode::make_inputs(1, 0, 4, checkpoint::ExpertKind::nvfp4, {8, from.config().hidden, 4});
  for (const bool returns : {true, false})
    for (int i = 0; i < kTimes; ++i)
      expect_ended(end_of(60s,
                          [&](comm::Group& group, tensor::Memory& memory) {
                            decode::Meter meter(memory);
                            const decode::Runtime runtime =
                                decode::Runtime::build(from, expert_tp(), {group, meter, Workers(1), {}});
                            for (int step = 0; step < 10; ++step) {
                              if (group.rank() == kOdd && step == 5) {
                                if (returns) return;
                                throw std::runtime_error("killed");
                              }
                              (void)runtime.execute(0, decode::Mode::tp,
                                                    {4, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}});
                            }
                          }),
                   ErrorKind::peer,
                   {returns ? "rank 2 returned while '" : "rank 2 left while '", "' was awaited"}, {kOdd});
}

}  // namespace
}  // namespace kerf::test
