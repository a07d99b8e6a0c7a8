// The live rows of routing metadata, a routing tile at a time: a tile's rows are what one task of the CPU op
// works on, and padding is never touched.
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

// A tile: its expert, and its entries [first, first + count).
struct Group {
  std::int32_t expert = 0;
  std::int32_t first = 0;
  std::int32_t count = 0;
};

// Fills groups and entries (each large enough for the shape: max_tiles and routes) in tile order. Returns the
// number of groups. Error{bug} where the metadata has more rows than routes.
std::size_t gather(const routing::MetadataShape& shape, const routing::Metadata& metadata,
                   std::span<Group> groups, std::span<Entry> entries);

}  // namespace kerf::op::cpu
