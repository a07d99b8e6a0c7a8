// The engine's callbacks as they are called: from packed memory, with errors that say where. One for a group
// and all parts that are derived from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kerf/comm/engine_group.h"

namespace kerf::comm::engine {

class Engine {
 public:
  // `numbers`: what messages call the ranks.
  Engine(EngineGroupCalls calls, const EngineGroupOptions& options, std::vector<int> numbers);

  [[nodiscard]] const EngineGroupCalls& calls() const { return calls_; }
  [[nodiscard]] const EngineGroupOptions& options() const { return options_; }
  [[nodiscard]] int rank() const { return calls_.rank; }
  [[nodiscard]] std::size_t size() const { return numbers_.size(); }
  [[nodiscard]] const std::vector<int>& numbers() const { return numbers_; }
  // Whether the engine's own sums are taken.
  [[nodiscard]] bool own_sums() const { return calls_.all_reduce_sum && !options_.rank_order; }

  // How many groups there are, as far as this rank knows: the next one's number.
  [[nodiscard]] std::int32_t groups() const { return groups_; }
  void set_groups(std::int32_t groups) { groups_ = groups; }

  // The callbacks. The first that throws is the last that is called: what it left is thrown again.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what);
  // The same of the host's memory.
  void all_gather_host(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what);
  // Strided blocks and places anywhere, one a rank.
  void all_to_all(std::span<const tensor::StridedBytes> send, std::span<const std::span<std::byte>> received,
                  std::string_view what);
  void all_reduce_sum(std::span<std::uint16_t> values, std::string_view what);
  void reduce_scatter_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> part,
                          std::string_view what);
  void barrier(std::string_view what);
  EngineGroupCalls split(std::span<const int> colours, std::string_view what);
  // Throws what a callback left.
  void check() const;

 private:
  struct Fault {
    Reason reason;
    bool group_failed = false;
  };
  template <typename Call>
  void call(std::string_view callback, std::string_view what, Call run);
  [[nodiscard]] bool of_the_host() const { return options_.copier == &tensor::host_copier(); }

  EngineGroupCalls calls_;
  EngineGroupOptions options_;
  std::vector<int> numbers_;
  std::int32_t groups_ = 1;
  std::vector<std::byte> send_, received_;  // staging
  std::vector<std::int64_t> send_bytes_, received_bytes_;
  std::optional<Fault> fault_;
};

}  // namespace kerf::comm::engine
