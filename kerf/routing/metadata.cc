#include "kerf/routing/metadata.h"

#include <array>
#include <cstddef>
#include <limits>

#include "kerf/base/format.h"

namespace kerf::routing {
namespace {

constexpr std::int64_t alignment_words = 16;  // 64 bytes: what Memory aligns to, and a cache line

// Element counts of the nine tensors, in the order of Metadata.
using Sizes = std::array<std::int64_t, 9>;

void check_shape(const MetadataShape& s) {
  const bool sound = s.tokens >= 0 && s.top_k >= 0 && s.experts >= 1 && s.offset >= 0 && s.local >= 0 &&
                     s.offset <= s.experts - s.local && s.tile >= 1;
  if (!sound) {
    fail(ErrorKind::bug,
         "routing metadata of {} tokens, top {}, {} experts of which [{}, {} + {}) are here, tile {}: makes "
         "no sense",
         s.tokens, s.top_k, s.experts, s.offset, s.offset, s.local, s.tile);
  }
  // Rows are 32-bit words. Each factor is bounded before it is multiplied, so that nothing wraps on the way.
  constexpr std::int64_t limit = std::numeric_limits<std::int32_t>::max();
  const bool fits = s.experts <= limit && s.tile <= limit && s.tokens <= limit && s.top_k <= limit &&
                    s.routes() < limit && s.max_tiles() <= (limit - 1) / s.tile;
  if (!fits) {
    fail(ErrorKind::unsupported,
         "routing metadata of {} tokens, top {}, {} experts, tile {}: the padded rows do not fit 32 bits",
         s.tokens, s.top_k, s.experts, s.tile);
  }
}

Sizes sizes_of(const MetadataShape& s) {
  return {
      1,         s.routes(),    s.max_padded() + 1, s.routes(), std::max<std::int64_t>(2 * s.experts, 512),
      s.experts, s.max_tiles(), s.max_tiles(),      1};
}

constexpr std::int64_t aligned(std::int64_t words) {
  return (words + alignment_words - 1) / alignment_words * alignment_words;
}

}  // namespace

void check_metadata(const MetadataShape& shape, const Metadata& m) {
  check_shape(shape);
  const Sizes wanted = sizes_of(shape);
  const std::array<std::size_t, 9> got = {m.total_padded.size(),      m.expanded_to_permuted.size(),
                                          m.permuted_to_token.size(), m.expert_weights.size(),
                                          m.histogram.size(),         m.tokens_per_expert.size(),
                                          m.tile_to_expert.size(),    m.tile_to_limit.size(),
                                          m.live_tiles.size()};
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (got[i] < static_cast<std::size_t>(wanted[i])) {
      fail(ErrorKind::bug, "routing metadata tensor {} has {} elements where {} are wanted", i, got[i],
           wanted[i]);
    }
  }
}

std::int64_t metadata_words(const MetadataShape& shape) {
  check_shape(shape);
  std::int64_t words = 0;
  for (const std::int64_t size : sizes_of(shape)) words += aligned(size);
  return words;
}

MetadataBuffer::MetadataBuffer(tensor::Memory& memory, std::int64_t words)
    : words_(memory, tensor::Dtype::i32, {words}) {
  std::ranges::fill(words_.as<std::int32_t>(), -1);
}

std::int64_t MetadataBuffer::words() const {
  return static_cast<std::int64_t>(words_.bytes().size() / sizeof(std::int32_t));
}

Metadata MetadataBuffer::view(const MetadataShape& shape) const {
  return metadata_in(words_.as<std::int32_t>(), shape);
}

Metadata metadata_in(std::span<std::int32_t> words, const MetadataShape& shape) {
  const std::int64_t wanted = metadata_words(shape);
  if (wanted > std::ssize(words)) {
    fail(ErrorKind::bug,
         "routing metadata of {} tokens, top {}, {} experts, tile {} takes {} words; the buffer has {}",
         shape.tokens, shape.top_k, shape.experts, shape.tile, wanted, words.size());
  }
  const Sizes sizes = sizes_of(shape);
  std::array<std::size_t, 9> start{};
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    start[i] = start[i - 1] + static_cast<std::size_t>(aligned(sizes[i - 1]));
  }
  const auto ints = [&](std::size_t i) {
    return words.subspan(start[i], static_cast<std::size_t>(sizes[i]));
  };
  return {
      .total_padded = ints(0),
      .expanded_to_permuted = ints(1),
      .permuted_to_token = ints(2),
      .expert_weights = {reinterpret_cast<float*>(ints(3).data()), ints(3).size()},
      .histogram = ints(4),
      .tokens_per_expert = ints(5),
      .tile_to_expert = ints(6),
      .tile_to_limit = ints(7),
      .live_tiles = ints(8),
  };
}

