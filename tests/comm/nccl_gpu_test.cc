// The device group: what every group promises, over NCCL, with one rank on one device and two on two, as
// threads and as processes; device memory, strided and in pieces; what goes wrong. And sums through peers'
// memory between processes, which may share a device. KERF_NCCL_LIBRARY names the library's file.
#include "kerf/comm/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <filesystem>
#include <functional>
#include <thread>
#include <tuple>

#include "kerf/base/env.h"
#include "kerf/comm/agree.h"
#include "kerf/comm/local.h"
#include "kerf/comm/tcp/socket.h"
#include "kerf/cuda/devices.h"
#include "tests/comm/contract.h"
#include "tests/decode/forwarding_group.h"
#include "tests/support/gpu.h"
#include "tests/support/program.h"

namespace kerf::comm {
namespace {

using test::contracts;
using test::OnDevice;
using testing::AllOf;
using testing::HasSubstr;

std::string library() { return env_value("KERF_NCCL_LIBRARY").value_or(""); }

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    if (const Verdict why = nccl_absent(library())) GTEST_SKIP() << why->text;
  }
};

NcclOptions options() {
  NcclOptions out;
  out.library = library();
  out.timeout = std::chrono::seconds{20};
  return out;
}

// `ranks` threads with a device each and a group over all of them.
void on_devices(int ranks, const NcclOptions& how, const std::function<void(Group&)>& body) {
  run_local(ranks, {}, [&](Group& host) {
    cuda::use_device(host.rank());
    const auto group = make_nccl_group(host, how);
    body(*group);
    host.barrier("all are through");
  });
}

std::vector<int> rank_counts() { return {1, 2}; }

class NcclContract : public Nccl, public testing::WithParamInterface<std::tuple<test::Contract, int>> {
 protected:
  void SetUp() override {
    Nccl::SetUp();
    if (IsSkipped()) return;
    if (const int ranks = std::get<1>(GetParam()); cuda::device_count() < ranks)
      GTEST_SKIP() << ranks << " ranks, and " << cuda::device_count() << " device";
  }
};
INSTANTIATE_TEST_SUITE_P(Group, NcclContract,
                         testing::Combine(testing::ValuesIn(contracts().begin(), contracts().end()),
                                          testing::ValuesIn(rank_counts())),
                         [](const auto& one) {
                           return std::string(std::get<0>(one.param).name) + "_" +
                                  std::to_string(std::get<1>(one.param));
                         });

TEST_P(NcclContract, Holds) {
  const auto& [contract, ranks] = GetParam();
  const auto check = contract.check;
  on_devices(ranks, options(), [&](Group& group) { check(group); });
}

std::uint8_t mark(int from, int to, std::size_t i) {
  return static_cast<std::uint8_t>(31 * from + 13 * to + 7 * static_cast<int>(i) + static_cast<int>(i >> 8U));
}

