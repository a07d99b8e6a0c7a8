// An engine's collectives for tests, over a group of the host's memory. They are as strict as an engine's may
// be: pieces that are contiguous, of the sizes that are said, never overlapping and never empty.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "kerf/comm/engine_group.h"
#include "kerf/numeric/bf16.h"

namespace kerf::test {

struct EngineHas {
  bool sums = false;
  bool ordered = false;
  bool splits = false;
  bool barrier = false;
};

inline bool apart(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less_equal<const std::byte*> upto;
  return a.empty() || b.empty() || upto(a.data() + a.size(), b.data()) || upto(b.data() + b.size(), a.data());
}

// From the last rank down, rounded after each.
inline void add_downwards(comm::Group& host, std::span<std::uint16_t> values) {
  std::vector<std::uint16_t> all(values.size() * static_cast<std::size_t>(host.size()));
  host.all_gather(std::as_bytes(values), std::as_writable_bytes(std::span(all)), "engine");
  std::copy(all.end() - std::ssize(values), all.end(), values.begin());
  for (int r = host.size() - 2; r >= 0; --r)
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] =
          numeric::f32_to_bf16(numeric::bf16_to_f32(values[i]) +
                               numeric::bf16_to_f32(all[static_cast<std::size_t>(r) * values.size() + i]));
}

inline comm::EngineGroupCalls engine_of(comm::Group& host, EngineHas has,
                                        const std::shared_ptr<comm::Group>& owner = nullptr) {
  comm::EngineGroupCalls calls;
  calls.rank = host.rank();
  calls.size = host.size();
  calls.name = "engine";
  // `owner` keeps a part of the host's as long as one of these is there.
  calls.all_gather = [&host, owner](std::span<const std::byte> mine, std::span<std::byte> all,
                                    std::string_view) {
    ASSERT_FALSE(mine.empty());
    ASSERT_EQ(all.size(), mine.size() * static_cast<std::size_t>(host.size()));
    ASSERT_TRUE(apart(mine, all));
    host.all_gather(mine, all, "engine");
  };
  calls.all_to_all = [&host](std::span<const std::byte> send, std::span<const std::int64_t> send_bytes,
                             std::span<std::byte> received, std::span<const std::int64_t> received_bytes,
                             std::string_view) {
    ASSERT_EQ(std::ssize(send_bytes), host.size());
    ASSERT_EQ(std::ssize(received_bytes), host.size());
    ASSERT_EQ(std::accumulate(send_bytes.begin(), send_bytes.end(), std::int64_t{0}), std::ssize(send));
    ASSERT_EQ(std::accumulate(received_bytes.begin(), received_bytes.end(), std::int64_t{0}),
              std::ssize(received));
    ASSERT_TRUE(apart(send, received));
    std::vector<tensor::StridedBytes> blocks;
    std::vector<std::span<std::byte>> places;
    for (std::size_t r = 0; r < send_bytes.size(); ++r) {
      blocks.push_back({send.data(), 1, send_bytes[r], 1, send_bytes[r], send_bytes[r]});
      send = send.subspan(static_cast<std::size_t>(send_bytes[r]));
      places.push_back(received.first(static_cast<std::size_t>(received_bytes[r])));
      received = received.subspan(places.back().size());
    }
    host.all_to_all(blocks, places, "engine");
  };
  if (has.sums) {
    calls.ordered = has.ordered;
    calls.all_reduce_sum = [&host, has](std::span<std::uint16_t> values, std::string_view) {
      ASSERT_FALSE(values.empty());
      if (has.ordered)
        host.all_reduce_sum(values, values, "engine");
      else
        add_downwards(host, values);
    };
  }
  if (has.sums && has.ordered)  // of the unordered ones it is derived
    calls.reduce_scatter_sum = [&host](std::span<const std::uint16_t> mine, std::span<std::uint16_t> part,
                                       std::string_view) { host.reduce_scatter_sum(mine, part, "engine"); };
  if (has.barrier) calls.barrier = [&host](std::string_view) { host.barrier("engine"); };
  if (has.splits)
    calls.split = [&host, has](std::span<const int> colours, std::string_view) {
      const std::shared_ptr<comm::Group> part =
          host.split(colours[static_cast<std::size_t>(host.rank())], "engine");
      return engine_of(*part, has, part);
    };
  return calls;
}

}  // namespace kerf::test
