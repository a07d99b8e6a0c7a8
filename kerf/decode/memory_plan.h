// How many bytes a decode takes on each rank, summed before anything is allocated and without any weights.
#pragma once

#include <cstdint>
#include <string>

#include "kerf/base/error.h"
#include "kerf/layout/geometry.h"
#include "kerf/op/op.h"
#include "kerf/tail/tail.h"

namespace kerf::decode {

struct MemoryRequest {
  std::int64_t experts = 0;       // E
  std::int64_t hidden = 0;        // H
  std::int64_t intermediate = 0;  // I
  std::int64_t top_k = 0;         // K
  std::int64_t nvfp4_layers = 0;
  std::int64_t bf16_layers = 0;
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
};

// Bytes of the converted tensors on one rank, all layers together.
struct KindBytes {
  std::int64_t w13 = 0, w13_sf = 0, w2 = 0, w2_sf = 0;
  std::int64_t scalars = 0;  // g1_alphas, g1_scale_c, g2_alphas, a1_gscale, a2_gscale
  std::int64_t bf16 = 0;     // w13 and w2 of BF16 layers
  [[nodiscard]] std::int64_t total() const { return w13 + w13_sf + w2 + w2_sf + scalars + bf16; }
};

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
  std::int64_t load = 0;     // ep
  std::int64_t reshard = 0;  // ep + tp + the larger of packed and probe; equals load at tp 1
  std::int64_t steady = 0;   // ep + tp + buffers: the stock experts stay
};

// Nothing, or why there can be no such decode: usage (a number below 1, K > E, more than most_tokens tokens,
// sizes beyond 2^60 bytes, no such backend) or unsupported (a shape that the layout cannot hold or the
// backend cannot run, a tp or ep that is not legal, with those that are; exact tails where they cannot be).
Verdict unsupported(const MemoryRequest& request);

// Error where unsupported() has a reason.
MemoryPlan memory_plan(const MemoryRequest& request);

}  // namespace kerf::decode
