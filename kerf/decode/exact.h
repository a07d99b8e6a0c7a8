// Where exact tails can run: every slice of an expert must be a node of the tree that sums over K.
#pragma once

#include <cstdint>
#include <span>

#include "kerf/base/error.h"
#include "kerf/checkpoint/checkpoint.h"
#include "kerf/decode/layer.h"
#include "kerf/layout/geometry.h"
#include "kerf/op/op.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// Nothing where the sums of `slices` slices of experts of intermediate width I give the whole's sum bit for
// bit: 1, or equal slices that are 512 times a power of two wide. Otherwise unsupported, with the numbers of
// slices for which they do; usage for less than 1.
Verdict exact_refused(std::int64_t intermediate, std::int64_t slices);

// The same for `layers` of a checkpoint whose NVFP4 experts are given `input`, at the width that `fit` pads
// them to. Cut layers need canonical sums besides, which W4A16 does not have; BF16 layers are never cut. From
// configs and headers alone. Error{usage} for a layer that is not there.
Verdict exact_refused(const checkpoint::Checkpoint& from, std::span<const std::int64_t> layers,
                      op::Input input, std::int64_t slices, const layout::Fit& fit = {});
// The same for layers that are bound.
Verdict exact_refused(std::span<const Layer> layers, std::int64_t slices);

}  // namespace kerf::decode
#pragma GCC visibility pop
