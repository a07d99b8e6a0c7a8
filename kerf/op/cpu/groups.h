// The live rows of routing metadata, gathered by expert: the CPU op works an expert at a time and never
// touches padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kerf/routing/metadata.h"

namespace kerf::op::cpu {

// One permuted row: where its result goes, and which token it reads.
struct Entry {
  std::int32_t row = 0;
  std::int32_t token = 0;
};

// An expert and its entries [first, first + count).
struct Group {
  std::int32_t expert = 0;
  std::int32_t first = 0;
  std::int32_t count = 0;
};

// Fills groups and entries (each large enough for the shape: max_tiles and routes) in tile order, merging
// neighbouring tiles of one expert. Returns the number of groups. Error{bug} where the metadata has more rows
// than routes.
std::size_t gather(const routing::MetadataShape& shape, const routing::Metadata& metadata,
                   std::span<Group> groups, std::span<Entry> entries);

}  // namespace kerf::op::cpu
