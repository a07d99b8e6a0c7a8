// How the W4A4 kernel cuts its two GEMMs into work, and what a block keeps in shared memory: pure arithmetic
// on sizes, shared by host and device.
//
// A unit is 128 rows of weights (a scale tile of the converted layout) over all of K. K is taken in segments
// of 512 values, each in chunks of 128; a chunk of a unit is what one bulk copy fetches. Four warpgroups of a
// block work on one record at a time (w4a4_records.cuh): on the parts of one unit, whole subtrees of the sum
// over segments, or each on a unit of its own where K has too few segments to share, or shares badly. Where
// there is next to no work two blocks share a unit, each one side of the sum.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kerf/numeric/segment_tree.h"

namespace kerf::op::sm90::w4a4 {

inline constexpr int warpgroups = 4;  // of consumers; a fifth feeds them
inline constexpr int warpgroup_threads = 128;
inline constexpr int consumers = warpgroups * warpgroup_threads;
inline constexpr int threads = consumers + warpgroup_threads;

inline constexpr int unit_rows = 128;
inline constexpr int chunk_values = 128;
inline constexpr int segment_values = numeric::values_per_segment;
inline constexpr int segment_chunks = segment_values / chunk_values;
inline constexpr int chunk_code_bytes = unit_rows * chunk_values / 2;
inline constexpr int chunk_scale_bytes = unit_rows * chunk_values / 16;
inline constexpr int half_scale_bytes = chunk_scale_bytes / 2;  // of 64 values of K, one scale tile
inline constexpr int chunk_bytes = chunk_code_bytes + chunk_scale_bytes;
inline constexpr int operand_bytes = 4096;  // of a segment and a pair of tokens (w4a4_operand.cuh)
inline constexpr int row_code_bytes = segment_values / 2;  // of a segment and a token
inline constexpr int row_bytes = row_code_bytes + segment_values / 16;
inline constexpr int block_bytes = 16;  // of the intermediate, in memory
// Steps whose tokens the kernel may end itself: of such tiles; with so few tokens that nobody who waits for
// the rest of a token's rows has other work to do meanwhile; and with choices that a warp holds at once.
inline constexpr int ended_tile = 8;
inline constexpr int most_ended_tokens = 2;
inline constexpr int most_ended_top_k = 32;
inline constexpr int ended_block_values = 4;  // of a row, in 16 bytes
inline constexpr int most_row_bytes = segment_values / 16 * block_bytes;

constexpr bool can_end(std::int64_t tokens, std::int64_t top_k, std::int64_t tile) {
  return tile == ended_tile && tokens <= most_ended_tokens && top_k <= most_ended_top_k;
}

// What launches leave to one another, in memory that was zero once.
struct Kept {
  std::uint64_t launches;  // that have ended
  std::uint32_t items;     // of the running one, handed out
  std::uint32_t blocks;    // of the running one, that are through
};

// One of the two GEMMs, and one way to cut it.
struct Gemm {
  int k;              // values of K
  int rows;           // of an expert's matrix
  int segments;       // of K, the last may be shorter
  int units;          // of an expert's matrix
  int parts;          // warpgroups of a block that share a unit: 1, 2 or 4
  int sides;          // blocks that share a unit: 1, or 2, whose parts follow on one another
  int part_segments;  // of a part: a power of two where there are several, so that each is a node of the tree
  int parts_in_use;   // those of the parts of all sides that have segments
  int block_units;    // that a block works on together
  int groups;         // of such units

