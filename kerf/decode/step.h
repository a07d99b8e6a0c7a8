// One layer's step: route, quantise, experts, tail. It works in buffers that a plan has sized: no allocation,
// no look at files or the environment, no logging.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kerf/decode/build.h"
#include "kerf/decode/layer.h"
#include "kerf/decode/plan.h"
#include "kerf/routing/router.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// What a step is given, T = `tokens`; all of it is borrowed. Rows: x, or (layers with quantised input only) a
// and a_sf. Routes: ids and weights, or logits, which `router` selects from (and `bias`, where there is one).
struct StepInputs {
  std::int64_t tokens = 0;
  std::span<const std::uint16_t> x;    // [T, H] bf16
  std::span<const std::uint8_t> a;     // [T, H/2] e2m1
  std::span<const std::uint8_t> a_sf;  // [T, H/16] e4m3, linear
  std::span<const std::int32_t> ids;   // [T, K], -1: not routed
  std::span<const float> weights;      // [T, K]
  const routing::Router* router = nullptr;
  std::span<const float> logits;  // [T, E]
  std::span<const float> bias;    // [E] or empty
  // Where the output goes, [T, H] bf16; empty: to the plan's buffer.
  std::span<std::uint16_t> out{};
};

// Nothing, or why the step cannot run: more tokens than prepared (both numbers), sizes that do not fit, an id
// outside [-1, E) (token, slot, id): usage; quantised rows for a layer that takes bf16 ones: unsupported.
Verdict refused(const Layer& layer, const Plan& plan, const StepInputs& inputs);

// Which tail a step has: one that the plan is prepared for; where none is named, the plan's own.
using TailKind = std::optional<tail::Kind>;

// Local: this rank's unfinalised rows; of sliced experts with an exact tail to follow, f32 sums. The routing
// metadata is written here and the op's body runs from it; BF16 layers given logits run the op that routes
// itself, and so do steps whose tactic has no prepared body (which make the same rows: Runtime::build has
// warned of it). The result refers to the plan's buffers and, where the inputs have ids, to those. The inputs
// must not be refused().
op::Unfinalized run_experts(const Layer& layer, Mode mode, const StepInputs& inputs, const Plan& plan,
                            const Workers& workers, TailKind tail = {});

// Local: the same rows from the public op, which checks the routes and writes the metadata itself.
// Error{usage} for an id that is none.
op::Unfinalized run_public_op(const Layer& layer, Mode mode, const StepInputs& inputs, const Plan& plan,
                              const Workers& workers, TailKind tail = {});

// Collective: the tail of the layer's mode, into `out` [T, H] bf16 or, where that is empty, the plan's. The
// tail must be one that the plan is prepared for. The result [T, H] bf16 is the same on every rank; in the
// plan's buffer it holds until the next step.
std::span<const std::uint16_t> run_tail(const Layer& layer, Mode mode, const op::Unfinalized& rows,
                                        const Plan& plan, const Rank& rank, TailKind tail = {},
                                        std::span<std::uint16_t> out = {});

// Collective: both. The inputs must not be refused().
std::span<const std::uint16_t> execute(const Layer& layer, Mode mode, const StepInputs& inputs,
                                       const Plan& plan, const Rank& rank, TailKind tail = {});

}  // namespace kerf::decode
#pragma GCC visibility pop
