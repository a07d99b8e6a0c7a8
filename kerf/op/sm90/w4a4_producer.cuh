// The warps that fetch: each fills one warpgroup's ring with the chunks of its shares, in order, and asks for
// the tokens' rows. Weights wait for nothing but room, so that GEMM2's arrive while GEMM1 is being finished
// elsewhere.
#pragma once

#include "kerf/op/sm90/w4a4_rows.cuh"

namespace kerf::op::sm90::w4a4 {

// By a whole warp; the first warp also schedules.
template <int pairs, bool few>
__device__ void produce(const Params& p, int warpgroup) {
  const int stages = p.plan.stages;
  std::byte* const ring = Shared<pairs>::ring(p, warpgroup);
  std::uint64_t* const full = SharedHead::ring_full(warpgroup);
  std::uint64_t* const empty = SharedHead::ring_empty(warpgroup);
  const bool leader = threadIdx.x % 32 == 0;

  // A block asks for more work as late as its ring allows, so that at the start, and where there is little,
  // no block has two items while another has none.
  int until_ahead = few ? 4 * stages : stages;
  constexpr int published = 3;
  Scheduler<pairs, few> scheduler(p);
  if (warpgroup == 0) scheduler.begin();

  RecordReader reader;
  RowFeed<pairs, few> rows(p, warpgroup);
  int slot = 0;
  unsigned parity = 1;
  for (;; reader.pass()) {
    const unsigned n = reader.passed();
    // With little work the next record need not be there before this one's weights have been asked for.
    if (few && warpgroup == 0) scheduler.publish();
    const Record& r = reader.current();
    // The rows keep up with the records, so that there is always room for another.
    const unsigned behind = r.any() ? 1 : 0;
    while (rows.passed() + behind < n) rows.advance(n);
    const int kind = uniform(r.kind);
    if (kind < 0) break;
    const int stage = kind & 1;
    const Gemm& g = p.gemm[kind];
    const Share<few> share(g, r, warpgroup);
    const int row = uniform(r.expert * g.rows + share.unit * unit_rows);
    const std::uint8_t* scales = p.scales[stage] +
                                 static_cast<std::int64_t>(row / unit_rows) * (g.k / 64) * half_scale_bytes +
                                 share.begin * segment_chunks * chunk_scale_bytes;

    int steps = warpgroup != 0 ? published : 0;  // towards the next record, one a chunk
    int k = uniform(share.begin * segment_values);
    const int k_end = uniform(share.any() ? min(g.k, share.end * segment_values) : k);
    for (; k < k_end; k += chunk_values) {
      if constexpr (few) {
        do rows.advance(n + 1);
        while (rows.passed() != n + 1 && !barrier_test(empty + slot, parity));
        barrier_wait(empty + slot, parity);
      } else {
        // One look at the rows for each chunk is enough: when there is room for this chunk's, the rows that
        // come next had room when there was room for the one before.
        while (!rows.advance(n + 1) && !barrier_test(empty + slot, parity)) {
        }
        barrier_wait(empty + slot, parity);
      }
      if (leader) {
        std::byte* const to = ring + slot * chunk_bytes;
        std::uint64_t* const barrier = full + slot;
        barrier_expect(barrier, chunk_bytes);
        tensor_load(to, &p.codes[stage], k / 2, row, barrier);  // zeros beyond K
        const bool half = g.k - k < chunk_values;
        bulk_load(to + chunk_code_bytes, scales, half ? half_scale_bytes : chunk_scale_bytes, barrier);
        if (half) bulk_load(to + chunk_code_bytes + half_scale_bytes, p.zeros, half_scale_bytes, barrier);
      }
      __syncwarp();
      scales += chunk_scale_bytes;
      if (++slot == stages) {
        slot = 0;
        parity ^= 1;
      }
      if (until_ahead > 0) --until_ahead;
      if (until_ahead > 0 || steps == published) continue;
      if (steps == 0) scheduler.ask();
      ++steps;
      if constexpr (few)
        steps = published;
      else if (steps == published)
        scheduler.publish();
    }
    if (steps == published) continue;
    if (steps == 0) scheduler.ask();
    if constexpr (!few) scheduler.publish();
  }
}

}  // namespace kerf::op::sm90::w4a4
