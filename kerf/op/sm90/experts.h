// The sm_90a op as the device sees it: experts whose weights are in device memory, run from metadata in
// device memory, on a stream. RoutedExperts::body(), with spans of host memory, copies around this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kerf/cuda/device.h"
#include "kerf/op/internal/bound.h"
#include "kerf/op/op.h"
#include "kerf/op/sm90/ahead.h"

namespace kerf::op::sm90 {

// A step's rows, in device memory: a and a_sf, or x.
struct DeviceTokens {
  std::int64_t count = 0;
  const std::uint8_t* a = nullptr;     // [T, H/2] e2m1
  const std::uint8_t* a_sf = nullptr;  // [T, H/16] e4m3, linear
  const std::uint16_t* x = nullptr;    // [T, H] bf16
  // [T, K] the step's experts, where they were given and so lie there before the kernel in front of the run
  // begins: weights are asked for ahead then (ahead.h). Else null.
  const std::int32_t* known_ids = nullptr;
};

// Where rows go, in device memory; one of the three: finished rows, or f32 sums before g2_alpha (W4A4 alone),
// or no rows at all but the tokens, ended (where ends_tokens() says so): of each token the routes that are
// here, weighted and added, k ascending from +0 (the bits of the tail of finished rows without a norm); zeros
// where none is here.
struct DeviceRows {
  std::uint16_t* rows = nullptr;    // [gemm2_rows, H] bf16
  float* sums = nullptr;            // [gemm2_rows, H] f32
  std::uint16_t* tokens = nullptr;  // [T, H] bf16, at a multiple of 16 bytes
};

// Device memory that a run works in.
struct DeviceScratch {
  std::span<std::byte> bytes;         // scratch_bytes(), contents do not matter
  std::span<std::uint32_t> counters;  // counter_words(), zero when a run begins; whatever after it
  // kept_bytes(), of any number of steps: zero once, then as runs leave it, one at a time. Layers and steps
  // share it.
  std::span<std::byte> kept{};
};

class DeviceExperts : public internal::Bound {
 public:
  using Bound::Bound;

  [[nodiscard]] std::vector<Tactic> tactics(std::int64_t tokens) const final;
  [[nodiscard]] Verdict prepare(Tactic tactic) const final;
  // What a step of some tokens runs at where nobody has chosen: by the routes of an expert on average.
  [[nodiscard]] virtual Tactic default_tactic(std::int64_t tokens) const = 0;
  [[nodiscard]] virtual std::size_t scratch_bytes(const routing::MetadataShape& shape,
                                                  Tactic tactic) const = 0;
  // 32-bit words; a few, that the kernel in front of the run zeroes.
  [[nodiscard]] virtual std::size_t counter_words(const routing::MetadataShape& shape) const = 0;

  [[nodiscard]] virtual std::size_t kept_bytes(const routing::MetadataShape& /*shape*/) const { return 0; }

  // Whether a run on such a step can end tokens.
  [[nodiscard]] virtual bool ends_tokens(const routing::MetadataShape& /*shape*/, Tactic /*tactic*/) const {
    return false;
  }

  // The weights that a run on these tokens reads first, for the kernel in front of it; without ids where that
  // gains nothing.
  [[nodiscard]] virtual Ahead ahead(const DeviceTokens& /*tokens*/) const { return {}; }

  // Enqueues the GEMMs: both, with all that is between them. The metadata's spans are device memory; the host
  // reads none of them, so that a captured run follows whatever they hold at replay. Of rows only those that
  // the map names are written. No host work besides launches, no allocation.
  virtual void run(const DeviceTokens& tokens, const routing::MetadataShape& shape,
                   const routing::Metadata& metadata, Tactic tactic, const DeviceScratch& scratch,
                   const DeviceRows& rows, cuda::StreamHandle stream) const = 0;

  // The host's way in (op.h): copies tokens and metadata to the device, runs, copies the named rows back.
  // Allocates device memory from the stream's pool; `workspace` is not used.
  [[nodiscard]] std::size_t workspace_bytes(const routing::MetadataShape& shape, Tactic tactic) const final;
  void body(const Tokens& tokens, const routing::MetadataShape& shape, const routing::Metadata& metadata,
            Tactic tactic, const Workers& workers, std::span<std::byte> workspace,
            const RowBuffer& rows) const final;
};

}  // namespace kerf::op::sm90
