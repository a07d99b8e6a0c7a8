// What each rank reads of a checkpoint's files, counted where the files are read; and ranks that have no
// files and are sent theirs.
#include <gtest/gtest.h>

#include <atomic>

#include "kerf/base/format.h"
#include "kerf/decode/decode.h"
#include "kerf/decode/feed.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

using decode::Mode;

// Bytes of the experts' tensors by dtype, from the files' headers; `rest`: of all that is no code and no
// block scale.
struct Held {
  std::int64_t weights = 0, scales = 0, rest = 0;
};
Held held_in(const std::filesystem::path& directory) {
  Held held;
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    if (file.path().extension() != ".safetensors") continue;
    for (const auto& [name, entry] : checkpoint::read_header(file.path()).tensors) {
      if (name.find("experts") == std::string::npos) continue;
      std::int64_t& of = entry.dtype == tensor::Dtype::u8        ? held.weights
                         : entry.dtype == tensor::Dtype::f8_e4m3 ? held.scales
                                                                 : held.rest;
      of += entry.end - entry.begin;
    }
  }
  return held;
}

decode::Options few(std::vector<Mode> modes = {Mode::ep}) {
  decode::Options options;
  options.modes = std::move(modes);
  options.batches = {4};
  options.seconds = 0;
  options.repetitions = 1;
  return options;
}

decode::Report run_on(int ranks, const decode::Options& options,
                      const std::function<checkpoint::Checkpoint(const decode::Rank&)>& open) {
  decode::Report report;
  on_ranks({ranks, 1, {}}, [&](const decode::Rank& rank) {
    decode::Report mine = decode::run(open(rank), options, rank);
    if (rank.group.rank() == 0) report = std::move(mine);
  });
  return report;
}

// Weights once, block scales twice (looked at, converted), each rank those of its own experts; what concerns
// all experts (scales of a few bytes, the norm) on every rank.
TEST(Reads, ARankReadsItsOwnExperts) {
  const Synthetic model(16, 256, 256, {}, 2);
  const checkpoint::Checkpoint from = model.open();
  const auto [weights, scales, rest] = held_in(model.path());
  ASSERT_GT(weights, 0);
  ASSERT_EQ(scales, weights / 8);  // a byte for 16 codes
  for (const int ranks : {1, 2, 4, 8}) {
    const decode::Report report = run_on(ranks, few(), [&](const decode::Rank&) { return from; });
    ASSERT_EQ(report.read_bytes.size(), static_cast<std::size_t>(ranks));
    for (const std::int64_t bytes : report.read_bytes) {
      const std::int64_t own = (weights + 2 * scales) / ranks;
      EXPECT_GE(bytes, own) << ranks;
      EXPECT_LE(bytes, own + 4 * rest + 8192) << ranks;  // norms and biases are looked at, then copied
    }
  }
}

// A reader of a file that must not be read.
class Refusing final : public tensor::Reader {
 public:
  void read(std::int64_t /*offset*/, std::span<std::byte> /*to*/) const override {
    fail(ErrorKind::checkpoint, "these files are not for this rank");
  }
  void will_need(std::int64_t /*offset*/, std::int64_t /*bytes*/) const noexcept override {}
};

TEST(Reads, OneRankReadsForAll) {
  const checkpoint::Checkpoint files = small_model().open();
  for (const int root : {0, 2}) {
    const decode::Options options = few({Mode::ep, Mode::tp});
    const decode::Report direct = run_on(4, options, [&](const decode::Rank&) { return files; });
    std::atomic<int> opened{0};
    const decode::Report fed = run_on(4, options, [&](const decode::Rank& rank) {
      return decode::fed_from(rank.group, root, [&] {
        ++opened;
        return files;
      });
    });
    EXPECT_EQ(opened, 1);
    ASSERT_EQ(fed.steps.size(), direct.steps.size());
    for (std::size_t i = 0; i < fed.steps.size(); ++i)
      EXPECT_EQ(fed.steps[i].output_sha256, direct.steps[i].output_sha256);
    std::int64_t all = 0;
    for (const std::int64_t bytes : direct.read_bytes) all += bytes;
    for (int r = 0; r < 4; ++r) {
      const std::int64_t bytes = fed.read_bytes[static_cast<std::size_t>(r)];
      if (r == root) {
        EXPECT_LE(bytes, all);
        EXPECT_GE(bytes, all * 9 / 10);
      } else {
        EXPECT_EQ(bytes, 0);
      }
    }
  }
}

