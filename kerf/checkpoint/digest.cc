#include "kerf/checkpoint/digest.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace kerf::checkpoint {

namespace {

Digest canonical(XXH128_hash_t hash) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  Digest out;
  static_assert(sizeof(bytes.digest) == sizeof(out));
  std::memcpy(out.data(), bytes.digest, sizeof(out));
  return out;
}

}  // namespace

Digest digest_of(std::span<const std::byte> bytes) {
  return canonical(XXH3_128bits(bytes.data(), bytes.size()));
}

Digest digest_of(const tensor::Source& source) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(source.bytes(), Pieces::most)));
  for (std::int64_t at = 0; at < source.bytes();) {
    const std::span<std::byte> part =
        std::span(piece).first(static_cast<std::size_t>(std::min(source.bytes() - at, Pieces::most)));
    source.read(at, part);
    XXH3_128bits_update(&state, part.data(), part.size());
    at += std::ssize(part);
  }
  return canonical(XXH3_128bits_digest(&state));
}

std::string text_of(const Digest& digest) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  for (const std::byte b : digest) {
    out += digits[std::to_integer<std::size_t>(b >> 4)];
    out += digits[std::to_integer<std::size_t>(b & std::byte{15})];
  }
  return out;
}

Pieces::Pieces(tensor::Dtype dtype, const tensor::Shape& shape) {
  const std::int64_t bytes = tensor::bytes_of(dtype, shape);
  if (bytes == 0) return;
  parts_ = 1;
  if (shape.rank() >= 3 && bytes % shape[0] == 0 && bytes / shape[0] >= least) parts_ = shape[0];
  part_bytes_ = bytes / parts_;
  per_part_ = (part_bytes_ + most - 1) / most;
}

Pieces::Range Pieces::range(std::int64_t i) const {
  const std::int64_t within = i % per_part_ * most;
  return {i / per_part_ * part_bytes_ + within, std::min(most, part_bytes_ - within)};
}

Digest digest_of(const tensor::TensorView& view, const Workers& workers) {
  const Pieces pieces(view.dtype, view.shape);
  std::vector<Digest> digests(static_cast<std::size_t>(pieces.count()));
  const auto one = [&](std::size_t i, int) {
    const Pieces::Range range = pieces.range(static_cast<std::int64_t>(i));
    digests[i] = digest_of(
        view.bytes.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.bytes)));
  };
  if (digests.size() == 1)
    one(0, 0);
  else
    workers.for_each(digests.size(), one);
  return digest_of(digests);
}

Digest digest_of(const Pieces& pieces, const Workers& workers,
                 FunctionRef<void(std::int64_t begin, std::span<std::byte> to)> read) {
  std::vector<Digest> digests(static_cast<std::size_t>(pieces.count()));
  std::vector<std::vector<std::byte>> buffers(static_cast<std::size_t>(workers.size()));
  workers.for_each(digests.size(), [&](std::size_t i, int worker) {
    const Pieces::Range range = pieces.range(static_cast<std::int64_t>(i));
    std::vector<std::byte>& buffer = buffers[static_cast<std::size_t>(worker)];
    buffer.resize(static_cast<std::size_t>(range.bytes));
    read(range.begin, buffer);
    digests[i] = digest_of(std::span<const std::byte>(buffer));
  });
  return digest_of(std::span<const Digest>(digests));
}

Digest digest_of(const tensor::Source& source, const Workers& workers) {
  return digest_of(Pieces(tensor::Dtype::u8, {source.bytes()}), workers,
                   [&](std::int64_t begin, std::span<std::byte> to) { source.read(begin, to); });
}

Digest digest_of(std::span<const Digest> pieces) { return digest_of(std::as_bytes(pieces)); }

}  // namespace kerf::checkpoint
