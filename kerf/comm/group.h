// A group of ranks that act together. Collectives are called by every rank in the same order; each takes
// `what`, a few words for messages, the same on all ranks. A collective that a rank does not reach in time,
// or whose rank has left, throws GroupFailed{peer} with that rank's number and what was awaited, on every
// rank that waits. One whose ranks call different things, or with sizes that do not fit, throws
// GroupFailed{bug} that names them. Either is final: whatever is called afterwards throws it again.
//
// Spans are of the host's memory, unless the group says more (local.h, nccl.h, engine_group.h), and are the
// collective's until it returns. What is received must not overlap what is sent, but for an all-gather's
// `mine` that is its own place in `all`, and an all-reduce's that is `sum`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kerf/base/error.h"
#include "kerf/base/function_ref.h"
#include "kerf/tensor/view.h"

#pragma GCC visibility push(default)
namespace kerf::comm {

// What a collective throws when the group is of no more use: another rank left, is late, or called something
// else. A type of its own, so that a rank which dies of it is not taken for the cause. Whoever adds words to
// errors on the way keeps it (in_context() of agree.h does).
class GroupFailed : public Error {
 public:
  // A kind and a text, as of any Error.
  using Error::Error;
};

// What each rank of a group lends to the others, by rank.
using Lent = FunctionRef<std::span<const std::byte>(int rank)>;

// One rank's hold on the group: each rank has one of its own and calls it from one thread.
class Group {
 public:
  virtual ~Group() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;  // "local", "mpi", ...
  // This rank's number, from 0 on, and how many there are.
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  // Whether reductions follow numeric/rank_sum.h bit for bit.
  [[nodiscard]] virtual bool ordered() const = 0;
  // What messages call rank `rank` of this group: its number in the group that was split, if any was.
  [[nodiscard]] virtual int number(int rank) const { return rank; }

  // Returns when all ranks have called it.
  virtual void barrier(std::string_view what) = 0;

  // Every rank's `mine` (equal sizes, also none), ranks ascending, into `all` (size() times as many bytes).
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                          std::string_view what) = 0;

  // send[d] goes to rank d, and received[s] takes what rank s sends here: size() of each, of any sizes, as
  // long as both ends of a pair have the same. Strided blocks are sent without packing where the transport
  // can.
  virtual void all_to_all(std::span<const tensor::StridedBytes> send,
                          std::span<const std::span<std::byte>> received, std::string_view what) = 0;

  // Sums over ranks of bf16 values (raw bits), equally many on every rank: of everything, on every rank
  // (sum.size() == mine.size()); or of part rank() of equal parts only (mine.size() == size() * part.size()).
  // By rank_sum_bf16() of numeric/rank_sum.h where the group is ordered(), otherwise in an order of the
  // group's own.
  virtual void all_reduce_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum,
                              std::string_view what) = 0;
  virtual void reduce_scatter_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> part,
                                  std::string_view what) = 0;

  // Whether the ranks share memory, so that they may lend it to each other.
  [[nodiscard]] virtual bool shares_memory() const { return false; }
  // For groups that share memory; elsewhere Error{bug}. Once all ranks are here, each runs `work` on what all
  // of them lend (as many bytes each; addresses in it may be followed); nobody returns before all have run
  // it. What work throws is thrown then, on its rank.
  virtual void lend(std::span<const std::byte> mine, FunctionRef<void(Lent)> work, std::string_view what);

  // A new group of the ranks that pass the same colour, in the order they have here. Collective; each rank
  // gets the part that it belongs to. This group must outlive its parts. Messages of a part number the ranks
  // as the whole group does.
  [[nodiscard]] virtual std::unique_ptr<Group> split(int colour, std::string_view what) = 0;
};

// all_to_all() into equal parts of one piece of memory, ranks ascending: received.size() is size() times what
// each rank sends here. Allocates.
void all_to_all(Group& group, std::span<const tensor::StridedBytes> send, std::span<std::byte> received,
                std::string_view what);

}  // namespace kerf::comm
#pragma GCC visibility pop