TEST(Reads, OneRankReadsForAllWithABlock) {
  const checkpoint::Checkpoint files = small_model().open();
  decode::Options options = few();
  options.block = decode::BlockKind::muse_spark;
  const decode::Report direct = run_on(4, options, [&](const decode::Rank&) { return files; });
  const decode::Report fed = run_on(4, options, [&](const decode::Rank& rank) {
    return decode::fed_from(rank.group, 0, [&] { return files; });
  });
  EXPECT_EQ(fed.steps[0].output_sha256, direct.steps[0].output_sha256);
}

// Whatever stops the reading rank, when it opens or half-way, stops all, with its number and its reason.
TEST(Reads, TheReadingRanksReasonEndsAll) {
  const checkpoint::Checkpoint files = small_model().open();
  const auto ended = [&](int root, const std::function<checkpoint::Checkpoint()>& open) {
    return thrown_on({4, 1, {}}, [&](const decode::Rank& rank) {
      (void)decode::run(decode::fed_from(rank.group, root, open), few(), rank);
    });
  };
  expect_all_refuse(
      ended(1,
            []() -> checkpoint::Checkpoint { return checkpoint::Checkpoint::open("/no/such/checkpoint"); }),
      ErrorKind::checkpoint, {"rank 1", "/no/such/checkpoint: no such directory"});
  expect_all_refuse(ended(4, [&] { return files; }), ErrorKind::usage, {"rank 4 of 4"});
  // Readers of a file that became shorter: they read so many times, then no more.
  for (const int reads : {0, 1, 10, 60}) {
    const auto left = std::make_shared<std::atomic<int>>(reads);
    class Short final : public tensor::Reader {
     public:
      Short(std::shared_ptr<const tensor::Reader> file, std::shared_ptr<std::atomic<int>> times)
          : file_(std::move(file)), left_(std::move(times)) {}
      void read(std::int64_t offset, std::span<std::byte> to) const override {
        if (--*left_ < 0) fail(ErrorKind::checkpoint, "the file became shorter");
        file_->read(offset, to);
      }
      void will_need(std::int64_t /*offset*/, std::int64_t /*bytes*/) const noexcept override {}

     private:
      std::shared_ptr<const tensor::Reader> file_;
      std::shared_ptr<std::atomic<int>> left_;
    };
    expect_all_refuse(ended(0,
                            [&] {
                              return files.through([&](std::shared_ptr<const tensor::Reader> file) {
                                return std::make_shared<Short>(std::move(file), left);
                              });
                            }),
                      ErrorKind::checkpoint, {"rank 0", "the file became shorter"});
  }
  expect_all_refuse(ended(3,
                          [&] {
                            return files.through([](const std::shared_ptr<const tensor::Reader>&) {
                              return std::make_shared<Refusing>();
                            });
                          }),
                    ErrorKind::checkpoint, {"rank 3", "these files are not for this rank"});
}

// A rank that fails for itself while it is being sent experts does not leave the others waiting.
TEST(Reads, AReceivingRankThatFailsEndsAll) {
  class Small final : public tensor::Memory {
   public:
    std::byte* allocate(std::size_t bytes) override {
      if (bytes > 100'000) fail(ErrorKind::memory, "no {} bytes here", bytes);
      return below_.allocate(bytes);
    }
    void release(std::byte* block, std::size_t bytes) noexcept override { below_.release(block, bytes); }

   private:
    tensor::HostMemory below_;
  };
  const checkpoint::Checkpoint files = small_model().open();
  expect_all_refuse(
      thrown_on({4, 1, {}},
                [&](const decode::Rank& rank) {
                  Small small;
                  decode::Meter meter(small);
                  const decode::Rank mine{rank.group, rank.group.rank() == 2 ? meter : rank.memory,
                                          rank.workers, rank.log};
                  (void)decode::run(decode::fed_from(rank.group, 0, [&] { return files; }), few(), mine);
                }),
      ErrorKind::memory, {"rank 2", "layer 0", "no "});
}

}  // namespace
}  // namespace kerf::test
