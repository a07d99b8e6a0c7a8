// What the bodies share: how a step is cut into tasks, and how the workspace is laid out.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kerf/base/format.h"
#include "kerf/op/cpu/groups.h"
#include "kerf/op/cpu/kernels.h"
#include "kerf/op/cpu/schedule.h"
#include "kerf/op/cpu/tactics.h"
#include "kerf/op/internal/bound.h"

namespace kerf::op::cpu {

// Hands out typed, 64-byte aligned pieces of a span. Run over an empty span it only counts.
class Carver {
 public:
  Carver() = default;
  explicit Carver(std::span<std::byte> space) : next_(space.data()), left_(space.size()), real_(true) {}

  template <typename T>
  std::span<T> take(std::int64_t count) {
    const auto bytes = (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
    bytes_ += bytes;
    if (!real_) return {};
    void* at = next_;
    std::size_t left = left_;
    if (std::align(64, bytes, at, left) == nullptr)
      fail(ErrorKind::usage, "the op's workspace is too small: {} bytes are left where {} are wanted", left_,
           bytes);
    next_ = static_cast<std::byte*>(at) + bytes;
    left_ = left - bytes;
    return {static_cast<T*>(at), static_cast<std::size_t>(count)};
  }
  // Bytes a span needs for what was taken, wherever it starts.
  [[nodiscard]] std::size_t bytes() const { return bytes_ + 64; }

 private:
  std::byte* next_ = nullptr;
  std::size_t left_ = 0;
  std::size_t bytes_ = 0;
  bool real_ = false;
};

// A body's workspace starts with what every body needs; its Space takes the rest: void carve(Carver&, shape,
// experts).
template <typename Space>
std::size_t space_bytes(const routing::MetadataShape& shape, const layout::ExpertsShape& experts) {
  Carver counter;
  counter.take<Group>(shape.max_tiles());
  counter.take<std::int32_t>(shape.max_tiles());
  counter.take<Entry>(shape.routes());
  Space().carve(counter, shape, experts);
  return counter.bytes();
}

// A checked call, ready to run: groups (a routing tile each) and entries are the live rows, space the body's
// own part of the workspace.
template <typename Space>
struct Step {
  int pass = 1;  // token rows a pass
  std::span<const Group> groups;
  std::span<const Entry> entries;
  std::span<std::int32_t> done;  // a counter for each group
  Space space;

  Step(const RoutedExperts& bound, const Tokens& tokens, const routing::MetadataShape& shape,
       const routing::Metadata& metadata, Tactic tactic, std::span<std::byte> workspace, std::size_t rows)
      : pass(pass_rows(tactic)) {
    internal::check_body(bound, tokens, shape, metadata, rows);
    Carver carver(workspace);
    const auto all_groups = carver.take<Group>(shape.max_tiles());
    done = carver.take<std::int32_t>(shape.max_tiles());
    const auto all_entries = carver.take<Entry>(shape.routes());
    space.carve(carver, shape, bound.shape());
    groups = all_groups.first(gather(shape, metadata, all_groups, all_entries));
    entries = all_entries;
  }
  [[nodiscard]] const Entry& entry(std::int32_t i) const { return entries[static_cast<std::size_t>(i)]; }
};

// Runs all pieces of a step over experts of a shape: expand(token); first and second(group, index of the
// tile, tile, ahead), ahead being the tile that this thread takes next. tile_of(piece) gives the weights of a
// piece of either GEMM.
template <typename Space, typename Expand, typename TileOf, typename First, typename Second>
void run_pieces(const Step<Space>& step, std::int64_t tokens, const layout::ExpertsShape& shape,
                const Workers& workers, Expand expand, TileOf tile_of, First first, Second second) {
  Schedule schedule(tokens, step.groups.size(), shape.intermediate / 64, shape.hidden / tile_rows, step.done);
  schedule.run(workers, [&](const Piece& piece, const Piece& next) noexcept {
    if (piece.stage == Stage::expand) {
      expand(piece.index);
      return;
    }
    const auto tile = tile_of(piece);
    const auto ahead = next.stage == Stage::expand ? tile : tile_of(next);
    const Group& group = step.groups[piece.group];
    if (piece.stage == Stage::first)
      first(group, piece.index, tile, ahead);
    else
      second(group, piece.index, tile, ahead);
  });
}

// Splits the rows of one group into passes: visit(first entry, rows).
template <typename Visit>
void for_each_pass(const Group& group, int rows, Visit visit) {
  for (std::int32_t done = 0; done < group.count; done += rows)
    visit(group.first + done, std::min(rows, group.count - done));
}

// Dots of the rows of one group, pass by pass, with one weight tile: dots_of(rows, count, last, dots) for
// every pass, last being whether it is the final one; then finish(entry, its 128 dots) for every row of it.
template <typename X, typename RowOf, typename DotsOf, typename Finish>
void for_each_row_of(const Group& group, int rows, RowOf row_of, DotsOf dots_of, Finish finish) {
  for_each_pass(group, rows, [&](std::int32_t first, int count) {
    std::array<const X*, most_rows_a_pass> in{};
    for (int t = 0; t < count; ++t) in[static_cast<std::size_t>(t)] = row_of(first + t);
    alignas(64) std::array<float, std::size_t{most_rows_a_pass} * tile_rows> dots;
    dots_of(in.data(), count, first + count == group.first + group.count, dots.data());
    for (int t = 0; t < count; ++t) finish(first + t, dots.data() + t * tile_rows);
  });
}

// Writes a w2 tile's dots (rows in converted order) to a row of H f32 values.
void write_sums(const float* dots, std::int64_t tile, float* row);

}  // namespace kerf::op::cpu
