// The block around the experts, from a checkpoint: which of the two kinds a model has, and one layer's
// weights as a rank holds them. Every rank holds all of them (the experts alone are divided), so that each
// computes the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/block/block.h"
#include "kerf/checkpoint/checkpoint.h"
#include "kerf/decode/build.h"
#include "kerf/tensor/storage.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

//   none        the routed experts alone
//   qwen3_moe   a softmax router on the experts' own input
//   muse_spark  a sigmoid router at the model's width, a projection to the experts' and a norm, a projection
//               back
enum class BlockKind : std::uint8_t { none, qwen3_moe, muse_spark };

std::vector<std::string> block_names();  // "none", "qwen3-moe", "muse-spark"
// The kind's name, as `--block` has it.
std::string_view name(BlockKind kind);
// Error{usage} that lists the names for an unknown one.
BlockKind block_kind(std::string_view name);

// One layer's, in host memory: gate [E, D] F32 or BF16 as in the file, bias [E] F32; for models with a pool
// pre [H, D] and post [D, H] BF16, elsewhere without bytes. The weights are views of the tensors, which stay
// where they are when this is moved.
struct LayerBlock {
  tensor::Tensor gate, bias, pre, post;
  block::Weights weights;
};

// Nothing, or why the layers' blocks are not of this kind: unsupported (a model of another kind, shared
// experts or tensors that no block computes, a router that no method computes), checkpoint (a tensor missing
// or something else, with layer and file), usage for a layer that is not there. From configs and headers
// alone.
Verdict unsupported_block(const checkpoint::Checkpoint& from, std::span<const std::int64_t> layers,
                          BlockKind kind);

// Collective: the blocks of these layers; none at all for BlockKind::none. Errors, the same on every rank:
// those of unsupported_block(), checkpoint (values that are not finite, all faults of all layers; a file that
// cannot be read), memory.
std::vector<LayerBlock> build_blocks(const checkpoint::Checkpoint& from, std::span<const std::int64_t> layers,
                                     BlockKind kind, const Rank& rank);

}  // namespace kerf::decode
#pragma GCC visibility pop
