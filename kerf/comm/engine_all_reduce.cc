#include "kerf/comm/engine_all_reduce.h"

#include <utility>

#include "kerf/base/format.h"

namespace kerf::comm {

EngineAllReduce::EngineAllReduce(EngineCalls calls) : calls_(std::move(calls)) {
  if (!calls_.sum) fail(ErrorKind::usage, "the engine's all-reduce '{}' has nothing to call", calls_.backend);
}

Verdict EngineAllReduce::supports(const AllReduceShape& shape) const {
  if (shape.ranks != calls_.ranks)
    return because(ErrorKind::unsupported,
                   "the engine's all-reduce '{}' has a communicator of {} ranks, wanted {}", calls_.backend,
                   calls_.ranks, shape.ranks);
  if (Verdict unknown = attempt([&] { (void)sum_order(calls_.backend, shape); }))
    return because(unknown->kind, "the engine's all-reduce: {}", unknown->text);
  if (!calls_.takes) return std::nullopt;
  if (const Verdict refused = calls_.takes(shape.values))
    return because(refused->kind, "the engine's all-reduce '{}' does not take {} bf16 values: {}",
                   calls_.backend, shape.values, refused->text);
  return std::nullopt;
}

SumOrder EngineAllReduce::order(const AllReduceShape& shape) const {
  return sum_order(calls_.backend, shape);
}

void EngineAllReduce::run(Group& group, std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum,
                          std::span<std::uint16_t> /*scratch*/, std::string_view what) const {
  require(supports({group.size(), static_cast<std::int64_t>(mine.size())}));
  if (sum.size() != mine.size())
    fail(ErrorKind::usage, "all-reduce '{}' of {} values into {}", what, mine.size(), sum.size());
  calls_.sum(mine, sum);
}

}  // namespace kerf::comm
