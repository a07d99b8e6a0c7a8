// Ranks that wait for each other by flags in device memory, and the all-reduces on top: all on one device, by
// one cooperative launch or a stream each; and on a device each, where there are two.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <random>
#include <string>

#include "kerf/cuda/check.h"
#include "kerf/tail/device_all_reduce.h"
#include "tests/support/gpu.h"
#include "tests/tail/cases.h"

namespace kerf::tail {
namespace {

using numeric::SumOrder;
using test::OnDevice;
using test::Rows;

using DeviceFlags = test::OnGpu;

// Areas' half_bytes for as many values either way.
std::int64_t half_bytes_for(int ranks, std::int64_t values) {
  return std::max(all_reduce_half_bytes(Shots::one_shot, ranks, values),
                  all_reduce_half_bytes(Shots::two_shot, ranks, values));
}

void use_device(int device) { cuda::check(cudaSetDevice(device), "choosing a device"); }

// A device for each of two ranks, which reach each other's memory.
class TwoDevices : public DeviceFlags {
 protected:
  static constexpr int ranks = 2;

  void SetUp() override {
    DeviceFlags::SetUp();
    if (IsSkipped()) return;
    int devices = 0;
    cuda::check(cudaGetDeviceCount(&devices), "counting devices");
    if (devices < ranks) GTEST_SKIP() << "one device";
    for (int r = 0; r < ranks; ++r) {
      int reaches = 0;
      cuda::check(cudaDeviceCanAccessPeer(&reaches, r, 1 - r), "asking for peer access");
      if (reaches == 0) GTEST_SKIP() << "device " << r << " does not reach device " << 1 - r;
      use_device(r);
      const cudaError_t enabled = cudaDeviceEnablePeerAccess(1 - r, 0);
      if (enabled == cudaErrorPeerAccessAlreadyEnabled)
        (void)cudaGetLastError();
      else
        cuda::check(enabled, "peer access");
      streams_.emplace_back();
    }
  }
  void TearDown() override {
    if (!streams_.empty()) use_device(0);
  }

  // Does something for each rank, on its device.
  static void each(const std::function<void(std::size_t)>& act) {
    for (int r = 0; r < ranks; ++r) {
      use_device(r);
      act(static_cast<std::size_t>(r));
    }
  }

  std::vector<cuda::Stream> streams_;
};

// `ranks` ranks with cleared areas, on one device or on one each.
class Ranks {
 public:
  Ranks(int ranks, std::int64_t half_bytes, std::int64_t limit_us = 5'000'000, bool device_each = false) {
    for (int r = 0; r < ranks; ++r) {
      if (device_each) use_device(r);
      // What an area holds before clear_area() must not matter.
      areas_.emplace_back(static_cast<std::size_t>(area_bytes(half_bytes)), std::byte{0xFF});
      reports_.emplace_back(pinned_);
    }
    for (int r = 0; r < ranks; ++r) {
      Peers& peers = peers_.emplace_back();
      peers.rank = r;
      peers.ranks = ranks;
      peers.half_bytes = half_bytes;
      peers.limit_us = limit_us;
      peers.missed = reports_[static_cast<std::size_t>(r)].word();
      for (std::size_t p = 0; p < areas_.size(); ++p) peers.area[p] = areas_[p].get();
      if (device_each) use_device(r);
      clear_area(areas_[static_cast<std::size_t>(r)].get(), nullptr);
      cuda::check(cudaDeviceSynchronize(), "clearing areas");
    }
  }
  [[nodiscard]] const std::vector<Peers>& peers() const { return peers_; }
  void check() const {
    for (const PeerReport& report : reports_) report.check();
  }
  [[nodiscard]] Verdict missed(std::size_t rank) const {
    return attempt([&] { reports_[rank].check(); });
  }

