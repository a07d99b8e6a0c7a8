// One layer's routed experts as one rank holds them: stock (whole experts, EP) and, after a reshard, sliced
// (its row's experts, I' wide, expert TP), each bound to the op's backend once. Tensors and the ops bound to
// them stay where they are when a Layer is moved.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <variant>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/decode/gated.h"
#include "kerf/layout/experts.h"
#include "kerf/op/op.h"
#include "kerf/tail/tail.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// Where a step's experts are: whole on one rank each, or sliced over a row of ranks. BF16 layers are EP in
// either.
enum class Mode : std::uint8_t { ep, tp };
std::string_view name(Mode mode);

// What experts of a kind compute in when they are given `input`.
op::Arithmetic arithmetic_of(checkpoint::ExpertKind kind, op::Input input);

// One layer of a rank: its experts, bound to a backend, and what its steps need beside them.
struct Layer {
  std::int64_t index = 0;
  checkpoint::ExpertKind kind = checkpoint::ExpertKind::nvfp4;
  op::Input input = op::Input::nvfp4;  // BF16 layers: bf16
  // Owned, or (adopt.h) views of experts that an engine holds.
  std::variant<std::monostate, layout::Nvfp4Experts, layout::Bf16Experts, layout::Nvfp4View, layout::Bf16View>
      stock;
  SwigluValues own_gated;                      // of layers that were built from a checkpoint
  op::GatedParameters gated;                   // of the stock experts: own_gated's values, or an engine's
  std::unique_ptr<op::RoutedExperts> ep;       // `stock`, bound; null for exported slices
  std::optional<layout::Nvfp4Experts> sliced;  // slices of the row's experts
  std::unique_ptr<op::RoutedExperts> tp;       // those, bound; null: none
  std::int64_t whole_width = 0;         // I of the whole experts, where none are here (exported slices)
  std::optional<tail::RouteNorm> norm;  // after the experts, gain [H]
  // How often the layer has been filled anew (refill.h): who keeps copies of its values compares.
  std::uint64_t refills = 0;

  // Whether the stock experts are an engine's.
  [[nodiscard]] bool adopted() const;
  // The stock experts, whoever owns them; Error{bug} for a layer of another kind.
  [[nodiscard]] layout::Nvfp4View nvfp4() const;
  [[nodiscard]] layout::Bf16View bf16() const;
  // Bytes of one expert's matrices and block scales in steps of `mode`, which runs(): what a step reads of
  // it.
  [[nodiscard]] std::int64_t expert_bytes(Mode mode) const;
  // Whether steps of `mode` run on sliced experts.
  [[nodiscard]] bool sliced_in(Mode mode) const { return mode == Mode::tp && tp != nullptr; }
  // Slices that were exported as such have no whole experts: there are no steps of Mode::ep then.
  [[nodiscard]] bool runs(Mode mode) const { return ep != nullptr || sliced_in(mode); }
  [[nodiscard]] const op::RoutedExperts& experts(Mode mode) const { return sliced_in(mode) ? *tp : *ep; }
  // Whatever is bound: what does not depend on the mode (H, E, K, the input) is asked of it.
  [[nodiscard]] const op::RoutedExperts& bound() const { return ep != nullptr ? *ep : *tp; }
  // I of whole experts as converted.
  [[nodiscard]] std::int64_t width() const { return ep != nullptr ? ep->shape().intermediate : whole_width; }
  // What quantised rows are scaled by, a1_gscale. Error{bug} for BF16 layers.
  [[nodiscard]] float input_scale() const;
};

}  // namespace kerf::decode
#pragma GCC visibility pop
