// Expert layers of an engine that is up and running: its resident tensors are bound where they lie, without a
// checkpoint and without a copy. What comes of it is what build() gives: it can be sharded, probed, planned
// and executed. The engine's tensors, and the gated parameters, must outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kerf/comm/group.h"
#include "kerf/decode/build.h"
#include "kerf/decode/layer.h"
#include "kerf/layout/experts.h"
#include "kerf/op/op.h"
#include "kerf/tail/tail.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// Experts of a kind that kerf cannot run, in the engine's own word for it.
struct OtherExperts {
  std::string kind;
};

// One layer as the engine holds it on this rank: E / ranks whole experts, in the converted layout
// (layout/experts.h has shapes and dtypes).
struct StockLayer {
  std::int64_t index = 0;
  std::int64_t top_k = 0;  // K
  std::variant<std::monostate, layout::Nvfp4View, layout::Bf16View, OtherExperts> experts;
  // What NVFP4 experts are given, which decides what their scalars mean (layout/experts.h). BF16: bf16 rows.
  op::Input input = op::Input::nvfp4;
  op::GatedParameters gated;            // one f32 value a local expert, or none; the engine's, host memory
  std::optional<tail::RouteNorm> norm;  // after the experts; gain [H]
  bool finalises = false;               // its op weighs and adds its rows up itself
  bool captures_routes = false;         // somebody records the routes that its op selects
};

// What the whole model has.
struct ModelSize {
  std::int64_t experts = 0;  // E
  std::int64_t top_k = 0;    // K
};

// Collective. Layers in the order given, bound in place; nothing is allocated from rank.memory. Errors, the
// same on every rank, each naming its layers: unsupported (no experts, experts of another kind, tensors that
// are malformed or misaligned, experts elsewhere than in linear placement, another K, an op that finalises or
// captures routes, a norm of another width, layers of different H), usage (no layers, one twice, a negative
// index, scalars that are not positive and finite, an alpha or beta that is not finite, a limit that is not
// positive (+inf is none), a norm whose eps is negative or whose numbers are not finite, layers that differ
// between ranks, no such backend), device ("cuda" where it cannot run).
std::vector<Layer> adopt(std::span<const StockLayer> layers, const ModelSize& model,
                         const std::string& backend, const Rank& rank);

// What an engine wraps its TP group in.
class GroupHolder {
 public:
  virtual ~GroupHolder() = default;
  // What messages call it.
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual comm::Group* device_group() const = 0;  // null: it has none
};

// The engine's TP group, given as its holder or as the group in it; it stays the holder's. Both: Error{usage}
// that names what was given instead: nothing, a holder without a group, another holder or group.
comm::Group& tp_group(const GroupHolder& tp, const GroupHolder* given);
comm::Group& tp_group(const GroupHolder& tp, const comm::Group* given);

}  // namespace kerf::decode
#pragma GCC visibility pop
