// All experts of a layer, cut into pieces by bytes.
#include <algorithm>
#include <array>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/layout/convert.h"
#include "kerf/layout/internal/piece.h"

namespace kerf::layout {

namespace {

using internal::Gemm;
using internal::Piece;

// Expert e's part of tensors of `experts` experts.
std::span<std::byte> part(std::span<std::byte> all, std::size_t e, std::size_t experts) {
  const std::size_t size = all.size() / experts;
  if (size * experts != all.size())
    fail(ErrorKind::bug, "{} bytes for {} converted experts, wanted equal parts", all.size(), experts);
  return all.subspan(e * size, size);
}
ConvertedNvfp4<std::byte> part(const ConvertedNvfp4<std::byte>& all, std::size_t e, std::size_t experts) {
  return {part(all.w13, e, experts), part(all.w13_sf, e, experts), part(all.w2, e, experts),
          part(all.w2_sf, e, experts)};
}
ConvertedBf16<std::byte> part(const ConvertedBf16<std::byte>& all, std::size_t e, std::size_t experts) {
  return {part(all.w13, e, experts), part(all.w2, e, experts)};
}
std::int64_t bytes_of(const ConvertedNvfp4<std::byte>& c) {
  return std::ssize(c.w13) + std::ssize(c.w13_sf) + std::ssize(c.w2) + std::ssize(c.w2_sf);
}
std::int64_t bytes_of(const ConvertedBf16<std::byte>& c) { return std::ssize(c.w13) + std::ssize(c.w2); }

// Rows of the finest cut: whole tiles of scales, whole groups of rows.
constexpr std::int64_t cut_of(const ConvertedNvfp4<std::byte>& /*kind*/) { return 128; }
constexpr std::int64_t cut_of(const ConvertedBf16<std::byte>& /*kind*/) { return 64; }

// How one expert is cut into pieces of about equal size: w13 has two thirds of its bytes.
struct Cuts {
  std::int64_t w13 = 1;
  std::int64_t w2 = 1;
};
// `most`: bytes of a piece, small beside a layer and large beside a task.
Cuts cuts_of(std::int64_t expert_bytes, std::int64_t experts, int workers, std::int64_t most) {
  constexpr std::int64_t least = std::int64_t{1} << 16;
  constexpr std::int64_t per_worker = 8;  // so that who is done early finds more to do
  const std::int64_t piece = std::clamp(expert_bytes * experts / (workers * per_worker), least, most);
  return {std::max<std::int64_t>(1, expert_bytes * 2 / 3 / piece),
          std::max<std::int64_t>(1, expert_bytes / 3 / piece)};
}

// Where a piece's rows lie in the matrices of one expert, in bytes.
struct Extent {
  std::int64_t first = 0;
  std::int64_t bytes = 0;
};
Extent extent_of(const Piece& piece, std::int64_t intermediate, std::int64_t row_bytes) {
  if (piece.gemm == Gemm::w2) return {piece.first * row_bytes, (piece.end - piece.first) * row_bytes};
  const std::int64_t rows = internal::half_rows(piece, intermediate);
  return {rows == 0 ? 0 : piece.first / 2 * row_bytes, rows * row_bytes};
}

// The rows of a piece, of experts in memory: as they lie there.
class InMemory {
 public:
  static constexpr std::int64_t piece_bytes = std::int64_t{1} << 20;
  explicit InMemory(int /*workers*/) {}
  static std::span<const std::byte> get(std::span<const std::byte> from, const Extent& rows, int /*worker*/) {
    return from.subspan(static_cast<std::size_t>(rows.first), static_cast<std::size_t>(rows.bytes));
  }
  static void begin(int /*worker*/) {}
};

// Of experts that are read: in the worker's buffers, one a matrix, which the next piece takes again.
class Reading {
 public:
  static constexpr std::int64_t piece_bytes = std::int64_t{1} << 18;
  explicit Reading(int workers) : buffers_(static_cast<std::size_t>(workers)) {}
  std::span<const std::byte> get(const tensor::Source& from, const Extent& rows, int worker) {
    Buffers& own = buffers_[static_cast<std::size_t>(worker)];
    std::vector<std::byte>& buffer = own.matrix.at(own.used++);
    const auto size = static_cast<std::size_t>(rows.bytes);
    if (buffer.size() < size) buffer.resize(size);
    const std::span<std::byte> to = std::span(buffer).first(size);
    from.read(rows.first, to);
    return to;
  }
  void begin(int worker) { buffers_[static_cast<std::size_t>(worker)].used = 0; }

