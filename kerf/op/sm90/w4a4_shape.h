// How the W4A4 kernel cuts its two GEMMs into work, and what a block keeps in shared memory: pure arithmetic
// on sizes, shared by host and device.
//
// A unit is 128 rows of weights (a scale tile of the converted layout) over all of K. K is taken in segments
// of 512 values, each in chunks of 128; a chunk of a unit is what one bulk copy fetches. Four warpgroups of a
// block work on one record at a time (w4a4_records.cuh): on the parts of one unit, whole subtrees of the sum
// over segments, or each on a unit of its own where K has too few segments to share, or shares badly.
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
inline constexpr int most_row_bytes = segment_values / 16 * block_bytes;

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
  int parts;          // warpgroups that share a unit: 1, 2 or 4
  int part_segments;  // of a part: a power of two where there are several, so that each is a node of the tree
  int parts_in_use;   // those of the parts that have segments
  int groups;         // of units that a block works on together

  // Which of the units that a block works on together is a warpgroup's: warpgroup / parts, without a
  // division.
  [[nodiscard]] constexpr int unit_of(int warpgroup) const { return warpgroup >> (parts >> 1); }
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
// rarely.
enum class Cut : std::uint8_t { shared, alone };

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
  if (cut == Cut::shared)
    for (const int parts : {2, 4})
      if (4 * g.segments >= 3 * parts * segments_of(parts)) g.parts = parts;
  g.part_segments = g.parts == 1 ? g.segments : segments_of(g.parts);
  g.parts_in_use = divided_up(g.segments, g.part_segments);
  g.groups = divided_up(g.units, warpgroups / g.parts);
  return g;
}

// An item of the work's queue: a group of units of a tile, cut as Params::gemm[kind] says; kind -1: there is
// no such item. Kinds are GEMM1 and GEMM2 in shared units, then in units alone.
struct Item {
  int kind = -1;
  int tile = 0;
  int first_unit = 0;
};

// Of GEMM `stage`'s tiles, those whose units warpgroups have alone: none where blocks would be left idle,
// else all but those at the very end of the work.
constexpr int tiles_alone(const Gemm* gemm, int stage, int live_tiles, int blocks) {
  const int units = gemm[stage].units;
  if (live_tiles * units < 12 * blocks) return 0;
  if (stage == 0) return live_tiles;
  const int end = divided_up(2 * blocks, units);
  return live_tiles > end ? live_tiles - end : 0;
}

// Item number n: first all of GEMM1's, then all of GEMM2's.
constexpr Item item_of(const Gemm* gemm, int live_tiles, int blocks, int n) {
  for (int stage = 0; stage < 2; ++stage) {
    const int alone = tiles_alone(gemm, stage, live_tiles, blocks);
    for (const bool shared : {false, true}) {
      const int kind = shared ? stage : stage + 2;
      const int first = shared ? alone : 0;
      const Gemm& g = gemm[kind];
      const int items = ((shared ? live_tiles : alone) - first) * g.groups;
      if (n < items) {
        const int tile = n / g.groups;
        return {kind, first + tile, (n - tile * g.groups) * g.unit_of(warpgroups)};
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
  // [warpgroups][2][operand_bytes * pairs]: the B operands of two segments
  static constexpr int operand = (tiles + first_tiles * 8 + 16 + 127) / 128 * 128;
  // [warpgroups][2][2 * pairs][32] f32: the tokens' scales in them
  static constexpr int scales = operand + warpgroups * 2 * operand_bytes * pairs;
  // [partial_slots][warpgroups][2 * pairs][128] f32: sums of parts
  static constexpr int partials = scales + warpgroups * 2 * 2 * pairs * numeric::blocks_per_segment * 4;
  // [warpgroups][row_slots][row_slot_bytes]: a segment's codes and scales of each token as they are in
  // memory, then RowsAre
  static constexpr unsigned row_slots = pairs == 1 ? 4 : 2;
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
