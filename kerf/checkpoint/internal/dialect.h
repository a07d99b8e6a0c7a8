// Which dialects a tensor's name can be in, and where in a model experts stand.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "kerf/checkpoint/dialect.h"

namespace kerf::checkpoint::internal {

// Where the experts of a layer are, below its prefix.
inline constexpr std::array<std::string_view, 4> expert_roots = {"mlp.experts.", "block_sparse_moe.experts.",
                                                                 "feed_forward.experts.", "mixer.experts."};
// What precedes "layers.0." in models.
inline constexpr std::array<std::string_view, 6> layer_bases = {
    "model.language_model.", "language_model.model.", "model.", "backbone.",
    "thinker.model.",        "language.model."};

// Dialects as bits of a number: those in which a name has a meaning.
using Dialects = std::uint32_t;

// The first of a set that is not empty. Where several are left (BF16 weights have no scales to tell them by)
// they mean the same.
const Dialect& first_of(Dialects set);

// The dialects in which `rest`, what follows the experts' root (and the number of one expert), is a tensor of
// experts: of those that stand at such a root.
Dialects dialects_with(std::string_view root, std::string_view rest, bool one_expert);
// All that stack experts.
Dialects stacked_dialects();
// The stacked ones that lie like this.
Dialects stacked_dialects(bool transposed, bool alternating);

}  // namespace kerf::checkpoint::internal