 private:
  struct Buffers {
    std::array<std::vector<std::byte>, 4> matrix;
    std::size_t used = 0;
  };
  std::vector<Buffers> buffers_;
};

template <typename Rows, typename Expert>
LogicalNvfp4<const std::byte> rows_of(Rows& rows, const Expert& from, const Piece& piece, std::int64_t hidden,
                                      std::int64_t intermediate, int worker,
                                      const ConvertedNvfp4<std::byte>& /*kind*/) {
  const std::int64_t k = piece.gemm == Gemm::w13 ? hidden : intermediate;
  const Extent codes = extent_of(piece, intermediate, k / 2);
  const Extent scales = extent_of(piece, intermediate, k / 16);
  if (piece.gemm == Gemm::w13)
    return {rows.get(from.gate, codes, worker),
            rows.get(from.gate_sf, scales, worker),
            rows.get(from.up, codes, worker),
            rows.get(from.up_sf, scales, worker),
            {},
            {}};
  return {{}, {}, {}, {}, rows.get(from.down, codes, worker), rows.get(from.down_sf, scales, worker)};
}
template <typename Rows, typename Expert>
LogicalBf16<const std::byte> rows_of(Rows& rows, const Expert& from, const Piece& piece, std::int64_t hidden,
                                     std::int64_t intermediate, int worker,
                                     const ConvertedBf16<std::byte>& /*kind*/) {
  const Extent values = extent_of(piece, intermediate, 2 * (piece.gemm == Gemm::w13 ? hidden : intermediate));
  if (piece.gemm == Gemm::w13)
    return {rows.get(from.gate, values, worker), rows.get(from.up, values, worker), {}};
  return {{}, {}, rows.get(from.down, values, worker)};
}

template <typename Rows, typename Expert, typename Converted>
void convert_each(std::span<const Expert> from, std::int64_t hidden, std::int64_t intermediate,
                  std::int64_t width, const Converted& to, const Workers& workers) {
  const std::size_t experts = from.size();
  if (experts == 0) {
    if (bytes_of(to) != 0)
      fail(ErrorKind::bug, "converting no experts: their target has {} bytes, 0 wanted", bytes_of(to));
    return;
  }
  for (std::size_t e = 0; e < experts; ++e)
    internal::check_convert(from[e], part(to, e, experts), hidden, intermediate, width);
  const std::int64_t cut = cut_of(to);
  const Cuts cuts =
      cuts_of(bytes_of(to) / std::ssize(from), std::ssize(from), workers.size(), Rows::piece_bytes);
  const std::int64_t pieces = cuts.w13 + cuts.w2;
  Rows rows(workers.size());
  workers.for_each(experts * static_cast<std::size_t>(pieces), [&](std::size_t task, int worker) {
    const std::size_t e = task / static_cast<std::size_t>(pieces);
    const auto number = static_cast<std::int64_t>(task % static_cast<std::size_t>(pieces));
    const bool first = number < cuts.w13;
    const std::int64_t at = first ? number : number - cuts.w13;
    const std::int64_t of = first ? cuts.w13 : cuts.w2;
    const std::int64_t units = (first ? 2 * width : hidden) / cut;
    const Piece piece{first ? Gemm::w13 : Gemm::w2, units * at / of * cut, units * (at + 1) / of * cut};
    if (piece.first == piece.end) return;
    rows.begin(worker);
    const auto have = rows_of(rows, from[e], piece, hidden, intermediate, worker, to);
    internal::convert_piece(have, part(to, e, experts), hidden, intermediate, width, piece);
  });
}

}  // namespace

void convert_all(std::span<const LogicalNvfp4<const std::byte>> from, std::int64_t hidden,
                 std::int64_t intermediate, std::int64_t width, const ConvertedNvfp4<std::byte>& to,
                 const Workers& workers) {
  convert_each<InMemory>(from, hidden, intermediate, width, to, workers);
}

void convert_all(std::span<const LogicalBf16<const std::byte>> from, std::int64_t hidden,
                 std::int64_t intermediate, std::int64_t width, const ConvertedBf16<std::byte>& to,
                 const Workers& workers) {
  convert_each<InMemory>(from, hidden, intermediate, width, to, workers);
}

void convert_all(std::span<const StoredNvfp4> from, std::int64_t hidden, std::int64_t intermediate,
                 std::int64_t width, const ConvertedNvfp4<std::byte>& to, const Workers& workers) {
  convert_each<Reading>(from, hidden, intermediate, width, to, workers);
}

void convert_all(std::span<const StoredBf16> from, std::int64_t hidden, std::int64_t intermediate,
                 std::int64_t width, const ConvertedBf16<std::byte>& to, const Workers& workers) {
  convert_each<Reading>(from, hidden, intermediate, width, to, workers);
}

}  // namespace kerf::layout
