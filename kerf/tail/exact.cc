// The exact tail. Three things have to be done to a route's row: its slices are added and rounded (finished);
// it is brought to the rank that ends its token; it is normed, weighted and added to the token's other rows.
// Which rank does what follows from the routes' experts, so all ranks know it without being told.
#include <algorithm>

#include "kerf/base/format.h"
#include "kerf/numeric/bf16.h"
#include "kerf/numeric/segment_tree.h"
#include "kerf/tail/internal/checks.h"

namespace kerf::tail {

namespace {

using internal::bf16_bytes;
using internal::Call;
using internal::row_at;
using internal::rows_at;

// Who has, finishes and ends what. A rank is (row, member): `row` says which experts, `member` which slice.
struct Ways {
  std::span<const std::int32_t> ids;  // [T, K]
  std::int64_t top_k;
  std::int64_t experts;
  std::int64_t slices;  // members of a row
  std::int64_t rows;    // rows of ranks
  std::int64_t row;     // this rank's
  std::int64_t member;  // this rank's
  std::int64_t share;   // tokens that a rank owns; 0: fewer tokens than ranks, every rank ends all

  [[nodiscard]] std::int64_t routes() const { return static_cast<std::int64_t>(ids.size()); }
  // The row of ranks that holds route i's expert; -1: the route goes nowhere, and nobody touches it.
  [[nodiscard]] std::int64_t row_of(std::int64_t i) const {
    const std::int64_t id = ids[static_cast<std::size_t>(i)];
    return id < 0 || id >= experts ? -1 : id / (experts / rows);
  }
  [[nodiscard]] std::int64_t owner(std::int64_t i) const { return i / top_k / share; }
  // The member of that row that finishes it: the one in the owner's column, so that the rest of the way is
  // along a column; without owners, each in turn.
  [[nodiscard]] std::int64_t member_of(std::int64_t i) const {
    return share > 0 ? owner(i) % slices : i % slices;
  }
  [[nodiscard]] std::int64_t finisher(std::int64_t i) const { return row_of(i) * slices + member_of(i); }
  // Routes that this rank ends.
  [[nodiscard]] std::int64_t first() const {
    return share > 0 ? std::min((row * slices + member) * share * top_k, routes()) : 0;
  }
  [[nodiscard]] std::int64_t end() const {
    return share > 0 ? std::min(first() + share * top_k, routes()) : routes();
  }
};

Ways ways_of(const Call& call, const Where& where) {
  const std::int64_t slices = where.row != nullptr ? where.row->size() : 1;
  const std::int64_t rows = where.column != nullptr ? where.column->size() : 1;
  const std::int64_t member = where.row != nullptr ? where.row->rank() : 0;
  const std::int64_t row = where.column != nullptr ? where.column->rank() : 0;
  const std::int64_t ranks = where.group.size();
  if (rows * slices != ranks || row * slices + member != where.group.rank())
    fail(ErrorKind::bug, "exact tail: rank {} of {} is member {} of {} in row {} of {}", where.group.rank(),
         ranks, member, slices, row, rows);
  if (where.experts < 1 || where.experts % rows != 0)
    fail(ErrorKind::bug, "exact tail: {} experts over {} rows of ranks", where.experts, rows);
  if (slices > 1) internal::check_size("g2_alphas", where.g2_alphas.size(), where.experts / rows);
  internal::check_size("ids", call.rows.ids.size(), call.rows.tokens * call.rows.top_k);
  const std::int64_t tokens = call.rows.tokens;
  return {call.rows.ids, call.rows.top_k,
          where.experts, slices,
          rows,          row,
          member,        tokens < ranks ? 0 : internal::round_up(tokens, ranks) / ranks};
}

// A list of routes, in scratch.
struct List {
  std::span<std::int32_t> room;  // [T * K]
  std::int64_t size = 0;

  void add(std::int64_t i) { room[static_cast<std::size_t>(size++)] = static_cast<std::int32_t>(i); }
  [[nodiscard]] std::int64_t operator[](std::int64_t n) const { return room[static_cast<std::size_t>(n)]; }
};

// What is sent to and received from each rank: runs of whole rows, one after the other.
class Exchange {
 public:
  explicit Exchange(const Scratch& scratch) : sent_(scratch.blocks->sent), here_(scratch.blocks->received) {}

  void send(std::int64_t to, std::span<const std::byte> block) {
    sent_[static_cast<std::size_t>(to)] = {block.data(), 1, 0, 1, 0, static_cast<std::int64_t>(block.size())};
  }
  void receive(std::int64_t from, std::span<std::byte> block) {
    here_[static_cast<std::size_t>(from)] = block;
  }
  void run(comm::Group& group, std::string_view what) const {
    const auto ranks = static_cast<std::size_t>(group.size());
    group.all_to_all(std::span(sent_).first(ranks), std::span(here_).first(ranks), what);
  }

