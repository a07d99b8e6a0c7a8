// The tokens' side on its way into shared memory: for each of a warpgroup's segments the tokens' codes and
// scales, in order, as far ahead as there are slots. Under a full load of weights the memory answers late, so
// that those who multiply must not be the ones who ask.
#pragma once

#include "kerf/op/sm90/w4a4_records.cuh"

namespace kerf::op::sm90::w4a4 {

// Arrivals that fill a slot: each lane's copies, and what one lane writes itself.
inline constexpr int row_arrivals = 33;

// Used by a whole warp, which also fetches weights: nothing here waits.
template <int pairs, bool few>
class RowFeed {
 public:
  static constexpr unsigned slots = SharedPlaces<pairs>::row_slots;

  __device__ RowFeed(const Params& p, int warpgroup) : p_(p), warpgroup_(warpgroup) {}

  // Records of which nothing is left.
  [[nodiscard]] __device__ unsigned passed() const { return reader_.passed(); }

  // Asks for segments of records before number `limit`, all of which have been written, until there is no
  // slot. The intermediate may not be there yet: who reads the slot sees that.
  // False where it is worth another look soon, though nobody has made room.
  __device__ bool advance(unsigned limit) {
    while (passed() != limit) {
      const Record& r = reader_.peek();
      if (segment_ == end_) {
        const Share<few> share(p_.gemm[r.kind], r, warpgroup_);
        if (!share.any()) {
          reader_.pass();
          continue;
        }
        segment_ = share.begin;
        end_ = share.end;
      }
      std::uint64_t* const empty = SharedHead::rows_empty(warpgroup_) + asked_ % slots;
      if (!barrier_test(empty, (asked_ / slots + 1) & 1)) return true;
      if (r.stage() == 0 && !reader_.has_details()) return false;
      ask(r, segment_);
      ++asked_;
      if (++segment_ == end_) reader_.pass();
    }
    return true;
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ void ask(const Record& r, int segment) {
    std::byte* const to = Shared<pairs>::rows(warpgroup_, asked_);
    std::uint64_t* const full = SharedHead::rows_full(warpgroup_) + asked_ % slots;
    RowsAre are{r.count, 0, nullptr};
    if (r.stage() == 0)
      ask_tokens(r, segment, to);
    else
      ask_intermediate(r, segment, to, are);
    barrier_arrive_copied(full);
    if (lane() == 0) {
      *Shared<pairs>::rows_are(to) = are;
      barrier_arrive(full);
    }
  }

  // Zeros beyond the tokens and beyond K.
  __device__ void ask_tokens(const Record& r, int segment, std::byte* to) {
    const int k = p_.gemm[0].k;
    const int first = segment * segment_values;
#pragma unroll
    for (int j = 0; j < pairs; ++j) {  // 16 lanes a token, 32 codes each
      const int token = lane() / 16 + 2 * j;
      const int at = lane() % 16 * 16;
      const bool any = token < r.count && first + 2 * at < k;
      const std::int64_t from =
          any ? static_cast<std::int64_t>(r.tokens[token]) * (k / 2) + first / 2 + at : 0;
      copy_16(to + token * row_bytes + at, p_.a + from, any);
    }
    if (lane() < 16 * pairs) {  // 8 lanes a token, 4 scales each
      const int token = lane() / 8;
      const int at = lane() % 8 * 4;
      const bool any = token < r.count && first + 16 * at < k;
      const std::int64_t from =
          any ? static_cast<std::int64_t>(r.tokens[token]) * (k / 16) + first / 16 + at : 0;
      copy_4(to + token * row_bytes + row_code_bytes + at, p_.a_sf + from, any);
    }
  }

  // A lane a block; what is beyond the tokens and beyond K is not looked at.
  __device__ void ask_intermediate(const Record& r, int segment, std::byte* to, RowsAre& are) {
    const int blocks = p_.gemm[1].k / 16;
    const int first = segment * numeric::blocks_per_segment;
    are.blocks = min(blocks - first, numeric::blocks_per_segment);
    are.first = p_.h + static_cast<std::int64_t>(r.first_row) * blocks + first;
#pragma unroll
    for (int token = 0; token < 2 * pairs; ++token)
      if (token < r.count && lane() < are.blocks)
        copy_16(to + token * most_row_bytes + lane() * block_bytes, are.first + token * blocks + lane(),
                true);
  }

  const Params& p_;
  int warpgroup_;
  RecordReader reader_;
  int segment_ = 0;     // of the record, the next to ask for
  int end_ = 0;         // of the record's segments; none of them is left where they are the same
  unsigned asked_ = 0;  // segments, in all
};

}  // namespace kerf::op::sm90::w4a4