// Every collective on spans of device memory, of the host's, and of one there and the other here; with
// staging areas that hold all, and such that take many pieces.
void collectives_on_device_memory(Group& group, bool from_device, bool to_device) {
  const int me = group.rank();
  const auto ranks = static_cast<std::size_t>(group.size());
  // Both kinds of memory for each span, of which one is used.
  const auto in = [&](const auto& device, const auto& host) {
    return from_device ? device.span() : std::span(host);
  };
  for (const std::size_t bytes : {3UL, 3000UL, 70'001UL, 700'001UL}) {
    std::vector<std::uint8_t> mine(bytes);
    for (std::size_t i = 0; i < bytes; ++i) mine[i] = mark(me, 0, i);
    OnDevice<std::uint8_t> mine_there(mine);
    std::vector<std::uint8_t> all(bytes * ranks, 0xAB);
    OnDevice<std::uint8_t> all_there(all);
    group.all_gather(std::as_bytes(in(mine_there, mine)),
                     std::as_writable_bytes(to_device ? all_there.span() : std::span(all)), "gather");
    if (to_device) all = all_there.host();
    for (std::size_t r = 0; r < ranks; ++r)
      for (std::size_t i = 0; i < bytes; ++i)
        ASSERT_EQ(all[r * bytes + i], mark(static_cast<int>(r), 0, i)) << bytes << " " << i;
  }
  // Strided blocks with other bytes between; to each rank another size.
  const auto block = [&](int from, int to) {
    const std::int64_t run = 1 + 53 * ((from + 2 * to) % 9);
    return tensor::StridedBytes{nullptr, 3, 40 * (run + 5) + 11, 40, run + 5, run};
  };
  std::vector<std::vector<std::uint8_t>> memory;
  std::vector<OnDevice<std::uint8_t>> memory_there;
  std::vector<std::vector<std::uint8_t>> got;
  std::vector<OnDevice<std::uint8_t>> got_there;
  std::vector<tensor::StridedBytes> send;
  for (int r = 0; r < group.size(); ++r) {
    const auto b = block(me, r);
    std::vector<std::uint8_t> all(static_cast<std::size_t>(3 * b.plane_stride));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = mark(me, r, i);
    memory.push_back(all);
    memory_there.emplace_back(all);
    got.emplace_back(static_cast<std::size_t>(block(r, me).packed_bytes()), 0xAB);
    got_there.emplace_back(got.back());
  }
  std::vector<std::span<std::byte>> received;
  for (int r = 0; r < group.size(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    auto b = block(me, r);
    b.base = reinterpret_cast<const std::byte*>(from_device ? memory_there[at].get() : memory[at].data());
    send.push_back(b);
    received.push_back(std::as_writable_bytes(to_device ? got_there[at].span() : std::span(got[at])));
  }
  group.all_to_all(send, received, "exchange");
  for (int r = 0; r < group.size(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    if (to_device) got[at] = got_there[at].host();
    const auto b = block(r, me);
    std::size_t i = 0;
    for (std::int64_t p = 0; p < 3; ++p)
      for (std::int64_t u = 0; u < 40; ++u)
        for (std::int64_t x = 0; x < b.run_bytes; ++x)
          ASSERT_EQ(got[at][i++],
                    mark(r, me, static_cast<std::size_t>(p * b.plane_stride + u * b.run_stride + x)));
  }
  // Sums of whole numbers up to 256, which bf16 has: exact in any order.
  const auto small = [](int rank, std::size_t i) { return static_cast<float>((i * 7 + rank * 3) % 50); };
  const auto bf16 = [](float value) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16U);
  };
  for (const std::size_t count : {1UL, 999UL, 40'000UL}) {
    std::vector<std::uint16_t> mine(count * ranks);
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = bf16(small(me, i));
    OnDevice<std::uint16_t> mine_there(mine);
    std::vector<std::uint16_t> sum(mine.size(), 0xABCD);
    OnDevice<std::uint16_t> sum_there(sum);
    std::vector<std::uint16_t> part(count, 0xABCD);
    OnDevice<std::uint16_t> part_there(part);
    const auto from = in(mine_there, mine);
    group.all_reduce_sum(from, to_device ? sum_there.span() : std::span(sum), "sum");
    group.reduce_scatter_sum(from, to_device ? part_there.span() : std::span(part), "part");
    if (to_device) {
      sum = sum_there.host();
      part = part_there.host();
    }
    const auto want = [&](std::size_t i) {
      float total = 0;
      for (int r = 0; r < group.size(); ++r) total += small(r, i);
      return bf16(total);
    };
    for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], want(i)) << count << " " << i;
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(part[i], want(static_cast<std::size_t>(me) * count + i)) << count << " " << i;
  }
}

TEST_F(Nccl, SpansMayLieOnTheDeviceOrTheHostAndGoInPieces) {
  for (int ranks = 1; ranks <= std::min(2, cuda::device_count()); ++ranks)
    for (const std::size_t staging : {std::size_t{64} << 20, std::size_t{4096}}) {
      NcclOptions how = options();
      how.staging = staging;
      on_devices(ranks, how, [&](Group& group) {
        EXPECT_EQ(group.name(), "nccl");
        EXPECT_FALSE(group.ordered());
        for (const bool from : {true, false})
          for (const bool to : {true, false}) collectives_on_device_memory(group, from, to);
        // Each rank as it likes.
        collectives_on_device_memory(group, group.rank() == 0, group.rank() != 0);
      });
    }
}

TEST_F(Nccl, TwoRanksOnOneDeviceAreRefused) {
  const Verdict v = attempt([&] {
    run_local(2, {}, [&](Group& host) {
      cuda::use_device(0);
      (void)make_nccl_group(host, options());
    });
  });
  ASSERT_TRUE(v);
  EXPECT_EQ(v->kind, ErrorKind::unsupported);
  EXPECT_THAT(v->text, AllOf(HasSubstr("ranks 0 and 1 are both on device"), HasSubstr("one rank a device")));
}