 private:
  cuda::PinnedMemory pinned_;
  std::vector<OnDevice<std::byte>> areas_;
  std::vector<PeerReport> reports_;
  std::vector<Peers> peers_;
};

// Values that round when added; zeros of both signs, infinities and NaN now and then.
std::vector<Rows> make_terms(int ranks, std::size_t values, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Rows> terms(static_cast<std::size_t>(ranks), Rows(values));
  for (Rows& term : terms)
    for (std::size_t i = 0; i < values; ++i)
      term[i] = static_cast<std::uint16_t>(i % 16 == 3   ? random()
                                           : i % 16 == 9 ? random() << 15
                                                         : (random() & 0x83FF) | 0x3C00);
  return terms;
}

Rows want_sum(SumOrder order, const std::vector<Rows>& terms) {
  Rows out(terms[0].size());
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = numeric::sum_bf16(order, static_cast<int>(terms.size()),
                               [&](int r) { return terms[static_cast<std::size_t>(r)][i]; });
  return out;
}

constexpr std::array shots = {Shots::one_shot, Shots::two_shot};

// Sizes and ways one after the other on the same areas, so that every step finds the last one's leftovers.
TEST_F(DeviceFlags, AllReducesTogetherHaveTheBitsOfTheSum) {
  constexpr std::int64_t most = 5 * 4096;
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
    const Ranks all(ranks, half_bytes_for(ranks, most));
    const cuda::Stream stream;
    unsigned turn = 0;
    for (const std::size_t values : {8UL, 64UL, 4096UL, 4096UL + 8, 20480UL, 0UL, 2048UL, 72UL})
      for (const Shots way : shots)
        for (const SumOrder order : {SumOrder::rank_order, SumOrder::chunks_of_8, SumOrder::each_add}) {
          const auto terms = make_terms(ranks, values, ++turn);
          const bool in_place = turn % 2 == 0;
          std::vector<OnDevice<std::uint16_t>> mine(terms.begin(), terms.end());
          std::vector<OnDevice<std::uint16_t>> sums;
          std::vector<DeviceAllReduce> calls;
          for (std::size_t r = 0; r < terms.size(); ++r) {
            sums.emplace_back(values, std::uint16_t{0xABCD});
            calls.push_back({all.peers()[r], way, order, mine[r].get(),
                             in_place ? mine[r].get() : sums[r].get(), static_cast<std::int64_t>(values)});
          }
          device_all_reduce(calls, stream.handle());
          stream.synchronize();
          all.check();
          const Rows want = want_sum(order, terms);
          for (std::size_t r = 0; r < terms.size(); ++r)
            ASSERT_EQ(in_place ? mine[r].host() : sums[r].host(), want)
                << ranks << " ranks, rank " << r << ", " << values << " values, shots "
                << static_cast<int>(way);
        }
  }
}

// A stream for each rank, many steps, and ranks that are late now and then: a fast rank's next step must not
// spoil a slow one's. Replayed from graphs, so that steps are counted on the device.
TEST_F(DeviceFlags, FastRanksLeaveSlowOnesTheirValues) {
  constexpr int ranks = 4;
  constexpr std::size_t values = 4096;
  constexpr int steps = 6;
  const Ranks all(ranks, half_bytes_for(ranks, values));
  const std::vector<cuda::Stream> streams(ranks);
  std::vector<OnDevice<std::uint16_t>> mine;
  std::vector<OnDevice<std::uint16_t>> sums;
  std::vector<Rows> want;
  for (int s = 0; s < steps; ++s) {
    const auto terms = make_terms(ranks, values, static_cast<unsigned>(50 + s));
    want.push_back(want_sum(SumOrder::rank_order, terms));
    for (const Rows& term : terms) {
      mine.emplace_back(term);
      sums.emplace_back(values, std::uint16_t{0xABCD});
    }
  }
  const OnDevice<std::uint8_t> late(std::size_t{64} << 20, std::uint8_t{0});
  std::vector<cuda::Graph> graphs;
  for (std::size_t r = 0; r < ranks; ++r)
    graphs.push_back(cuda::Graph::capture(streams[r].handle(), [&] {
      for (std::size_t s = 0; s < steps; ++s) {
        const std::size_t at = s * ranks + r;
        if (s % ranks == r) cuda::zero(late.get(), late.span().size(), streams[r].handle());
        device_all_reduce({all.peers()[r], shots[s % 2], SumOrder::rank_order, mine[at].get(), sums[at].get(),
                           static_cast<std::int64_t>(values)},
                          streams[r].handle());
      }
    }));
  for (int replay = 0; replay < 20; ++replay) {
    for (std::size_t r = 0; r < ranks; ++r)
      graphs[(r + replay) % ranks].launch(streams[(r + replay) % ranks].handle());
    for (const cuda::Stream& stream : streams) stream.synchronize();
    all.check();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      ASSERT_EQ(sums[i].host(), want[i / ranks]) << "replay " << replay << ", step " << i / ranks;
      cuda::copy(sums[i].get(), mine[0].get(), values * 2);
    }
  }
}

