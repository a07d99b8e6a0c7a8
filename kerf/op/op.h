// The interface of the op on routed experts. GEMM1 (gather, up and gate) -> gated activation ->
// requantisation -> GEMM2, over the local experts of one layer; what comes out is unfinalised: one row a
// route, not yet weighted, normed or summed.
//
// Two ways in, the same bits: routed_experts() writes the routing metadata itself (the public op);
// routed_experts_from_metadata() runs RoutedExperts::body() on metadata that is ready.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kerf/base/calls.h"
#include "kerf/base/error.h"
#include "kerf/base/threads.h"
#include "kerf/layout/experts.h"
#include "kerf/routing/metadata.h"
#include "kerf/routing/router.h"

#pragma GCC visibility push(default)
namespace kerf::op {

// Token rows a tile, and a kernel variant. -1 in either: the op's default.
struct Tactic {
  int tile = -1;
  int config = -1;

  friend bool operator==(const Tactic&, const Tactic&) = default;
};

// Tiles that the op's launcher chooses from, ascending.
inline constexpr std::array<int, 4> tiles = {8, 16, 32, 64};

// How NVFP4 experts read their input: quantised rows (W4A4, canonical arithmetic) or bf16 rows (W4A16).
enum class Input : std::uint8_t { nvfp4, bf16 };

// SwiGLU's parameters, f32, each per local expert or empty for the default. beta and the limits act on raw
// accumulators: of gate's dot x1 and up's dot x0, an expert's intermediate is u * (g * sigmoid(alpha * g))
// with g = min(x1, limit_gate) * g1_alpha and u = (clamp(x0, -limit_up, limit_up) + beta) * g1_scale_c; BF16
// experts have 1 for both factors. Read when experts are bound or reread, not afterwards.
struct GatedParameters {
  std::span<const float> alpha;       // [n] default 1
  std::span<const float> beta;        // [n] default 0
  std::span<const float> limit_gate;  // [n] default +inf
  std::span<const float> limit_up;    // [n] default +inf
};

// One layer's NVFP4 experts, to be bound.
struct Nvfp4Args {
  layout::Nvfp4View experts;
  std::int64_t num_experts = 0;  // E of the model
  std::int64_t top_k = 0;        // K: routes a token
  Input input = Input::nvfp4;
  GatedParameters gated;
};

// One layer's BF16 experts, to be bound.
struct Bf16Args {
  layout::Bf16View experts;
  std::int64_t num_experts = 0;  // E of the model
  std::int64_t top_k = 0;        // K: routes a token
  GatedParameters gated;
};

// The step's T rows: a and a_sf for NVFP4 input, x for bf16 input; the others are not looked at.
struct Tokens {
  std::int64_t count = 0;
  std::span<const std::uint8_t> a;     // [T, H/2] e2m1, two a byte, the low nibble first
  std::span<const std::uint8_t> a_sf;  // [T, H/16] e4m3, linear
  std::span<const std::uint16_t> x;    // [T, H] bf16
};

// Prepared routes: ids of -1 are not routed.
struct Routes {
  std::span<const std::int32_t> ids;  // [T, K]
  std::span<const float> weights;     // [T, K] f32
};

// Where a call's rows go, [gemm2_rows, H], and thereby what they are: bf16, finished; or f32, the canonical
// sums before g2_alpha, so that bf16(g2_alpha * sum), rounded to nearest even, is the finished row. Longer is
// no fault. Only NVFP4 experts with quantised rows (W4A4) have canonical sums; others refuse,
// Error{unsupported}.
using RowBuffer = std::variant<std::span<std::uint16_t>, std::span<float>>;

// What one layer's call gives. rows[map[t*K + k]] (or sums, where those were asked for) is route (t, k)'s
// row; map -1: not here. Other rows are undefined. All are views of the call's buffers and arguments.
struct Unfinalized {
  std::int64_t tokens = 0;
  std::int64_t top_k = 0;
  std::int64_t hidden = 0;
  std::span<const std::uint16_t> rows;  // [gemm2_rows, H] bf16
  std::span<const float> weights;       // [T, K]
  std::span<const std::int32_t> map;    // [T, K]
  std::span<const std::int32_t> ids{};  // [T, K] the routes' experts, -1: not routed
  std::span<const float> sums{};        // [gemm2_rows, H] f32, instead of rows
};

// Rows that the op's row buffer has for a shape: max_padded, or as many of H bf16 values as fill 128 KiB,
// rounded up, if that is more (the trtllm-gen rule). H >= 1.
std::int64_t gemm2_rows(const routing::MetadataShape& shape, std::int64_t hidden);

// One layer's experts bound to one backend: everything that can be checked or prepared once is done.
class RoutedExperts {
 public:
  virtual ~RoutedExperts() = default;

