// The steps of a stack of layers on a device, as one piece of work: every layer's routes, quantised rows,
// experts, tail and sum over ranks, enqueued on one stream or captured as one graph and replayed with new
// inputs. After capture() a replay allocates nothing, and the host does nothing a layer. A layer that has
// been refilled (refill.h) has its new weights in the next run or replay, without another capture.
//
// The ranks are threads of one process and share the device; the thread of rank 0 enqueues for all of them,
// one rank after another, so that the order of a step's work is that of the graph's edges.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kerf/cuda/device.h"
#include "kerf/decode/build.h"
#include "kerf/decode/layer.h"
#include "kerf/decode/plan.h"
#include "kerf/decode/step.h"
#include "kerf/numeric/rank_sum.h"
#include "kerf/routing/router.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// Which steps.
struct StackStep {
  Mode mode = Mode::ep;
  std::int64_t tokens = 0;
  tail::Kind tail = tail::Kind::fast;

  friend bool operator==(const StackStep&, const StackStep&) = default;
};

// What one layer's step reads and writes, in device memory of the caller's. x (or a) and out begin at a
// multiple of 16 bytes, a_sf at one of 8.
struct DeviceStepTensors {
  // Rows: x, or (layers with quantised input only) a and a_sf.
  const std::uint16_t* x = nullptr;    // [T, H] bf16
  const std::uint8_t* a = nullptr;     // [T, H/2] e2m1
  const std::uint8_t* a_sf = nullptr;  // [T, H/16] e4m3, linear
  // Routes: given, or chosen by `router` from logits.
  const std::int32_t* ids = nullptr;  // [T, K]
  const float* weights = nullptr;     // [T, K]
  const routing::Router* router = nullptr;
  const float* logits = nullptr;  // [T, E]
  const float* bias = nullptr;    // [E], or null
  std::uint16_t* out = nullptr;   // [T, H] bf16
};

// One rank's rows before the tail, as op::Unfinalized has them, in device memory of the stack's: they hold
// until the stack's next step.
struct DeviceUnfinalized {
  std::int64_t tokens = 0;
  std::int64_t top_k = 0;
  std::int64_t hidden = 0;
  std::int64_t row_count = 0;           // R: rows that the map may name
  const std::uint16_t* rows = nullptr;  // [R, H] bf16, or
  const float* sums = nullptr;          // [R, H] f32: of sliced experts with an exact tail, before g2_alpha
  const float* weights = nullptr;       // [T, K]
  const std::int32_t* map = nullptr;    // [T, K] row of a route, -1: not on this rank
};

// All layers' steps on the device, one after another, eager or captured. What is collective throws the same
// on every rank: Error{device} where the device fails, besides what is said.
class DeviceStack {
 public:
  virtual ~DeviceStack() = default;

  // Collective. One layer's inputs of the next run, the same on every rank, in host memory and copied to the
  // device: x, and ids with weights or (with a router, the same from capture to replay) logits with bias;
  // shapes as in StepInputs, whose `out` does not count. Error{usage} for more than the largest step has,
  // Error{unsupported} for quantised rows.
  virtual void load(std::size_t position, const StepInputs& inputs) = 0;
  // Collective. Enqueues all layers' steps on what is loaded, and waits. Error{usage}, as of capture(), for a
  // step that the stack was not made for.
  virtual void run(const StackStep& step) = 0;
  // Collective. Captures the same; a replay runs it on what is loaded then, and waits.
  virtual void capture(const StackStep& step) = 0;
  virtual void replay() = 0;
  // Collective. Microseconds of each of `times` replays of all layers, one after another, on the device's
  // clock: rank 0's.
  [[nodiscard]] virtual std::vector<double> time(int times) = 0;
  // Local. A layer's output on this rank after a run or replay, [T, H] bf16.
  [[nodiscard]] virtual std::vector<std::uint16_t> output(std::size_t position) const = 0;
  // Collective. Enqueues one layer's step on tensors of the caller's, behind what `stream` has (each rank's
  // own; they may be one and the same), and returns before it has run; what `stream` gets next comes after
  // it. A stream that is being captured takes it into its graph; several ranks' calls are captured on one
  // stream alone. Inputs are the same on every rank. On a single rank nothing is allocated and the host waits
  // for nothing. Steps of one stack work in the same memory: on several streams the caller orders them.
  // `step` may have fewer tokens than the one of its mode and tail that the stack was made for; Error{usage}
  // for more, and for tensors that are missing or misaligned; Error{unsupported} for quantised rows given to
  // a layer that takes bf16 ones.
  virtual void enqueue(std::size_t position, const StackStep& step, const DeviceStepTensors& tensors,
                       cuda::StreamHandle stream) = 0;
  // The same in two halves. Local (but for the first after a refill, which is collective as all steps are,
  // if follow_refills() was not called): this rank's rows; `out` is not looked at. Collective: the tail on
  // the rows that each rank has from its last enqueue_experts() with the same position and step, into `out`
  // [T, H] bf16. Errors as of enqueue().
  virtual DeviceUnfinalized enqueue_experts(std::size_t position, const StackStep& step,
                                            const DeviceStepTensors& tensors, cuda::StreamHandle stream) = 0;
  virtual void enqueue_tail(std::size_t position, const StackStep& step, std::uint16_t* out,
                            cuda::StreamHandle stream) = 0;
  // Collective. Enqueues sum[i] = the sum over ranks of their mine[i], bf16 [values], in `order`, behind what
  // each rank's `stream` has; `sum` may be `mine`. Both begin at multiples of 16 bytes, and `values` is a
  // multiple of 8, the same on all ranks: Error{usage} otherwise.
  virtual void enqueue_sum(numeric::SumOrder order, const std::uint16_t* mine, std::uint16_t* sum,
                           std::int64_t values, cuda::StreamHandle stream) = 0;
  // Collective. Takes what refills have changed; every step does so before it begins.
  virtual void follow_refills() = 0;
  // Device bytes on this rank.
  [[nodiscard]] virtual std::int64_t bytes() const = 0;
};

// Nothing, or why there can be no such stack on these ranks: unsupported for experts that are not on a
// device, ranks of several processes, more ranks than the device's tails take; device where this build has
// none.
Verdict no_device_stack(const Rank& rank);

// Collective; allocates all that any of `steps` needs. A layer may be there several times, with inputs and
// output of its own each time. The layers (bound to the device's backend) and the plan must outlive it.
// Errors, the same on every rank: no_device_stack()'s reason, memory, device; bug for no layers or steps.
std::unique_ptr<DeviceStack> make_device_stack(std::span<const Layer* const> layers, const Plan& plan,
                                               std::span<const StackStep> steps, const Rank& rank);

}  // namespace kerf::decode
#pragma GCC visibility pop
