// All-reduces by name: sums over the ranks of a group of bf16 values, on every rank, in an order that the
// name fixes together with the number of ranks and values. They move bytes with the group's all-gather and
// all-to-all and add for themselves, so that the bits are the name's on any group, whether that is `ordered`
// or not. Nothing is allocated and no state is kept: scratch is passed in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/comm/group.h"
#include "kerf/numeric/rank_sum.h"

#pragma GCC visibility push(default)
namespace kerf::comm {

using numeric::SumOrder;

// "rank-order", "chunks-of-8", "chunks-of-16" or "each-add". numeric/rank_sum.h has the formulas.
std::string_view name(SumOrder order);

// What is summed: `values` bf16 values of each of `ranks` ranks.
struct AllReduceShape {
  int ranks = 1;
  std::int64_t values = 0;
};

// One way to sum.
class AllReduce {
 public:
  virtual ~AllReduce() = default;
  // One of all_reduce_names(), or an engine's backend.
  [[nodiscard]] virtual std::string_view name() const = 0;
  // Nothing, or why a sum of this shape is not taken: unsupported for a number of ranks, usage for less than
  // no values.
  [[nodiscard]] virtual Verdict supports(const AllReduceShape& shape) const = 0;
  // The order of a sum of a shape that is supported; ranks that fill no more than one chunk are in rank
  // order.
  [[nodiscard]] virtual SumOrder order(const AllReduceShape& shape) const = 0;
  // bf16 values of scratch that run() wants for sums of up to so many values, of a number of ranks that is
  // supported.
  [[nodiscard]] virtual std::size_t scratch_values(const AllReduceShape& shape) const = 0;

  // Collective: sum[i] over the ranks' mine[i] (bf16 as raw bits, equally many on every rank; also none), the
  // same bits on every rank. `sum` may be `mine`, but must not overlap it otherwise, nor the scratch. Before
  // anything is sent: supports()' reason, and Error{usage} for a `sum` that is not as long as `mine` and for
  // too little scratch. After that the group's errors.
  virtual void run(Group& group, std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum,
                   std::span<std::uint16_t> scratch, std::string_view what) const = 0;
};

// The most ranks that an all-reduce by name takes.
inline constexpr int most_all_reduce_ranks = 64;

// "one-shot": every rank gets all values and adds them up. "two-shot": every rank adds up a part, then the
// parts are gathered. Both in rank order. The others have the bits of engines' kernels:
//   "mnnvl-one-shot", "mnnvl-two-shot": chunks of 8 ranks, of 16 ranks; "mnnvl": the one that is taken for
//   the size, the former up to 1 MiB of all ranks' values.
//   "trtllm": rounded after each rank; "trtllm-fp32": rank order. 2, 4, 8 or 16 ranks.
// MNNVL's take 2 ranks to most_all_reduce_ranks, kerf's own also 1.
std::vector<std::string> all_reduce_names();
// Error{usage} that lists the names for an unknown one, Error{unsupported} with the reason for one whose sum
// cannot be met: a forced name never falls back. There for as long as the program runs; any thread may use
// it.
const AllReduce& all_reduce(std::string_view name);
// The order in which the all-reduce of that name, ours or an engine's, sums a shape. Errors: those of
// all_reduce(), and supports()' reason for a shape that it does not take.
SumOrder sum_order(std::string_view name, const AllReduceShape& shape);

}  // namespace kerf::comm
#pragma GCC visibility pop