// A tail behind a meeting reads rows that a peer wrote late.
TEST_F(DeviceFlags, ATailBehindAMeetingSeesThePeersRows) {
  constexpr int ranks = 3;
  const auto step = test::make_ranks(test::Placed::tp, ranks, 4, 8, 512);
  const auto norm = test::all_norms(512)[2];
  const Ranks all(ranks, 0);
  const std::vector<cuda::Stream> streams(ranks);
  const OnDevice<std::uint8_t> late(std::size_t{256} << 20, std::uint8_t{0});
  const OnDevice<std::uint16_t> gain(norm->gain);
  const OnDevice<float> weights(step[0].weights);
  std::vector<OnDevice<std::uint16_t>> source;
  std::vector<OnDevice<std::uint16_t>> rows;
  std::vector<OnDevice<std::int32_t>> maps;
  std::vector<OnDevice<std::uint16_t>> outs;
  DeviceTail tail;
  tail.tokens = tail.count = 4;
  tail.top_k = 8;
  tail.hidden = 512;
  tail.source = RowSource::bf16_sum;
  tail.parts = ranks;
  tail.weights = weights.get();
  tail.norm = {true, gain.get(), norm->gain_before_norm, norm->eps};
  for (std::size_t r = 0; r < ranks; ++r) {
    source.emplace_back(step[r].rows);
    rows.emplace_back(step[r].rows.size(), std::uint16_t{0xFFFF});
    maps.emplace_back(step[r].map);
    outs.emplace_back(4UL * 512, std::uint16_t{0xABCD});
    tail.part[r] = {rows[r].get(), nullptr, maps[r].get()};
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto stream = streams[r].handle();
    if (r == 1) cuda::zero(late.get(), late.span().size(), stream);
    cuda::copy(rows[r].get(), source[r].get(), step[r].rows.size() * 2, stream);
    wait_for_peers(all.peers()[r], stream);
    tail.out[0] = outs[r].get();
    device_tail(tail, stream);
  }
  for (const cuda::Stream& stream : streams) stream.synchronize();
  all.check();
  for (const auto& out : outs) EXPECT_EQ(out.host(), test::plain_tail(test::Placed::tp, step, norm));
}

TEST_F(DeviceFlags, ARankThatNeverComesIsNamed) {
  const Ranks all(3, all_reduce_half_bytes(Shots::two_shot, 3, 64), 20'000);
  const OnDevice<std::uint16_t> values(64, std::uint16_t{0});
  const cuda::Stream stream;
  std::vector<DeviceAllReduce> calls;
  for (std::size_t r = 0; r < 2; ++r)
    calls.push_back({all.peers()[r], Shots::two_shot, SumOrder::rank_order, values.get(), values.get(), 64});
  const auto begin = std::chrono::steady_clock::now();
  device_all_reduce(calls, stream.handle());
  stream.synchronize();
  const std::chrono::duration<double> first = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(first.count(), 0.02);
  EXPECT_LT(first.count(), 2);
  for (std::size_t r = 0; r < 2; ++r) {
    const Verdict v = all.missed(r);
    ASSERT_TRUE(v);
    EXPECT_EQ(v->kind, ErrorKind::peer);
    EXPECT_EQ(v->text, "rank " + std::to_string(r) + " waited for rank 2");
  }
  EXPECT_EQ(all.missed(2), std::nullopt);
  // From here on neither waits.
  const auto again = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) wait_for_peers(std::span(all.peers()).first(2), stream.handle());
  stream.synchronize();
  const std::chrono::duration<double> more = std::chrono::steady_clock::now() - again;
  EXPECT_LT(more.count(), 0.02);
}

TEST_F(DeviceFlags, WhatDoesNotFitIsABug) {
  const Ranks all(2, all_reduce_half_bytes(Shots::one_shot, 2, 64));
  const OnDevice<std::uint16_t> values(128, std::uint16_t{0});
  const cuda::Stream stream;
  const DeviceAllReduce fits{all.peers()[0], Shots::one_shot, SumOrder::rank_order,
                             values.get(),   values.get(),    64};
  std::vector<DeviceAllReduce> calls(7, fits);
  calls[0].values = 128;  // more than the buffers take
  calls[1].values = 60;
  calls[2].mine += 1;
  calls[3].peers.area[1] = nullptr;
  calls[4].peers.missed = nullptr;
  calls[5].peers.rank = 2;
  calls[6].peers.ranks = 17;
  for (const DeviceAllReduce& call : calls) {
    const Verdict v = attempt([&] { device_all_reduce(call, stream.handle()); });
    ASSERT_TRUE(v);
    EXPECT_EQ(v->kind, ErrorKind::bug) << v->text;
  }
}

