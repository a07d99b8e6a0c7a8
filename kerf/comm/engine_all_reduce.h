// An all-reduce that an engine brings: it runs on the engine's own communicator, and kerf knows it by the
// name of its backend, from which the order of its sum follows. A backend whose order is not known is not
// taken.
#pragma once

#include <functional>
#include <string>

#include "kerf/comm/all_reduce.h"

#pragma GCC visibility push(default)
namespace kerf::comm {

// What the engine hands over.
struct EngineCalls {
  std::string backend;  // as the engine resolved it: never "auto"
  int ranks = 1;        // of its communicator
  // Nothing, or why the engine does not take `values` bf16 values; empty: it takes all that its backend does.
  std::function<Verdict(std::int64_t values)> takes;
  // Collective over its communicator: sum = the sum of the ranks' `mine` (bf16, raw bits), which it may be;
  // as many values. What it throws is passed on as it is.
  std::function<void(std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum)> sum;
};

// The engine's sum, as one that kerf's callers know how to use.
class EngineAllReduce final : public AllReduce {
 public:
  // Error{usage} without a sum to call.
  explicit EngineAllReduce(EngineCalls calls);

  [[nodiscard]] std::string_view name() const override { return calls_.backend; }
  // Refuses a backend without a known order (with all_reduce()'s reason), a number of ranks that is not the
  // communicator's, and what the engine refuses. The other members are AllReduce's, without scratch.
  [[nodiscard]] Verdict supports(const AllReduceShape& shape) const override;
  [[nodiscard]] SumOrder order(const AllReduceShape& shape) const override;
  [[nodiscard]] std::size_t scratch_values(const AllReduceShape& /*shape*/) const override { return 0; }
  void run(Group& group, std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum,
           std::span<std::uint16_t> scratch, std::string_view what) const override;

 private:
  EngineCalls calls_;
};

}  // namespace kerf::comm
#pragma GCC visibility pop