  // What was bound.
  [[nodiscard]] virtual layout::ExpertsShape shape() const = 0;
  // The first local expert's number in the model.
  [[nodiscard]] virtual std::int64_t first_expert() const = 0;
  [[nodiscard]] virtual std::int64_t num_experts() const = 0;  // E of the model
  // Experts a token, and how rows are read.
  [[nodiscard]] virtual std::int64_t top_k() const = 0;
  [[nodiscard]] virtual Input input() const = 0;

  // Tactics that are worth running for `tokens` tokens (-1: for any number), best guess first; never empty. A
  // default tactic (-1, -1) is always accepted by body().
  [[nodiscard]] virtual std::vector<Tactic> tactics(std::int64_t tokens) const = 0;
  // Asked once per resolved tactic (tile > 0; config -1: the default) before there are steps: makes ready
  // what body() needs there, or says why it has no body at this tactic (unsupported). Steps that resolve to
  // such a tactic take the public op at its default.
  [[nodiscard]] virtual Verdict prepare(Tactic /*tactic*/) const { return std::nullopt; }
  // The kind of memory that body() works in. One workspace serves all tactics: kinds must not differ.
  [[nodiscard]] virtual std::string_view workspace_kind(Tactic /*tactic*/) const { return "host"; }
  // Bytes of workspace that body() wants for a shape at a tactic, wherever it begins.
  [[nodiscard]] virtual std::size_t workspace_bytes(const routing::MetadataShape& shape,
                                                    Tactic tactic) const = 0;

  // The GEMMs, from metadata, into `rows` of gemm2_rows * H elements at least: route (t, k)'s row at row
  // expanded_to_permuted[t*K + k]. Of rows only those that the map names are written. Errors: usage for
  // tokens, rows and a workspace of the wrong size; bug for a shape that is not this op's and metadata that
  // lead outside of it (check_metadata()'s errors are passed on); unsupported for sums that the experts do
  // not have and a tactic that is not there; device, memory on a device. The CPU's bodies allocate nothing,
  // those of "cuda" device memory for a call's time; the reference allocates. One call at a time on one pool
  // of workers, workspace and buffer of rows.
  virtual void body(const Tokens& tokens, const routing::MetadataShape& shape,
                    const routing::Metadata& metadata, Tactic tactic, const Workers& workers,
                    std::span<std::byte> workspace, const RowBuffer& rows) const = 0;

  // The bound tensors have other contents, where they lay and of the shapes they had: whatever binding took
  // from them (scalars; what it found out about block scales) is taken again, and `gated`, of which there
  // must be as many values as at binding. Nothing that is bound moves, so that what was prepared or captured
  // stays valid. Not while a body runs. Allocates nothing but a stream on a device, and fails there alone:
  // Error{device}.
  virtual void reread(const GatedParameters& gated) = 0;

