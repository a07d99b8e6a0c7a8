// What the steps of a stack of layers take on a device, from sizes alone: the shapes that DeviceRank
// allocates, and thereby what a plan can say beforehand, without a device and in builds that know none.
#pragma once

#include <cstdint>
#include <span>

#include "kerf/decode/plan.h"
#include "kerf/layout/experts.h"
#include "kerf/op/op.h"
#include "kerf/tensor/view.h"

namespace kerf::decode {

// Experts of one kind, as they are bound on a rank.
struct DeviceKind {
  op::Arithmetic arithmetic = op::Arithmetic::w4a4;
  layout::ExpertsShape shape;

  friend bool operator==(const DeviceKind&, const DeviceKind&) = default;
};

// The sizes of a stack's steps.
struct DeviceExtent {
  std::int64_t tokens = 0;   // of the largest step
  std::int64_t experts = 0;  // E
  std::int64_t hidden = 0;   // H
  std::int64_t top_k = 0;    // K
};

// One layer's own tensors; those that it does without have no bytes. F32 but for x, gain and out (bf16) and
// ids (i32). x, out [T, H], logits [T, E], bias [E], ids, weights [T, K], T the extent's.
struct DeviceLayerShapes {
  tensor::Shape gs{0};         // [1] of quantised rows
  tensor::Shape gain{0};       // [H] of a norm
  tensor::Shape g2_alphas{0};  // [E] of sliced experts
  tensor::Shape x, logits, bias, ids, weights, out;

  // Of a layer that quantises its rows, has a norm, has sliced experts; and bytes of all.
  DeviceLayerShapes(const DeviceExtent& extent, bool quantised, bool norm, bool sliced);
  [[nodiscard]] std::int64_t bytes() const;
};

// What all layers share: room for any number of tokens up to the most at any tactic that takes them. metadata
// and counters I32 words, scratch and kept U8 bytes; codes U8 [T, H/2], scales F8_E4M3 [T, H/16], ids I32 and
// weights F32 [T, K], rows BF16 [gemm2_rows, H], sums the same in F32, partial BF16 [T, H].
struct DeviceStepShapes {
  tensor::Shape metadata, codes, scales, ids, weights, scratch, counters, kept, rows, partial;
  tensor::Shape sums{0};  // of exact tails on slices

  // For experts of these kinds, with sums where exact tails run on slices; and bytes of all.
  DeviceStepShapes(std::span<const DeviceKind> kinds, const DeviceExtent& extent, bool sums);
  [[nodiscard]] std::int64_t bytes() const;
};

// The most bytes that one run of the op takes on the way in from the host, as warm-up and probe go: of any of
// the kinds, at any of those tactics.
std::int64_t device_run_bytes(std::span<const DeviceKind> kinds, const DeviceExtent& extent, bool sums);

}  // namespace kerf::decode
