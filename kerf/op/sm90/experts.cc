// The host's way into the device's op.
#include "kerf/op/sm90/experts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/cuda/check.h"
#include "kerf/op/sm90/tactics.h"

namespace kerf::op::sm90 {

namespace {

// Device memory from a stream's pool, given back in the stream's order.
class Block {
 public:
  Block(std::size_t bytes, cuda::StreamHandle stream) : stream_(stream) {
    void* block = nullptr;
    if (bytes > 0) cuda::check(cudaMallocAsync(&block, bytes, stream), "memory of a run");
    bytes_ = {static_cast<std::byte*>(block), bytes};
  }
  ~Block() {
    if (!bytes_.empty()) (void)cudaFreeAsync(bytes_.data(), stream_);
  }
  Block(Block&& other) noexcept : stream_(other.stream_), bytes_(std::exchange(other.bytes_, {})) {}
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  Block& operator=(Block&&) = delete;

  template <typename T>
  [[nodiscard]] std::span<T> as() const {
    return {reinterpret_cast<T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

 private:
  cuda::StreamHandle stream_;
  std::span<std::byte> bytes_;
};

// What one run holds on the device.
class Run {
 public:
  explicit Run(cuda::StreamHandle stream) : stream_(stream) {}

  template <typename T>
  std::span<T> room(std::size_t count) {
    return blocks_.emplace_back(count * sizeof(T), stream_).template as<T>();
  }
  template <typename T>
  std::span<T> copy_of(std::span<T> host) {
    const std::span<std::remove_const_t<T>> there = room<std::remove_const_t<T>>(host.size());
    cuda::copy(there.data(), host.data(), host.size_bytes(), stream_);
    return there;
  }

 private:
  cuda::StreamHandle stream_;
  std::vector<Block> blocks_;
};

}  // namespace

std::vector<Tactic> DeviceExperts::tactics(std::int64_t tokens) const {
  return internal::tactics_of_use(tactic_table, tokens);
}

Verdict DeviceExperts::prepare(Tactic tactic) const {
  return internal::no_body(tactic_table, "cuda", tactic);
}

std::size_t DeviceExperts::workspace_bytes(const routing::MetadataShape& /*shape*/, Tactic /*tactic*/) const {
  return 0;
}

void DeviceExperts::body(const Tokens& tokens, const routing::MetadataShape& shape,
                         const routing::Metadata& metadata, Tactic tactic, const Workers& /*workers*/,
                         std::span<std::byte> /*workspace*/, const RowBuffer& rows) const {
  internal::check_body(*this, tokens, shape, metadata, internal::elements(rows));
  if (tactic.tile > 0 || tactic.config > 0) require(prepare({static_cast<int>(shape.tile), tactic.config}));
  const std::int64_t hidden = this->shape().hidden;
  const auto live = static_cast<std::size_t>(metadata.live_tiles[0]);
  const cuda::StreamHandle stream = cudaStreamPerThread;
  Run there(stream);
  const DeviceTokens rows_in{tokens.count, there.copy_of(tokens.a).data(), there.copy_of(tokens.a_sf).data(),
                             there.copy_of(tokens.x).data()};
  const routing::Metadata tables{
      there.copy_of(metadata.total_padded),      there.copy_of(metadata.expanded_to_permuted),
      there.copy_of(metadata.permuted_to_token), there.copy_of(metadata.expert_weights),
      there.copy_of(metadata.histogram),         there.copy_of(metadata.tokens_per_expert),
      there.copy_of(metadata.tile_to_expert),    there.copy_of(metadata.tile_to_limit),
      there.copy_of(metadata.live_tiles)};
  const DeviceScratch scratch{there.room<std::byte>(scratch_bytes(shape, tactic)),
                              there.room<std::uint32_t>(counter_words(shape)),
                              there.room<std::byte>(kept_bytes(shape))};
  cuda::zero(scratch.counters.data(), scratch.counters.size_bytes(), stream);
  cuda::zero(scratch.kept.data(), scratch.kept.size_bytes(), stream);
  std::visit(
      [&](auto host) {
        using Value = typename decltype(host)::value_type;
        const std::span<Value> out =
            there.room<Value>(static_cast<std::size_t>(gemm2_rows(shape, hidden) * hidden));
        DeviceRows to;
        if constexpr (std::is_same_v<Value, float>)
          to.sums = out.data();
        else
          to.rows = out.data();
        run(rows_in, shape, tables, tactic, scratch, to, stream);
        // Of the caller's rows only those that the map names are written.
        for (std::size_t tile = 0; tile < live; ++tile) {
          const auto first = static_cast<std::int64_t>(tile) * shape.tile;
          const std::int64_t count = metadata.tile_to_limit[tile] - first;
          cuda::copy(host.data() + first * hidden, out.data() + first * hidden,
                     static_cast<std::size_t>(count * hidden) * sizeof(Value), stream);
        }
      },
      rows);
  cuda::check(cudaStreamSynchronize(stream), "running the experts");
}

}  // namespace kerf::op::sm90
