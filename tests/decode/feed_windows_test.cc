// A checkpoint that one rank reads for all goes over the group in windows: what is sent and what arrives at a
// time stays within the bounds of feed.h, however large the experts are.
#include <gtest/gtest.h>

#include <algorithm>

#include "kerf/decode/feed.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/forwarding_group.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// Bytes of all-to-alls: the most that this rank sends in one, and that arrives here in one window. A window
// begins with the lengths of what ranks ask for, eight bytes of each.
class Measuring final : public ForwardingGroup {
 public:
  explicit Measuring(comm::Group& below) : ForwardingGroup(below) {}
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) override {
    if (mine.size() == 8) window_ = 0;
    ForwardingGroup::all_gather(mine, all, what);
  }
  void all_to_all(std::span<const tensor::StridedBytes> send, std::span<const std::span<std::byte>> received,
                  std::string_view what) override {
    std::int64_t sent = 0;
    for (const auto& block : send) sent += block.packed_bytes();
    most_sent = std::max(most_sent, sent);
    for (const auto& part : received) window_ += std::ssize(part);
    most_received = std::max(most_received, window_);
    all_sent += sent;
    ForwardingGroup::all_to_all(send, received, what);
  }

  std::int64_t most_sent = 0, most_received = 0, all_sent = 0;

 private:
  std::int64_t window_ = 0;
};

struct Bounds {
  std::vector<std::int64_t> sent, received, all;
};

Bounds bounds_of(int ranks, const checkpoint::Checkpoint& files) {
  Bounds out;
  const auto n = static_cast<std::size_t>(ranks);
  out.sent.resize(n);
  out.received.resize(n);
  out.all.resize(n);
  on_ranks({ranks, 1, {}}, [&](const decode::Rank& rank) {
    Measuring group(rank.group);
    const auto me = static_cast<std::size_t>(group.rank());
    const decode::RuntimeOptions options;
    {
      const checkpoint::Checkpoint fed = decode::fed_from(group, 0, [&] { return files; });
      (void)decode::Runtime::build(fed, options, {group, rank.memory, rank.workers, rank.log});
    }
    out.sent[me] = group.most_sent;
    out.received[me] = group.most_received;
    out.all[me] = group.all_sent;
  });
  return out;
}

// More than a window of one rank's experts: they come in several, each as full as whole experts fill it.
TEST(FeedWindows, ManyExpertsComeInSeveral) {
  const Synthetic model(48, 1024, 2048, {}, 1);
  const checkpoint::Checkpoint files = model.open();
  const std::int64_t expert = files.layer(0).expert_bytes();
  ASSERT_GT(24 * expert, 64 * kMiB);
  const Bounds b = bounds_of(2, files);
  EXPECT_LE(b.sent[0], 32 * kMiB);
  EXPECT_GT(b.sent[0], 31 * kMiB);
  EXPECT_LE(b.received[1], 64 * kMiB);
  EXPECT_GT(b.received[1], 64 * kMiB - expert);
  EXPECT_GE(b.all[0], 24 * expert);
  EXPECT_EQ(b.sent[1], 0);
  EXPECT_EQ(b.received[0], 0);
}

// What three ranks are sent at a time is one window together.
TEST(FeedWindows, TheRootsIsOneForAll) {
  const Synthetic model(32, 1024, 2048, {}, 1);
  const checkpoint::Checkpoint files = model.open();
  const Bounds b = bounds_of(4, files);
  EXPECT_LE(b.sent[0], 32 * kMiB);
  EXPECT_GT(b.sent[0], 24 * kMiB);
  for (const std::size_t r : {1U, 2U, 3U}) EXPECT_LE(b.received[r], 64 * kMiB);
}

// An expert that is more than a window is a window.
TEST(FeedWindows, AnExpertIsNotDivided) {
  const Synthetic model(4, 4096, 9728, {}, 1);
  const checkpoint::Checkpoint files = model.open();
  const std::int64_t expert = files.layer(0).expert_bytes();
  ASSERT_GT(expert, 64 * kMiB);
  const Bounds b = bounds_of(2, files);
  EXPECT_LE(b.sent[0], 32 * kMiB);
  EXPECT_EQ(b.received[1], expert);
}

}  // namespace
}  // namespace kerf::test
