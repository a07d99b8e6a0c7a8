// A group of an engine's own processes, made from the engine's own collectives: what moves bytes between
// ranks (torch.distributed, an MPI of the engine's, a fabric) is handed over as callbacks, and kerf needs no
// connection of its own. Two are enough; what is not given is derived.
//
//   memory       Callbacks get spans of the host's memory, one contiguous piece to send and one to receive,
//                which never overlap: the arguments of all_gather_into_tensor and all_to_all_single. What
//                lies strided is packed, what lies elsewhere (EngineGroupOptions::copier) is copied, into
//                buffers as large as the message that are given back afterwards where they are large.
//   checked      Each collective begins with an all_gather of what every rank brings (some 4 KiB a rank), so
//                that ranks which call different things are told so in words, all of them; small data travel
//                in it. Without the check a collective is one callback, and calls that do not fit are the
//                engine's to notice, or to wait for.
//   sums         The engine's all_reduce where it is given, and ordered() says what the engine says of it.
//                Otherwise, and where rank order is asked for: numeric/rank_sum.h on what all_gather and
//                all_to_all move, the same bits as any ordered group.
//   parts        split() asks the engine for a group of its own where it can give one. Otherwise parts use
//                the whole group's callbacks, each rank exchanging with its part alone: then all parts take
//                the same number of collectives, and none of the whole group comes between them on some
//                ranks only.
//   errors       What a callback throws ends the group: the rank, the callback, `what` and the text, as
//                GroupFailed{peer}; a kerf::Error keeps its type and kind, std::bad_alloc is Error{memory}.
//                How long a rank that is not there is waited for is the engine's to say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kerf/comm/group.h"
#include "kerf/tensor/view.h"

#pragma GCC visibility push(default)
namespace kerf::comm {

// Each callback is collective over the engine's ranks and done when it returns. It is called by the thread
// that calls the group's collective. `what`: a few words for messages.
struct EngineGroupCalls {
  int rank = 0;  // from 0 on
  int size = 1;
  std::string name = "engine";  // Group::name()

  // Needed. `all` takes size() times as many bytes as `mine` has, ranks ascending; at least one byte.
  std::function<void(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what)>
      all_gather;

  // Needed. send_bytes[d] bytes go to rank d and received_bytes[s] come from rank s, one after the other
  // without gaps; this rank's own among them, zeros too, on some ranks zeros alone.
  std::function<void(std::span<const std::byte> send, std::span<const std::int64_t> send_bytes,
                     std::span<std::byte> received, std::span<const std::int64_t> received_bytes,
                     std::string_view what)>
      all_to_all;

  // Sums of bf16 values (raw bits) over ranks, in place; equally many on every rank, at least one. Optional.
  std::function<void(std::span<std::uint16_t> values, std::string_view what)> all_reduce_sum;
  // The same, of part rank of size equal parts only: `mine` has size times as many values as `part`.
  // Optional: derived from all_reduce_sum, without which it is not used.
  std::function<void(std::span<const std::uint16_t> mine, std::span<std::uint16_t> part,
                     std::string_view what)>
      reduce_scatter_sum;
  // Whether both sum by numeric/rank_sum.h bit for bit. NCCL's and gloo's do not.
  bool ordered = false;

  // Optional: otherwise all_gather is one.
  std::function<void(std::string_view what)> barrier;

  // A group of the ranks that have this rank's colour, in the order they have here; colours[r] is rank r's.
  // Optional.
  std::function<EngineGroupCalls(std::span<const int> colours, std::string_view what)> split;
};

// The same on all ranks, but for the copier.
struct EngineGroupOptions {
  bool checked = true;
  bool rank_order = false;  // sums in rank order whatever the engine has
  // Moves the bytes of all-gathers and all-to-alls to and from where they lie; sums are of the host's memory.
  // It must outlive the group.
  const tensor::Copier* copier = &tensor::host_copier();
};

// Not collective: nothing is called yet. Error{usage} for a rank that is not one of `size` and for a callback
// that is needed and not there. The group keeps the callbacks; what they refer to must outlive it and its
// parts.
std::unique_ptr<Group> make_engine_group(EngineGroupCalls calls, const EngineGroupOptions& options = {});

// Which sums such a group forms, and whether they have rank order, in a line for a log.
std::string engine_sums(const EngineGroupCalls& calls, const EngineGroupOptions& options = {});

}  // namespace kerf::comm
#pragma GCC visibility pop
