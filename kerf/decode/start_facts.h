// What a start compares over its ranks before anything of a tensor is read: ranks that would read, cut or
// order differently end here, with both values, and not in steps whose bits differ.
#pragma once

#include <span>
#include <vector>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/comm/facts.h"
#include "kerf/decode/adopt.h"
#include "kerf/decode/build.h"

namespace kerf::decode {

struct RuntimeOptions;

// kerf's version, the kernel package, the layout of converted experts, and how the ranks stand as a grid.
comm::Facts facts_of(const Rank& rank, const std::string& backend);
// The model by its sizes, and by the fingerprint of its files, or of an export that it is part of.
comm::Facts facts_of(const checkpoint::Checkpoint& from);
// Of an engine's experts.
comm::Facts facts_of(const ModelSize& model);
// What changes bits, or what is exchanged: all but paths, progress, the room, the probe's limit, and what
// bind() of the all-reduce compares by itself. The caller's own facts among them.
comm::Facts facts_of(const RuntimeOptions& options);

// Collective, once the global scales of these layers have been read and before anything is converted with
// them: Error{checkpoint} on every rank where a scale differs in a bit, with layer, tensor, expert, the ranks
// and their values. `scales` in the layers' order.
void require_same_scales(comm::Group& group, std::span<const std::int64_t> layers,
                         std::span<const checkpoint::LayerScales> scales);

}  // namespace kerf::decode