TEST_F(Nccl, ALateRankIsNamedWithWhatWasAwaited) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "one device";
  LocalOptions local;
  local.timeout = std::chrono::milliseconds{3000};
  std::array<Verdict, 2> reasons;
  const Verdict all = attempt([&] {
    run_local(2, local, [&](Group& host) {
      cuda::use_device(host.rank());
      const auto group = make_nccl_group(host, options());
      group->barrier("first");
      if (host.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds{5000});
      reasons[static_cast<std::size_t>(host.rank())] = attempt([&] { group->barrier("second"); });
    });
  });
  ASSERT_TRUE(reasons[0]);
  EXPECT_EQ(reasons[0]->text, "rank 1 did not reach 'second' within 3 s");
}

// A host's group of which this rank leaves as soon as all have met, before it gives NCCL anything.
class Leaving : public test::ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) override {
    ForwardingGroup::all_gather(mine, all, what);
    if (leaves) throw Error(ErrorKind::checkpoint, "gone in the middle");
  }
  bool leaves = false;
};

// NCCL itself would wait for ever: for the connection that a first transfer makes, or for the data of a
// later.
TEST_F(Nccl, ATransferThatNeverComesIsGivenUp) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "one device";
  NcclOptions how = options();
  how.timeout = std::chrono::milliseconds{4000};
  for (const bool connected : {false, true}) {
    Verdict reason;
    std::chrono::duration<double> took{};
    (void)attempt([&] {
      run_local(2, {}, [&](Group& threads) {
        cuda::use_device(threads.rank());
        Leaving host(threads);
        const auto group = make_nccl_group(host, how);
        const std::vector<std::uint16_t> mine(100'000);
        std::vector<std::uint16_t> sum(mine.size());
        if (connected) group->all_reduce_sum(mine, sum, "the first");
        group->barrier("all are here");
        host.leaves = threads.rank() == 1;
        if (threads.rank() == 1) return group->all_reduce_sum(mine, sum, "sum");
        const auto begun = std::chrono::steady_clock::now();
        reason = attempt([&] { group->all_reduce_sum(mine, sum, "sum"); });
        took = std::chrono::steady_clock::now() - begun;
        EXPECT_EQ(attempt([&] { group->barrier("later"); }), reason);  // final
        require(reason);
      });
    });
    ASSERT_TRUE(reason);
    EXPECT_EQ(reason->kind, ErrorKind::peer);
    EXPECT_EQ(reason->text, "the ranks did not exchange their data of 'sum' within 4 s, by NCCL");
    EXPECT_GE(took.count(), 4);
    EXPECT_LT(took.count(), 10);
  }
}

// Beside this program, wherever both were put.
std::string rank_program() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "kerf_test_nccl_rank").string();
}

// As many processes as a launcher would start.
std::vector<test::Ran> run_processes(int ranks, const std::string& what) {
  const int port = tcp::port_of(tcp::listen(0));
  std::vector<test::Ran> out(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      out[static_cast<std::size_t>(r)] =
          test::run_executable(rank_program(), {what, library()},
                               {"RANK=" + std::to_string(r), "WORLD_SIZE=" + std::to_string(ranks),
                                "LOCAL_RANK=" + std::to_string(r), "MASTER_ADDR=127.0.0.1",
                                "MASTER_PORT=" + std::to_string(port - 1)});
    });
  threads.clear();
  return out;
}

TEST_F(Nccl, ProcessesOfALauncherMeetAndKeepTheContract) {
  for (int ranks = 1; ranks <= std::min(2, cuda::device_count()); ++ranks)
    for (const test::Ran& ran : run_processes(ranks, "contract"))
      EXPECT_EQ(ran.code, 0) << ranks << " ranks: " << ran.out << ran.err;
}

TEST_F(Nccl, TheReasonOfAProcessThatLeavesReachesTheOthers) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "one device";
  for (const test::Ran& ran : run_processes(2, "leave")) {
    EXPECT_EQ(ran.code, 3) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("a shard is missing"));
  }
}

// No NCCL in these: memory that processes name to each other. On one device they take turns.
using DevicePeers = test::OnGpu;

TEST_F(DevicePeers, ProcessesSumThroughEachOthersMemory) {
  for (const int ranks : {1, 2, 3})
    for (const test::Ran& ran : run_processes(ranks, "sums"))
      EXPECT_EQ(ran.code, 0) << ranks << " ranks: " << ran.out << ran.err;
}

}  // namespace
}  // namespace kerf::comm
