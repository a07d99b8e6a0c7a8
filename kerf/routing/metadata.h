// Routing metadata: which row of the op belongs to which token and expert. Nine tensors, the trtllm-gen
// op's own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kerf/base/error.h"
#include "kerf/tensor/storage.h"

#pragma GCC visibility push(default)
namespace kerf::routing {

// T tokens, K routes a token, E experts in all, of which [offset, offset + local) are here, `tile` rows a
// tile. It makes sense where none is negative, E and tile are at least 1 and the local experts are among the
// E.
struct MetadataShape {
  std::int64_t tokens = 0;
  std::int64_t top_k = 0;
  std::int64_t experts = 0;
  std::int64_t offset = 0;
  std::int64_t local = 0;
  std::int64_t tile = 8;

  // T * K.
  [[nodiscard]] std::int64_t routes() const { return tokens * top_k; }
  // Tiles and padded rows that any routing of this shape can need (sized by the global E, as the op sizes
  // them).
  [[nodiscard]] std::int64_t max_tiles() const {
    const std::int64_t filled = std::min(experts, routes());
    return filled + (routes() - filled) / tile;
  }
  [[nodiscard]] std::int64_t max_padded() const { return max_tiles() * tile; }
};

// The nine tensors, as views. Entries that a step does not need keep what they held. Of max_tiles tiles
// write_metadata() uses the first live_tiles, experts ascending, each expert's rows from the start of a tile
// on.
struct Metadata {
  std::span<std::int32_t> total_padded;          // [1] live tiles * tile
  std::span<std::int32_t> expanded_to_permuted;  // [T*K] row of route t*K + k, -1: not here
  std::span<std::int32_t> permuted_to_token;     // [max_padded + 1] padding rows are not written
  std::span<float> expert_weights;               // [T*K]
  std::span<std::int32_t> histogram;             // [max(2E, 512)] scratch
  std::span<std::int32_t> tokens_per_expert;     // [E] routes by global id, 0 for experts elsewhere
  std::span<std::int32_t> tile_to_expert;        // [max_tiles] local expert of a tile (id - offset)
  std::span<std::int32_t> tile_to_limit;         // [max_tiles] first row past the tile's routes
  std::span<std::int32_t> live_tiles;            // [1]
};

// 32-bit words that the nine tensors of a shape take in one buffer, each at a multiple of 64 bytes.
// Error{bug} for a shape that makes no sense, Error{unsupported} for one whose padded rows do not fit 32
// bits.
std::int64_t metadata_words(const MetadataShape& shape);

// The nine tensors of `shape` inside a buffer of words, in whatever memory it lies; Error{bug} where they do
// not fit, and metadata_words()'s errors.
Metadata metadata_in(std::span<std::int32_t> words, const MetadataShape& shape);

// One buffer of the host's memory for every shape up to the largest; all words -1 at first.
class MetadataBuffer {
 public:
  MetadataBuffer() = default;
  // Of so many words of 32 bits (metadata_words()) of `memory`, which must outlive it. Error{memory}.
  MetadataBuffer(tensor::Memory& memory, std::int64_t words);
  // metadata_in() of it, with its errors, and its size in words.
  [[nodiscard]] Metadata view(const MetadataShape& shape) const;
  [[nodiscard]] std::int64_t words() const;

 private:
  tensor::Tensor words_;
};

// Error{bug} unless the shape makes sense and each of the nine spans is long enough for it;
// Error{unsupported} where the padded rows do not fit 32 bits. Extra elements are no fault.
void check_metadata(const MetadataShape& shape, const Metadata& metadata);

// Nothing where every one of ids [T, K] is -1 or in [0, E); otherwise a usage reason: token, slot and id of
// the first that is not, or that they do not make rows of K.
Verdict check_ids(std::span<const std::int32_t> ids, std::int64_t top_k, std::int64_t experts);

// Writes the metadata of ids and weights [T, K]: rows of an expert in ascending route order, ids outside [0,
// E) and of other ranks get -1, a duplicate id counts once per route. Error{bug} where there are not T * K of
// both, and check_metadata()'s errors. No allocation.
void write_metadata(const MetadataShape& shape, std::span<const std::int32_t> ids,
                    std::span<const float> weights, const Metadata& out);

}  // namespace kerf::routing
#pragma GCC visibility pop