Verdict check_ids(std::span<const std::int32_t> ids, std::int64_t top_k, std::int64_t experts) {
  if (ids.empty()) return {};
  if (top_k < 1 || static_cast<std::int64_t>(ids.size()) % top_k != 0) {
    return because(ErrorKind::usage, "{} expert ids do not make rows of {}", ids.size(), top_k);
  }
  for (std::size_t route = 0; route < ids.size(); ++route) {
    const std::int32_t id = ids[route];
    if (id == -1 || (id >= 0 && id < experts)) continue;
    const auto r = static_cast<std::int64_t>(route);
    return because(ErrorKind::usage,
                   "token {}, slot {}: expert id {} is neither in [0, {}) nor -1 (not routed)", r / top_k,
                   r % top_k, id, experts);
  }
  return {};
}

void write_metadata(const MetadataShape& shape, std::span<const std::int32_t> ids,
                    std::span<const float> weights, const Metadata& out) {
  check_metadata(shape, out);
  const auto routes = static_cast<std::size_t>(shape.routes());
  if (ids.size() != routes || weights.size() != routes) {
    fail(ErrorKind::bug, "{} ids and {} weights for {} tokens of {} routes", ids.size(), weights.size(),
         shape.tokens, shape.top_k);
  }
  // An id's place among the experts here, or one that is not below `local`: -1, ids outside [0, E) and other
  // ranks' experts alike, since offset + local <= E.
  const auto local = static_cast<std::uint64_t>(shape.local);
  const auto local_index = [&](std::int32_t id) { return static_cast<std::uint64_t>(id - shape.offset); };

  const auto counts = out.tokens_per_expert.first(static_cast<std::size_t>(shape.experts));
  std::ranges::fill(counts, 0);
  for (const std::int32_t id : ids) {
    if (local_index(id) < local) ++counts[static_cast<std::size_t>(id)];
  }

  // Tiles: experts ascending, each from the start of a tile; the histogram holds the next free row of each.
  const std::span<std::int32_t> next_row = out.histogram;
  std::int64_t tiles = 0;
  for (std::int64_t e = 0; e < shape.local; ++e) {
    const std::int64_t first_row = tiles * shape.tile;
    const std::int64_t end = first_row + counts[static_cast<std::size_t>(shape.offset + e)];
    next_row[static_cast<std::size_t>(e)] = static_cast<std::int32_t>(first_row);
    for (; tiles * shape.tile < end; ++tiles) {
      const auto tile = static_cast<std::size_t>(tiles);
      out.tile_to_expert[tile] = static_cast<std::int32_t>(e);
      out.tile_to_limit[tile] = static_cast<std::int32_t>(std::min((tiles + 1) * shape.tile, end));
    }
  }
  out.live_tiles[0] = static_cast<std::int32_t>(tiles);
  out.total_padded[0] = static_cast<std::int32_t>(tiles * shape.tile);

  // Routes in ascending order, so that rows of an expert ascend too.
  const auto top_k = static_cast<std::size_t>(shape.top_k);
  for (std::size_t token = 0, route = 0; route < ids.size(); ++token) {
    for (std::size_t k = 0; k < top_k; ++k, ++route) {
      const std::uint64_t e = local_index(ids[route]);
      if (e < local) {
        const std::int32_t row = next_row[e]++;
        out.expanded_to_permuted[route] = row;
        out.permuted_to_token[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(token);
      } else {
        out.expanded_to_permuted[route] = -1;
      }
    }
  }
  std::ranges::copy(weights, out.expert_weights.begin());
}

}  // namespace kerf::routing
