// Digests by which damage to written tensors is found: XXH3, 128 bits. They tell accidents from sound bytes;
// they are no defence against somebody who wants to be believed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kerf/base/function_ref.h"
#include "kerf/base/threads.h"
#include "kerf/tensor/source.h"
#include "kerf/tensor/view.h"

#pragma GCC visibility push(default)
namespace kerf::checkpoint {

using Digest = std::array<std::byte, 16>;  // in XXH3's canonical order: the same on every machine

// XXH3-128 of these bytes.
Digest digest_of(std::span<const std::byte> bytes);
// The same of bytes that are read, a MiB at a time. Errors: the reader's.
Digest digest_of(const tensor::Source& source);
// 32 hexadecimal digits.
std::string text_of(const Digest& digest);

// A tensor is digested in pieces, so that several workers can, and so that whoever reads some of its experts
// need not read the others: in a tensor of three or more dimensions each index of the first one is a part of
// its own, if it has `least` bytes; a part is cut every `most` bytes. The tensor's digest is that of its
// pieces' digests in a row.
class Pieces {
 public:
  static constexpr std::int64_t most = std::int64_t{1} << 20;  // bytes
  static constexpr std::int64_t least = 64;                    // bytes

  // Of a tensor of these; Error{unsupported} where its bytes cannot be counted.
  Pieces(tensor::Dtype dtype, const tensor::Shape& shape);

  // Parts, bytes of each, pieces of each, and pieces in all.
  [[nodiscard]] std::int64_t parts() const { return parts_; }
  [[nodiscard]] std::int64_t part_bytes() const { return part_bytes_; }
  [[nodiscard]] std::int64_t per_part() const { return per_part_; }
  [[nodiscard]] std::int64_t count() const { return parts_ * per_part_; }
  // Piece i of [0, count()): where it begins in the tensor, and its length, in bytes.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t bytes = 0;
  };
  [[nodiscard]] Range range(std::int64_t i) const;

 private:
  std::int64_t parts_ = 0;
  std::int64_t part_bytes_ = 0;
  std::int64_t per_part_ = 0;
};

// The digest of a whole tensor whose bytes are at hand, all that dtype and shape ask for.
Digest digest_of(const tensor::TensorView& view, const Workers& workers);
// That of a tensor whose bytes are read as they are needed, by several workers at once: read(begin, to) fills
// `to` with the tensor's bytes from `begin` on. What it throws is thrown here.
Digest digest_of(const Pieces& pieces, const Workers& workers,
                 FunctionRef<void(std::int64_t begin, std::span<std::byte> to)> read);
// The same of a tensor U8 [bytes]; and of pieces whose digests are known, in a row.
Digest digest_of(const tensor::Source& source, const Workers& workers);
Digest digest_of(std::span<const Digest> pieces);

}  // namespace kerf::checkpoint
#pragma GCC visibility pop