// Launches that wait for one another, each on its own device: sizes, ways and orders one after the other on
// the same areas, several steps enqueued before anybody waits.
TEST_F(TwoDevices, AllReducesHaveTheBitsOfTheSum) {
  constexpr std::int64_t most = 65536;
  const Ranks all(ranks, half_bytes_for(ranks, most), 5'000'000, true);
  unsigned turn = 400;
  for (const std::size_t values : {8UL, 64UL, 4096UL, 4096UL + 8, 65536UL, 0UL, 72UL})
    for (const Shots way : shots)
      for (const SumOrder order : {SumOrder::rank_order, SumOrder::chunks_of_8, SumOrder::each_add}) {
        constexpr int steps = 3;
        std::vector<Rows> want;
        std::vector<OnDevice<std::uint16_t>> mine;
        std::vector<OnDevice<std::uint16_t>> sums;
        for (int s = 0; s < steps; ++s) {
          const auto terms = make_terms(ranks, values, ++turn);
          want.push_back(want_sum(order, terms));
          each([&](std::size_t r) {
            mine.emplace_back(terms[r]);
            sums.emplace_back(values, std::uint16_t{0xABCD});
          });
        }
        for (std::size_t s = 0; s < steps; ++s)
          each([&](std::size_t r) {
            device_all_reduce({all.peers()[r], way, order, mine[s * ranks + r].get(),
                               sums[s * ranks + r].get(), static_cast<std::int64_t>(values)},
                              streams_[r].handle());
          });
        each([&](std::size_t r) { streams_[r].synchronize(); });
        all.check();
        for (std::size_t s = 0; s < steps; ++s)
          each([&](std::size_t r) {
            ASSERT_EQ(sums[s * ranks + r].host(), want[s]) << "rank " << r << ", step " << s << ", " << values
                                                           << " values, shots " << static_cast<int>(way);
          });
      }
}

// Replayed from graphs, steps counted on the devices; one rank begins late now and then.
TEST_F(TwoDevices, ReplayedGraphsCountOn) {
  constexpr std::size_t values = 4096;
  const Ranks all(ranks, half_bytes_for(ranks, values), 5'000'000, true);
  std::vector<OnDevice<std::uint16_t>> mine;
  std::vector<OnDevice<std::uint16_t>> sums;
  std::vector<cuda::Graph> graphs;
  each([&](std::size_t r) {
    mine.emplace_back(values, std::uint16_t{0});
    sums.emplace_back(values, std::uint16_t{0});
    graphs.push_back(cuda::Graph::capture(streams_[r].handle(), [&] {
      for (const Shots way : shots)
        device_all_reduce({all.peers()[r], way, SumOrder::rank_order, mine[r].get(), sums[r].get(), values},
                          streams_[r].handle());
    }));
  });
  for (unsigned replay = 0; replay < 200; ++replay) {
    const auto terms = make_terms(ranks, values, 900 + replay);
    each([&](std::size_t r) { cuda::copy(mine[r].get(), terms[r].data(), values * sizeof(std::uint16_t)); });
    for (int i = 0; i < ranks; ++i) {
      const std::size_t r = (replay + static_cast<unsigned>(i)) % ranks;
      use_device(static_cast<int>(r));
      graphs[r].launch(streams_[r].handle());
    }
    each([&](std::size_t r) { streams_[r].synchronize(); });
    all.check();
    const Rows want = want_sum(SumOrder::rank_order, terms);
    each([&](std::size_t r) { ASSERT_EQ(sums[r].host(), want) << "rank " << r << ", replay " << replay; });
  }
}

TEST_F(TwoDevices, OneThatDoesNotComeIsNamed) {
  constexpr std::size_t values = 4096;
  const Ranks all(ranks, all_reduce_half_bytes(Shots::one_shot, ranks, values), 20'000, true);
  use_device(0);
  const OnDevice<std::uint16_t> mine(values, std::uint16_t{0});
  device_all_reduce({all.peers()[0], Shots::one_shot, SumOrder::rank_order, mine.get(), mine.get(), values},
                    streams_[0].handle());
  streams_[0].synchronize();
  const Verdict missed = all.missed(0);
  ASSERT_TRUE(missed.has_value());
  EXPECT_NE(missed->text.find("rank 0 waited for rank 1"), std::string::npos) << missed->text;
}

}  // namespace
}  // namespace kerf::tail
