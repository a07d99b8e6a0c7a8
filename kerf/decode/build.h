// From an opened checkpoint to stock experts on every rank: each rank reads, checks and converts only its own
// experts (linear placement) and binds them to a backend. What concerns all experts (global scales) is read
// by every rank, so that none differs in a bit. Ranks exchange what they find wrong before any of them
// throws: then all throw the same error, and none is left waiting.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kerf/base/calls.h"
#include "kerf/base/log.h"
#include "kerf/base/threads.h"
#include "kerf/checkpoint/checkpoint.h"
#include "kerf/comm/grid.h"
#include "kerf/comm/group.h"
#include "kerf/decode/layer.h"
#include "kerf/decode/meter.h"
#include "kerf/decode/startup.h"
#include "kerf/layout/geometry.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// One rank's resources. All are passed in; the referenced ones must outlive what is built with them.
struct Rank {
  comm::Group& group;
  Meter& memory;  // over the Memory of the caller's choice
  Workers workers;
  Log log;                           // rank 0 writes what all ranks agree on; other ranks write nothing
  const comm::Grid* grid = nullptr;  // which ranks share slices; null: all do
  CallRecord* calls = nullptr;       // where the entries that steps reach record themselves; null: nowhere
  Meter* device = nullptr;           // over a device's memory: experts' weights lie there; null: in `memory`

  // Where the experts' weights lie.
  [[nodiscard]] Meter& weights() const { return device != nullptr ? *device : memory; }
  // Bytes in use, in all memory.
  [[nodiscard]] std::int64_t in_use() const {
    return memory.current() + (device != nullptr ? device->current() : 0);
  }

  // The ranks over which expert TP cuts this rank's experts.
  [[nodiscard]] comm::Group& row() const { return grid != nullptr ? grid->row() : group; }
  // The ranks with the same slice of other experts; null where the row has all experts.
  [[nodiscard]] comm::Group* column() const { return grid != nullptr ? grid->column() : nullptr; }

  // Writes a line of the log, on rank 0 alone.
  void info(const std::string& line) const {
    if (group.rank() == 0) log.info(line);
  }
  void warning(const std::string& line) const {
    if (group.rank() == 0) log.warning(line);
  }
};

// What a layer's global scales are worth saying about, on rank 0: notes, and warnings of implausible ones.
void say_scales(const Rank& rank, const checkpoint::MoeLayer& layer, const checkpoint::LayerScales& scales);

// Which layers, and how they are run.
struct BuildOptions {
  std::vector<std::int64_t> layers;    // empty: every layer with routed experts
  op::Input input = op::Input::nvfp4;  // what NVFP4 experts are given; weight-only checkpoints: always bf16
  std::string backend = "cpu";         // op::backend_names()
  // Called on every rank, may be empty: bytes of all ranks' experts in the files, the others as far as this
  // one; from an export layers. What it throws is agreed on by all.
  std::function<void(std::int64_t done, std::int64_t of)> progress;
  layout::Fit fit = {};     // what may be done about an intermediate width that does not fit
  std::int64_t slices = 1;  // that NVFP4 experts will be cut into: what they are padded for, if they are
};

// The layers to build: ascending, without repeats; all where `wanted` is empty. Error{usage} that lists the
// layers there are for one that has no routed experts. Error{checkpoint} where tensors and config contradict
// each other about that: about any layer where all are wanted, else about those named.
std::vector<std::int64_t> select_layers(const checkpoint::Checkpoint& from,
                                        const std::vector<std::int64_t>& wanted);

// Collective. Errors, the same on every rank: usage (a layer or backend that does not exist), device ("cuda"
// where it cannot run), unsupported (a shape that the layout cannot hold, experts that do not divide over the
// ranks: with the legal values; experts on a device that are sent by another rank), checkpoint (all faults of
// the global scales, norms and selection biases of all layers, before anything is allocated; then a layer's
// block scales or BF16 weights, before that layer is; a file that has changed), memory. `startup`, where it
// is given: what was checked and converted here is added.
std::vector<Layer> build(const checkpoint::Checkpoint& from, const BuildOptions& options, const Rank& rank,
                         Startup* startup = nullptr);

// The norm after a layer's experts, its gain [H] read, where the model has one. Error{checkpoint} where it
// cannot be read. (The checkpoint has seen to it that all layers or none have it, and that it is BF16 [H].)
std::optional<tail::RouteNorm> read_norm(const checkpoint::MoeLayer& from,
                                         const checkpoint::ModelConfig& config);

}  // namespace kerf::decode
#pragma GCC visibility pop