 private:
  std::vector<tensor::StridedBytes>& sent_;
  std::vector<std::span<std::byte>>& here_;
};

std::int64_t held_row(const Call& call, std::int64_t i) {
  const std::int64_t row = call.rows.map[static_cast<std::size_t>(i)];
  if (row < 0) fail(ErrorKind::bug, "exact tail: route {} should be here and has no row", i);
  return row;
}

// Row `first` of slices [first, first + count), each [n, H] at `stride` values from the last, becomes the sum
// of all, by the tree's rule.
void add_slices(float* row, std::int64_t stride, std::int64_t first, std::int64_t count, std::size_t hidden) {
  if (count == 1) return;
  const std::int64_t left = numeric::terms_to_the_left(count);
  add_slices(row, stride, first, left, hidden);
  add_slices(row, stride, first + left, count - left, hidden);
  float* const a = row + first * stride;
  const float* const b = row + (first + left) * stride;
  for (std::size_t h = 0; h < hidden; ++h) a[h] = a[h] + b[h];
}

// Sliced experts: the sums of this row's routes go to the members that finish them, and come from all members
// for the routes that this rank finishes. `list`: in, room; out, those routes. Rows in its order.
void finish_slices(const Call& call, const Where& where, const Ways& ways, List& list,
                   std::span<std::uint16_t> finished) {
  const std::int64_t hidden = call.rows.hidden;
  const Scratch& scratch = call.scratch;
  Exchange exchange(scratch);
  const auto sent = scratch.sums_sent.as<float>();
  for (std::int64_t to = 0; to < ways.slices; ++to) {
    const std::int64_t begin = list.size;
    for (std::int64_t i = 0; i < ways.routes(); ++i)
      if (ways.row_of(i) == ways.row && ways.member_of(i) == to) list.add(i);
    exchange.send(to, std::as_bytes(rows_at(sent, begin, list.size - begin, hidden)));
  }
  call.workers.for_each(static_cast<std::size_t>(list.size), [&](std::size_t task, int /*worker*/) {
    const auto n = static_cast<std::int64_t>(task);
    const auto source = row_at(call.rows.sums, held_row(call, list[n]), hidden);
    std::copy(source.begin(), source.end(), row_at(sent, n, hidden).begin());
  });

  list.size = 0;
  for (std::int64_t i = 0; i < ways.routes(); ++i)
    if (ways.row_of(i) == ways.row && ways.member_of(i) == ways.member) list.add(i);
  const auto here = rows_at(scratch.sums_here.as<float>(), 0, ways.slices * list.size, hidden);
  for (std::int64_t from = 0; from < ways.slices; ++from)
    exchange.receive(from, std::as_writable_bytes(rows_at(here, from * list.size, list.size, hidden)));
  exchange.run(*where.row, "exact tail: sums of slices");

  const std::int64_t stride = list.size * hidden;
  call.workers.for_each(static_cast<std::size_t>(list.size), [&](std::size_t task, int /*worker*/) {
    const auto n = static_cast<std::int64_t>(task);
    const auto sum = row_at(here, n, hidden);
    add_slices(sum.data(), stride, 0, ways.slices, sum.size());
    const std::int64_t expert = call.rows.ids[static_cast<std::size_t>(list[n])] % (ways.experts / ways.rows);
    const float scale = where.g2_alphas[static_cast<std::size_t>(expert)];
    std::transform(sum.begin(), sum.end(), row_at(finished, n, hidden).begin(),
                   [scale](float v) { return numeric::f32_to_bf16(scale * v); });
  });
}

// Whole experts: the op's rows are finished, and only put in the list's order.
void take_finished(const Call& call, const Ways& ways, List& list, std::span<std::uint16_t> finished) {
  for (std::int64_t i = 0; i < ways.routes(); ++i)
    if (ways.row_of(i) == ways.row) list.add(i);
  call.workers.for_each(static_cast<std::size_t>(list.size), [&](std::size_t task, int /*worker*/) {
    const auto n = static_cast<std::int64_t>(task);
    const auto source = row_at(call.rows.rows, held_row(call, list[n]), call.rows.hidden);
    std::copy(source.begin(), source.end(), row_at(finished, n, call.rows.hidden).begin());
  });
}

// Brings finished rows along the column to the owners, or to all ranks where routes have none. places[i]:
// where route i's row is afterwards in the span that is returned; set for the routes that this rank ends.
std::span<const std::uint16_t> bring(const Call& call, const Where& where, const Ways& ways, const List& list,
                                     std::span<const std::uint16_t> finished,
                                     std::span<std::int32_t> places) {
  const std::int64_t hidden = call.rows.hidden;
  const bool to_owners = ways.share > 0;
  if (to_owners && ways.rows == 1) {  // the owner's column is the owner
    for (std::int64_t n = 0; n < list.size; ++n)
      places[static_cast<std::size_t>(list[n])] = static_cast<std::int32_t>(n);
    return finished;
  }
  comm::Group& group = to_owners ? *where.column : where.group;
  Exchange exchange(call.scratch);
  std::int64_t begin = 0;
  for (std::int64_t to = 0; to < group.size(); ++to) {
    std::int64_t end = to_owners ? begin : list.size;
    while (to_owners && end < list.size && ways.owner(list[end]) / ways.slices == to) ++end;
    exchange.send(to, std::as_bytes(rows_at(finished, begin, end - begin, hidden)));
    if (to_owners) begin = end;
  }
  std::int32_t placed = 0;
  const auto owned = call.scratch.owned.as<std::uint16_t>();
  for (std::int64_t from = 0; from < group.size(); ++from) {
    const std::int32_t before = placed;
    for (std::int64_t i = ways.first(); i < ways.end(); ++i)
      if (ways.row_of(i) >= 0 && (to_owners ? ways.row_of(i) : ways.finisher(i)) == from)
        places[static_cast<std::size_t>(i)] = placed++;
    exchange.receive(from, std::as_writable_bytes(rows_at(owned, before, placed - before, hidden)));
  }
  exchange.run(group, "exact tail: finished rows");
  return owned;
}

void check_rooms(const Call& call, const Ways& ways, const comm::Group& group) {
  const Scratch& scratch = call.scratch;
  const std::int64_t ranks = group.size();
  const std::int64_t routes = ways.routes();
  const std::int64_t row = call.rows.hidden * bf16_bytes;
  const std::int64_t padded = internal::round_up(call.rows.tokens, ranks) * call.rows.top_k;
  internal::check_room("rows", scratch.rows, routes * row);
  internal::check_room("reduced", scratch.reduced, ways.share * row);
  internal::check_room("owned", scratch.owned, (ways.share > 0 ? ways.share * ways.top_k : routes) * row);
  internal::check_room("routes", scratch.routes, 2 * routes * 4);
  if (scratch.blocks == nullptr || static_cast<std::int64_t>(scratch.blocks->sent.size()) < ranks)
    fail(ErrorKind::bug, "tail: scratch made for fast tails, or for fewer than {} ranks", ranks);
  if (ways.share > 0) internal::check_gather(call, ways.share, group);
  if (ways.slices == 1) return;
  internal::check_room("sums_sent", scratch.sums_sent, routes * call.rows.hidden * 4);
  internal::check_room("sums_here", scratch.sums_here, padded * call.rows.hidden * 4);
}

}  // namespace

void exact_tail(const op::Unfinalized& rows, const Where& where, const std::optional<RouteNorm>& norm,
                const Workers& workers, const Scratch& scratch, std::span<std::uint16_t> out) {
  const Call call{rows, norm, workers, scratch, out};
  const bool sliced = where.row != nullptr && where.row->size() > 1;
  if (sliced ? rows.sums.empty() : rows.rows.empty())
    fail(ErrorKind::bug, "exact tail: {} experts without {} rows", sliced ? "sliced" : "whole",
         sliced ? "f32" : "bf16");
  internal::check(call, sliced ? rows.sums.size() : rows.rows.size());
  const Ways ways = ways_of(call, where);
  if (rows.tokens == 0) return;
  if (where.group.size() == 1) return finalize(rows, norm, workers, scratch, out);
  check_rooms(call, ways, where.group);

  const auto routes = static_cast<std::size_t>(ways.routes());
  const auto lists = scratch.routes.as<std::int32_t>();
  List list{lists.first(routes)};
  const auto places = lists.subspan(routes, routes);
  const auto finished = scratch.rows.as<std::uint16_t>();  // at most T * K rows
  if (sliced)
    finish_slices(call, where, ways, list, finished);
  else
    take_finished(call, ways, list, finished);
  const auto brought = bring(call, where, ways, list, finished, places);
  const auto row_of = [&](std::int64_t i) -> std::span<const std::uint16_t> {
    if (ways.row_of(i) < 0) return {};
    return row_at(brought, places[static_cast<std::size_t>(i)], rows.hidden);
  };
  if (ways.share == 0) return internal::end_tokens(call, 0, rows.tokens, out, row_of);
  const auto ended = rows_at(scratch.reduced.as<std::uint16_t>(), 0, ways.share, rows.hidden);
  internal::end_tokens(call, ways.share * where.group.rank(), ways.share, ended, row_of);
  internal::gather_tokens(call, ended, ways.share, where.group, "exact tail: tokens");
}

}  // namespace kerf::tail