  // The metadata shape of a step of `tokens` tokens at a tile.
  [[nodiscard]] routing::MetadataShape metadata_shape(std::int64_t tokens, std::int64_t tile) const {
    return {tokens, top_k(), num_experts(), first_expert(), shape().experts, tile};
  }
};

// Weights and rows of a layer: what a backend can answer for from sizes alone.
enum class Arithmetic : std::uint8_t {
  w4a4,   // NVFP4 weights, quantised rows
  w4a16,  // NVFP4 weights, bf16 rows
  bf16,   // BF16 weights, bf16 rows
};
std::string_view name(Arithmetic arithmetic);  // "w4a4", "w4a16", "bf16"

// A named way to run the op. `supports` answers with the reason.
class Backend {
 public:
  virtual ~Backend() = default;
  // One of backend_names().
  [[nodiscard]] virtual std::string_view name() const = 0;
  // The kernel package: kernels, instruction set and a number that changes whenever times could, such as
  // "cpu-avx512-1". What was measured for one package says nothing about another.
  [[nodiscard]] virtual std::string_view package() const = 0;
  // The device that the kernels run on, in words that two machines share only if times are comparable:
  // base/machine.h's, or the GPU's name. Error{device} where a GPU does not answer.
  [[nodiscard]] virtual std::string device() const = 0;
  // What RoutedExperts::tactics() gives for the same number of tokens; -1: for any number, all there are.
  [[nodiscard]] virtual std::vector<Tactic> tactics(std::int64_t tokens) const = 0;
  // Before there are tensors: whether experts of a shape can be bound, and the workspace that they will ask
  // for, in bytes (the same number as their workspace_bytes() at a default tactic).
  [[nodiscard]] virtual Verdict supports(Arithmetic arithmetic, const layout::ExpertsShape& shape) const = 0;
  [[nodiscard]] virtual std::size_t workspace_bytes(Arithmetic arithmetic, const layout::ExpertsShape& shape,
                                                    const routing::MetadataShape& step) const = 0;
  // Whether these can be bound. Otherwise why not (unsupported): what malformed() says of the tensors and
  // supports() of their shape, experts that are not among the model's, a top_k that is not 1 to E, parameters
  // that are not one for each local expert.
  [[nodiscard]] virtual Verdict supports(const Nvfp4Args& args) const = 0;
  [[nodiscard]] virtual Verdict supports(const Bf16Args& args) const = 0;
  // Binds; the tensors must outlive the result. supports()' reason is thrown; on a device also Error{memory}
  // (weights that lie in the host's memory are copied there) and Error{device}.
  [[nodiscard]] virtual std::unique_ptr<RoutedExperts> bind(const Nvfp4Args& args) const = 0;
  [[nodiscard]] virtual std::unique_ptr<RoutedExperts> bind(const Bf16Args& args) const = 0;
};

// All backends built in: "reference", "cpu" (best instruction set), "cpu:<isa>" for each that this CPU can
// run, and "cuda" where there is a GPU that it can run on.
std::vector<std::string> backend_names();
// The same, but "cuda" wherever it is built, without a look for the GPU.
std::vector<std::string> built_backend_names();
// Error{usage} that lists the names for an unknown one, Error{device} with the reason for "cuda" where it
// cannot run: a forced name never falls back. There for as long as the program runs.
const Backend& backend(std::string_view name);
// For plans, which ask for tactics, sizes and what is supported, and bind nothing: the same, but for "cuda",
// which answers in every build and without a device, and whose bind() throws Error{bug}.
const Backend& planning_backend(std::string_view name);

// Buffers of the public op, sized by the caller for its largest step: one of each serves all layers. In the
// host's memory.
struct Buffers {
  const routing::MetadataBuffer* metadata = nullptr;  // of metadata_words() at least
  std::span<std::byte> workspace;                     // of RoutedExperts::workspace_bytes() at least
  RowBuffer rows;                                     // [gemm2_rows, H]
  CallRecord* calls = nullptr;  // where the entries below record themselves; null: nowhere
};

// The public op on prepared routes, at a tactic whose tile, if it is -1, is the smallest. Ids are checked:
// Error{usage} names token, slot and id, or says that there are not T * K ids and weights. Then, as for both
// below, body()'s errors; Error{bug} where the metadata do not fit their buffer.
Unfinalized routed_experts(const RoutedExperts& experts, const Tokens& tokens, const Routes& routes,
                           Tactic tactic, const Workers& workers, const Buffers& buffers);

// The public op that routes itself, from logits [T, E] (f32) and bias ([E] or empty): BF16 experts. The
// weights are rounded to bf16. ids and weights [T, K] are scratch that the result refers to.
// Error{unsupported} for a router of other E or K, Error{usage} for ids and weights that are not T * K,
// routing::select()'s errors.
Unfinalized routed_experts_from_logits(const RoutedExperts& experts, const Tokens& tokens,
                                       const routing::Router& router, std::span<const float> logits,
                                       std::span<const float> bias, std::span<std::int32_t> ids,
                                       std::span<float> weights, Tactic tactic, const Workers& workers,
                                       const Buffers& buffers);

// Below the public op: the body from metadata that is written already, which has no ids, so the result's are
// empty; its map and weights are the metadata's spans. buffers.metadata is not used.
Unfinalized routed_experts_from_metadata(const RoutedExperts& experts, const Tokens& tokens,
                                         const routing::MetadataShape& shape,
                                         const routing::Metadata& metadata, Tactic tactic,
                                         const Workers& workers, const Buffers& buffers);

}  // namespace kerf::op
#pragma GCC visibility pop
