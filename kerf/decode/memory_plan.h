// How many bytes a decode takes on each rank, summed before anything is allocated and without any weights.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/layout/geometry.h"
#include "kerf/op/op.h"
#include "kerf/tail/tail.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// The sizes of a model and of a deployment.
struct MemoryRequest {
  std::int64_t experts = 0;       // E
  std::int64_t hidden = 0;        // H
  std::int64_t intermediate = 0;  // I
  std::int64_t top_k = 0;         // K
  std::int64_t nvfp4_layers = 0;
  std::int64_t bf16_layers = 0;
  std::int64_t weight_only_layers =
      0;                               // of nvfp4_layers: W4A16 by their configuration, whatever `input` says
  std::int64_t ranks = 1;              // that hold whole experts, E / ranks each
  std::int64_t rows = 1;               // rows of tp ranks, each with slices of E / rows experts
  std::int64_t tp = 1;                 // slices that experts are cut into; 1: no expert TP
  std::int64_t part = 0;               // which of them the rank in question holds; 0 is the widest
  layout::Fit fit = {};                // what may be done about an I that does not fit
  std::int64_t tokens = 8;             // largest step, at most most_tokens
  op::Input input = op::Input::nvfp4;  // what NVFP4 experts are given
  std::string backend = "cpu";         // op::backend_names()
  std::int64_t workers = 1;            // worker threads of a rank
  tail::Options tail{};
  bool exported_slices = false;  // the start is from an export of slices: there are no whole NVFP4 experts
  bool norm = false;             // a norm after the experts
  std::int64_t block = 0;        // bytes of the blocks around the experts, on every rank
};

// Bytes of the converted tensors on one rank, all layers together.
struct KindBytes {
  std::int64_t w13 = 0, w13_sf = 0, w2 = 0, w2_sf = 0;
  std::int64_t scalars = 0;  // g1_alphas, g1_scale_c, g2_alphas, a1_gscale, a2_gscale
  std::int64_t bf16 = 0;     // w13 and w2 of BF16 layers
  // The sum of all kinds, in bytes.
  [[nodiscard]] std::int64_t total() const { return w13 + w13_sf + w2 + w2_sf + scalars + bf16; }
};

// The most bytes in use during each stage of a start and its steps.
struct StagePeaks {
  std::int64_t load = 0;     // converted experts, as loading leaves them
  std::int64_t convert = 0;  // and what carries them to a device
  std::int64_t reshard = 0;  // stock and sliced experts, and the larger of one packed kind and a probe
  std::int64_t warm_up = 0;  // all that stays, buffers of steps, and the op's runs on a device
  std::int64_t steps = 0;    // all that stays, and buffers of steps

  friend bool operator==(const StagePeaks&, const StagePeaks&) = default;
};

// Bytes on a rank, by kind and by stage.
struct MemoryPlan {
  KindBytes ep;                 // stock experts: what loading leaves
  KindBytes tp;                 // sliced experts, which a reshard adds (BF16 layers stay EP); zero at tp 1
  std::int64_t width = 0;       // I of converted NVFP4 experts, padding included
  std::int64_t bf16_width = 0;  // of BF16 experts
  std::int64_t slice = 0;       // width of this rank's slices
  std::int64_t probe = 0;       // buffers of the probe of a layer, gone when it ends
  std::int64_t packed = 0;      // largest transient of a reshard: one tensor kind of one layer, packed
  // Everything that steps share: rows, routing metadata, quantised input, the backend's workspace, the tail's
  // scratch. What Runtime::footprint() reports as steps where there is neither a block around the experts
  // nor an all-reduce apart from the tails.
  std::int64_t buffers = 0;
  // The most that is in use during each stage.
  std::int64_t load = 0;     // ep; with exported slices ep + tp
  std::int64_t reshard = 0;  // ep + tp + the larger of packed and probe; equals load at tp 1
  std::int64_t steady = 0;   // ep + tp + buffers: the stock experts stay
  // The same by where it lies. Without a device all is the host's, with one (backend "cuda") the host has
  // scalars, staging and its own buffers of steps. What the driver and the op's constants take (some KiB a
  // layer) is left out.
  bool on_device = false;
  bool exported = false;     // the request's exported_slices: sliced experts are loaded as they are
  std::int64_t block = 0;    // the request's
  std::int64_t staging = 0;  // page-locked, on the host
  std::int64_t stack = 0;    // step buffers and workspace on the device
  std::int64_t run = 0;      // on the device, while warm-up or probe run the op
  StagePeaks host, device;
};

// A stage's bytes, term by term.
struct StageTerms {
  const char* stage = "";
  std::vector<std::pair<const char*, std::int64_t>> terms;  // of one rank; without those of no bytes
  std::int64_t total = 0;
};
// The stage that takes most, of the host's memory or (`device`) the device's.
StageTerms worst_stage(const MemoryPlan& plan, bool device);

// Nothing, or why there can be no such decode: usage (a number below 1, K > E, more than most_tokens tokens,
// a part outside [0, tp), sizes beyond 2^60 bytes, no such backend) or unsupported (a shape that the layout
// cannot hold or the backend cannot run, a tp or ep that is not legal, with those that are; exact tails where
// they cannot be).
Verdict unsupported(const MemoryRequest& request);

// The sums. Error where unsupported() has a reason. Looks at no machine.
MemoryPlan memory_plan(const MemoryRequest& request);

}  // namespace kerf::decode
#pragma GCC visibility pop
