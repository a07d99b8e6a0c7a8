// What the three bodies share: how a step is cut into tasks, and how the workspace is laid out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kerf/base/format.h"
#include "kerf/op/cpu/groups.h"
#include "kerf/op/cpu/kernels.h"
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
  Space space;

  Step(const RoutedExperts& bound, const Tokens& tokens, const routing::MetadataShape& shape,
       const routing::Metadata& metadata, Tactic tactic, std::span<std::byte> workspace, std::size_t rows)
      : pass(pass_rows(tactic)) {
    internal::check_body(bound, tokens, shape, metadata, rows);
    Carver carver(workspace);
    const auto all_groups = carver.take<Group>(shape.max_tiles());
    const auto all_entries = carver.take<Entry>(shape.routes());
    space.carve(carver, shape, bound.shape());
    groups = all_groups.first(gather(shape, metadata, all_groups, all_entries));
    entries = all_entries;
  }
  [[nodiscard]] const Entry& entry(std::int32_t i) const { return entries[static_cast<std::size_t>(i)]; }
};

// Splits the rows of one group into passes: visit(first entry, rows).
template <typename Visit>
void for_each_pass(const Group& group, int rows, Visit visit) {
  for (std::int32_t done = 0; done < group.count; done += rows)
    visit(group.first + done, std::min(rows, group.count - done));
}

// Runs task(group, tile) for every group and every one of `tiles_each` 128-row tiles.
template <typename Task>
void for_each_tile(const Workers& workers, std::span<const Group> groups, std::int64_t tiles_each,
                   Task task) {
  workers.for_each(groups.size() * static_cast<std::size_t>(tiles_each), [&](std::size_t i, int) {
    task(groups[i / static_cast<std::size_t>(tiles_each)],
         static_cast<std::int64_t>(i % static_cast<std::size_t>(tiles_each)));
  });
}

// Writes a w2 tile's dots (rows in converted order) to a row of H bf16 values, at g2_alpha times the dot.
void write_row(const float* dots, float scale, std::int64_t tile, std::uint16_t* row);
// The dots themselves, to a row of H f32 values.
void write_sums(const float* dots, std::int64_t tile, float* row);

}  // namespace kerf::op::cpu
