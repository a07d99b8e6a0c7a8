// One rank of a device group, as a process that a launcher started with RANK, WORLD_SIZE, LOCAL_RANK,
// MASTER_ADDR and MASTER_PORT: kerf_test_nccl_rank WHAT [LIBRARY]. Ends with 0 where all is well.
//   contract   what every group promises, over NCCL on a device each
//   leave      rank 1 leaves with a reason while the others wait
//   sums       all-reduces through the peers' memory, between processes of one host, on any devices
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kerf/base/launch.h"
#include "kerf/comm/agree.h"
#include "kerf/comm/nccl.h"
#include "kerf/comm/tcp.h"
#include "kerf/cuda/devices.h"
#include "kerf/numeric/rank_sum.h"
#include "kerf/tail/device_all_reduce.h"
#include "kerf/tail/device_peers.h"
#include "tests/comm/contract.h"
#include "tests/support/gpu.h"

namespace kerf::test {
namespace {

using numeric::SumOrder;

// A value of each rank at each place of a step: rounds when added, of both signs.
std::uint16_t value(int rank, std::size_t i, int step) {
  const std::uint64_t x =
      (i * 2'654'435'761U + static_cast<std::uint64_t>(rank * 977 + step * 131)) * 0xFF51AFD7ED558CCDU;
  return static_cast<std::uint16_t>(((x >> 40U) & 0x83FFU) | 0x3C00U);
}

// Many steps on the same areas, enqueued one behind the other; both ways, every order.
void sum_through_peers(comm::Group& host) {
  constexpr std::int64_t most = 65'536;
  cuda::DeviceMemory memory;
  cuda::PinnedMemory pinned;
  const auto half = std::max(tail::all_reduce_half_bytes(tail::Shots::one_shot, host.size(), most),
                             tail::all_reduce_half_bytes(tail::Shots::two_shot, host.size(), most));
  const tail::PeerAreas areas(host, half, 20'000'000, memory, pinned);
  const cuda::Stream stream;
  int step = 0;
  for (const std::size_t values : {8UL, 4096UL, 65'536UL, 72UL})
    for (const tail::Shots shots : {tail::Shots::one_shot, tail::Shots::two_shot})
      for (const SumOrder order : {SumOrder::rank_order, SumOrder::chunks_of_8, SumOrder::each_add}) {
        constexpr int steps = 3;
        std::vector<OnDevice<std::uint16_t>> mine;
        for (int s = 0; s < steps; ++s) {
          std::vector<std::uint16_t> own(values);
          for (std::size_t i = 0; i < values; ++i) own[i] = value(host.rank(), i, step + s);
          mine.emplace_back(own);
        }
        for (const auto& m : mine)
          tail::device_all_reduce(
              {areas.peers(), shots, order, m.get(), m.get(), static_cast<std::int64_t>(values)},
              stream.handle());
        stream.synchronize();
        areas.check();
        for (int s = 0; s < steps; ++s) {
          const auto got = mine[static_cast<std::size_t>(s)].host();
          for (std::size_t i = 0; i < values; ++i)
            ASSERT_EQ(got[i],
                      numeric::sum_bf16(order, host.size(), [&](int r) { return value(r, i, step + s); }))
                << values << " values, step " << step + s << ", " << i;
        }
        step += steps;
      }
  // Nobody's area goes while another writes there.
  tail::wait_for_peers(areas.peers(), stream.handle());
  stream.synchronize();
  host.barrier("sums are through");
}

void act(const std::string& what, const std::string& library, comm::Group& host) {
  if (what == "sums") return sum_through_peers(host);
  comm::NcclOptions options;
  options.library = library;
  options.timeout = std::chrono::seconds{20};
  const auto group = comm::make_nccl_group(host, options);
  if (what == "contract") {
    for (const Contract& contract : contracts()) {
      contract.check(*group);
      if (testing::Test::HasFailure()) std::fprintf(stderr, "rank %d: %s\n", host.rank(), contract.name);
    }
  } else if (what == "leave") {
    group->barrier("all are here");
    if (host.rank() == 1) throw Error(ErrorKind::checkpoint, "a shard is missing");
    group->barrier("what never comes");
  } else {
    throw Error(ErrorKind::usage, "no such thing: " + what);
  }
}

}  // namespace
}  // namespace kerf::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  using namespace kerf;  // NOLINT(google-build-using-namespace)
  if (argc < 2) return 2;
  std::unique_ptr<comm::Program> program;
  bool group_failed = false;
  Verdict failed = attempt([&] {
    try {
      const Launch launch = find_launch(launch_environment());
      require(cuda::library());
      cuda::use_device(launch.local_rank.value_or(0) % cuda::device_count());
      program = comm::start_tcp({launch.rank, launch.size, launch.host, std::atoi(launch.port.c_str()) + 1,
                                 "", std::chrono::seconds{30}});
      test::act(argv[1], argc > 2 ? argv[2] : "", program->group());
    } catch (const comm::GroupFailed&) {
      group_failed = true;
      throw;
    }
  });
  if (program) failed = program->settle(failed, group_failed);
  if (failed) std::fprintf(stderr, "%s\n", failed->text.c_str());
  if (failed) return static_cast<int>(failed->kind);
  return testing::Test::HasFailure() ? 1 : 0;
}