  // Which of the units that a block works on together is a warpgroup's: warpgroup / parts, without a
  // division.
  [[nodiscard]] constexpr int unit_of(int warpgroup) const { return warpgroup >> (parts >> 1); }
  [[nodiscard]] constexpr int side_parts_in_use(int side) const {
    const int left = parts_in_use - side * parts;
    return left < parts ? left : parts;
  }
  [[nodiscard]] constexpr int part_begin(int part) const { return part * part_segments; }
  [[nodiscard]] constexpr int part_end(int part) const {
    return std::min(segments, (part + 1) * part_segments);
  }
  [[nodiscard]] constexpr int chunks(int segment) const {
    // No std::min: it would take a host constant's address.
    const int left = (k - segment * segment_values + chunk_values - 1) / chunk_values;
    return left < segment_chunks ? left : segment_chunks;
  }
};

constexpr int divided_up(int n, int by) { return (n + by - 1) / by; }

// Shared units keep all warpgroups of a block busy with one unit, which is over soon: for little work, and
// for its end. Units that each warpgroup has alone cost less, since nobody waits and a warpgroup finishes
// rarely. Spread units are half as much for a block as shared ones, for work of which not every
// multiprocessor would have a part.
enum class Cut : std::uint8_t { shared, alone, spread };
inline constexpr int cuts = 3;

constexpr Gemm gemm_of(std::int64_t k, std::int64_t rows, Cut cut) {
  Gemm g{};
  g.k = static_cast<int>(k);
  g.rows = static_cast<int>(rows);
  g.segments = divided_up(g.k, segment_values);
  g.units = g.rows / unit_rows;
  // The most parts of which the warpgroups lose no more than a quarter to parts that are shorter. Very long
  // sums are always shared: what waits in a part's stack then stays small.
  const auto segments_of = [&](int parts) {
    return static_cast<int>(std::bit_ceil(static_cast<unsigned>(divided_up(g.segments, parts))));
  };
  g.parts = g.segments > 32 ? warpgroups : 1;
  if (cut != Cut::alone)
    for (const int parts : {2, 4})
      if (4 * g.segments >= 3 * parts * segments_of(parts)) g.parts = parts;
  g.part_segments = g.parts == 1 ? g.segments : segments_of(g.parts);
  g.sides = 1;
  g.block_units = warpgroups / g.parts;
  if (cut == Cut::spread) {
    const int segments = segments_of(2 * warpgroups);
    if (g.block_units > 1) {
      g.block_units /= 2;
    } else if (divided_up(g.segments, segments) > warpgroups) {
      g.sides = 2;
      g.part_segments = segments;
    }
  }
  g.parts_in_use = divided_up(g.segments, g.part_segments);
  g.groups = divided_up(g.units, g.block_units);
  return g;
}

// Sums of a unit's second side, a pair of tokens' each, on their way to the first: what a step may have of
// them at most.
inline constexpr int most_halves = 512;
inline constexpr int half_sums_bytes = warpgroup_threads * 16;

// An item of the work's queue: a group of units of a tile, cut as Params::gemm[kind] says, or one side of
// them; kind -1: there is no such item. Kinds are GEMM1 and GEMM2 of each cut.
struct Item {
  int kind = -1;
  int tile = 0;
  int first_unit = 0;
  int side = 0;
};

// The two GEMMs of each cut: Params::gemm, by kind.
constexpr int kind_of(Cut cut, int stage) { return 2 * static_cast<int>(cut) + stage; }

// Whether the work is so little that it is worth spreading, by passes of two tokens. tile: rows of one.
constexpr bool spreads(const Gemm* gemm, int live_tiles, int blocks, int tile) {
  for (int stage = 0; stage < 2; ++stage) {
    const Gemm& g = gemm[kind_of(Cut::spread, stage)];
    if (stage == 0 && live_tiles * g.groups * g.sides > blocks) return false;
    if (g.sides == 2 && live_tiles * (tile / 2) * g.units > most_halves) return false;
  }
  return true;
}

// Of GEMM `stage`'s tiles, those whose units warpgroups have alone: none where blocks would be left idle,
// else all but those at the very end of the work.
constexpr int tiles_alone(const Gemm* gemm, int stage, int live_tiles, int blocks) {
  const int units = gemm[stage].units;
  if (live_tiles * units < 12 * blocks) return 0;
  if (stage == 0) return live_tiles;
  const int end = divided_up(2 * blocks, units);
  return live_tiles > end ? live_tiles - end : 0;
}

// Item number n: first all of GEMM1's, then all of GEMM2's, each by rows. A second side comes before its
// first, which waits for it.
constexpr Item item_of(const Gemm* gemm, int live_tiles, int blocks, bool spread, int n) {
  for (int stage = 0; stage < 2; ++stage) {
    const int alone = spread ? 0 : tiles_alone(gemm, stage, live_tiles, blocks);
    for (const bool rest : {false, true}) {
      const Cut cut = !rest ? Cut::alone : spread ? Cut::spread : Cut::shared;
      const int kind = kind_of(cut, stage);
      const int first = rest ? alone : 0;
      const Gemm& g = gemm[kind];
      const int tile_items = g.groups * g.sides;
      const int items = ((rest ? live_tiles : alone) - first) * tile_items;
      if (n < items) {
        const int of = n / tile_items;
        const int in_tile = n - of * tile_items;
        const int group = g.sides == 2 ? in_tile / 2 : in_tile;
        return {kind, first + of, group * g.block_units, g.sides == 2 ? 1 - in_tile % 2 : 0};
      }
      n -= items;
    }
  }
  return {};
}

// Finished subtrees that a part's sum keeps waiting at most.
constexpr int stack_levels(const Gemm& g) {
  return std::bit_width(static_cast<unsigned>(std::min(g.segments, g.part_segments) - 1));
}

inline constexpr int most_row_slots = 4;
inline constexpr int record_slots = 4;  // records between who writes them and who works on them
inline constexpr int most_partial_slots = 2;
inline constexpr int record_words = 20;
inline constexpr int first_tiles = 32;  // whose experts a block looks up at once
inline constexpr int most_shared = 227 * 1024;
inline constexpr int most_stages = 6;

// Byte offsets in a block's shared memory, for passes of 2 * pairs tokens. What has a fixed size comes first,
// so that its addresses are constants in the kernel.
template <int pairs>
struct SharedPlaces {
  static constexpr unsigned partial_slots = pairs == 1 ? 2 : 1;  // records whose parts may be unfinished
  // [warpgroups][most_stages] ring full, then empty; [record_slots] full, empty; [warpgroups][most_row_slots]
  // rows full, empty; [record_slots] details
  static constexpr int barriers = 0;
  static constexpr int records =
      barriers + (2 * warpgroups * most_stages + 3 * record_slots + 2 * warpgroups * most_row_slots) * 8;
  // [most_partial_slots][warpgroups][4]: how many parts of a unit are there, for each warp's rows
  static constexpr int arrived = records + record_slots * record_words * 4;
  // [first_tiles] expert, limit; then live_tiles, the tag
  static constexpr int tiles = arrived + most_partial_slots * warpgroups * 4 * 4;
  // [most_ended_tokens][most_ended_top_k]: rows, then weights
  static constexpr int routes = tiles + first_tiles * 8 + 16;
  // Segments whose operands a warpgroup has: where they are large, only one, for another stage of the ring.
  static constexpr unsigned operand_slots = pairs == 1 ? 2 : 1;
  // [warpgroups][operand_slots][operand_bytes * pairs]: the B operands of segments
  static constexpr int operand = (routes + most_ended_tokens * most_ended_top_k * 8 + 127) / 128 * 128;
  // [warpgroups][operand_slots][32][2 * pairs] f32: the tokens' scales in them
  static constexpr int scales =
      operand + warpgroups * static_cast<int>(operand_slots) * operand_bytes * pairs;
  // [partial_slots][warpgroups][2 * pairs][128] f32: sums of parts
  static constexpr int partials =
      scales + warpgroups * static_cast<int>(operand_slots) * 2 * pairs * numeric::blocks_per_segment * 4;
  // [warpgroups][row_slots][row_slot_bytes]: a segment's codes and scales of each token as they are in
  // memory, then RowsAre
  static constexpr unsigned row_slots = pairs == 1 ? 4 : 1;
  static constexpr int row_slot_bytes = 2 * pairs * most_row_bytes + 16;
  static constexpr int rows =
      partials + static_cast<int>(partial_slots) * warpgroups * 2 * pairs * warpgroup_threads * 4;
  // [warpgroups][stages][chunk_bytes]
  static constexpr int ring =
      (rows + warpgroups * static_cast<int>(row_slots) * row_slot_bytes + 127) / 128 * 128;
};

// The rest, which depends on the shape.
struct SharedPlan {
  int stages;  // chunks of each warpgroup's ring
  int stack;   // [levels][2 * pairs][consumers] f32: see stack_levels()
  int bytes;
};

template <int pairs>
constexpr SharedPlan shared_plan(int levels) {
  constexpr int ring = SharedPlaces<pairs>::ring;
  static_assert(ring % 128 == 0, "bulk copies of boxes need it");
  const int stack = levels * 2 * pairs * consumers * 4;
  const int room = (most_shared - ring - stack) / (warpgroups * chunk_bytes);
  const int stages = room < most_stages ? room : most_stages;
  const int end = ring + warpgroups * stages * chunk_bytes;
  return {stages, end, end + stack};
}

}  // namespace kerf::op::sm90::w4a4
