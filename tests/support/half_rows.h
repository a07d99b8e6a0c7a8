// What the tests of the device's 16-bit bodies (BF16, W4A16) share: runs on the device from metadata written
// by the host, and rows in f64 with derived bounds.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kerf/layout/rows.h"
#include "kerf/numeric/bf16.h"
#include "kerf/op/sm90/experts.h"
#include "tests/support/experts.h"
#include "tests/support/gpu.h"

namespace kerf::test {

inline constexpr std::uint16_t poison = 0x7FC1;  // a NaN that is never stored

// A run's metadata in device memory.
struct DeviceMetadata {
  explicit DeviceMetadata(const routing::Metadata& m)
      : total(m.total_padded),
        map(m.expanded_to_permuted),
        tokens(m.permuted_to_token),
        weights(m.expert_weights),
        histogram(m.histogram),
        counts(m.tokens_per_expert),
        experts(m.tile_to_expert),
        limits(m.tile_to_limit),
        live(m.live_tiles) {}
  [[nodiscard]] routing::Metadata view() const {
    return {total.span(),  map.span(),     tokens.span(), weights.span(), histogram.span(),
            counts.span(), experts.span(), limits.span(), live.span()};
  }
  OnDevice<std::int32_t> total, map, tokens;
  OnDevice<float> weights;
  OnDevice<std::int32_t> histogram, counts, experts, limits, live;
};

// A step's metadata in host memory.
struct HostMetadata {
  HostMetadata(const routing::MetadataShape& shape, const StepData& step)
      : buffer(memory, routing::metadata_words(shape)), tables(buffer.view(shape)) {
    routing::write_metadata(shape, step.ids, step.weights, tables);
  }
  tensor::HostMemory memory;
  routing::MetadataBuffer buffer;
  routing::Metadata tables;
};

// The rows that a device buffer of them has, in route order [T*K, H], zero where a route is not here. All
// others must be as they were.
inline std::vector<std::uint16_t> routes_of(const std::vector<std::uint16_t>& rows, std::int64_t hidden,
                                            std::span<const std::int32_t> map) {
  std::vector<std::uint16_t> out;
  std::vector<bool> named(rows.size() / static_cast<std::size_t>(hidden));
  for (const std::int32_t row : map) {
    const auto at = rows.begin() + row * hidden;
    if (row < 0)
      out.insert(out.end(), static_cast<std::size_t>(hidden), 0);
    else
      out.insert(out.end(), at, at + hidden);
    if (row >= 0) named[static_cast<std::size_t>(row)] = true;
  }
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (!named[i / static_cast<std::size_t>(hidden)])
      if (rows[i] != poison) {
        ADD_FAILURE() << "row " << i / static_cast<std::size_t>(hidden)
                      << ", which no route has, was written";
        break;
      }
  return out;
}

// Runs a step on the device. Scratch and rows begin as NaN.
inline std::vector<std::uint16_t> run_on_device(const op::sm90::DeviceExperts& experts, const StepData& step,
                                                op::Tactic tactic) {
  const routing::MetadataShape shape = experts.metadata_shape(step.tokens, tactic.tile);
  const std::int64_t hidden = experts.shape().hidden;
  const HostMetadata host(shape, step);
  const DeviceMetadata metadata(host.tables);
  const OnDevice<std::uint16_t> x(step.x);
  const OnDevice<std::uint8_t> scratch(experts.scratch_bytes(shape, tactic), 0xFF);
  const OnDevice<std::uint32_t> counters(experts.counter_words(shape), 0);
  const OnDevice<std::uint16_t> rows(static_cast<std::size_t>(op::gemm2_rows(shape, hidden) * hidden),
                                     poison);
  const cuda::Stream stream;
  experts.run({step.tokens, nullptr, nullptr, x.get()}, shape, metadata.view(), tactic,
              {std::as_writable_bytes(scratch.span()), counters.span()}, {rows.get(), nullptr},
              stream.handle());
  stream.synchronize();
  return routes_of(rows.host(), hidden, host.tables.expanded_to_permuted);
}

// Ways in which a step's routes may lie.
enum class Routing { random, one_expert, twice, some, none };
inline constexpr Routing routings[] = {Routing::random, Routing::one_expert, Routing::twice, Routing::some,
                                       Routing::none};
inline StepData routed(StepData step, Routing how, std::int64_t top_k, std::int64_t first_expert) {
  for (std::size_t r = 0; r < step.ids.size(); ++r) switch (how) {
      case Routing::random:
        break;
      case Routing::one_expert:
        step.ids[r] = static_cast<std::int32_t>(first_expert);
        break;
      case Routing::twice:
        step.ids[r] = step.ids[r / static_cast<std::size_t>(top_k) * static_cast<std::size_t>(top_k)];
        break;
      case Routing::some:
        if (r % 3 != 1) step.ids[r] = -1;
        break;
      case Routing::none:
        step.ids[r] = -1;
        break;
    }
  return step;
}

// One expert's matrices in f64, rows and columns in their natural order.
struct ExactExpert {
  std::int64_t hidden = 0;
  std::int64_t inter = 0;
  std::vector<double> up, gate;  // [I, H]
  std::vector<double> down;      // [H, I]
  double scale_gate = 1, scale_up = 1, scale_down = 1;
};

// A row in f64, and how far a right one may be from it.
struct ExactRow {
  std::vector<double> value, slack;  // [H]
};

// Bounds: a tensor core adds 16 products and its sum in one go, each of them cut off 2^-23 below the largest:
// K / 16 times at most 17 times 2^-23 of the sum of magnitudes, e = 17 / 16 K 2^-23. h = u * (g *
// sigmoid(g)): errors of u and g enter with slopes |g sigmoid(g)| and at most 1.1 |u|; the activation's own
// operations are far below 2^-18; then h is rounded to bf16, 2^-8 at most. So is the row, in the end.
inline ExactRow exact_row(const ExactExpert& w, const std::uint16_t* x) {
  const auto cut = [](std::int64_t k) { return 17.0 / 16 * static_cast<double>(k) * 0x1p-23; };
  std::vector<double> h(static_cast<std::size_t>(w.inter));
  std::vector<double> off(h.size());
  for (std::int64_t i = 0; i < w.inter; ++i) {
    double up = 0, gate = 0, ups = 0, gates = 0;
    for (std::int64_t k = 0; k < w.hidden; ++k) {
      const double v = numeric::bf16_to_f32(x[k]);
      const double a = w.up[static_cast<std::size_t>(i * w.hidden + k)] * v;
      const double b = w.gate[static_cast<std::size_t>(i * w.hidden + k)] * v;
      up += a;
      gate += b;
      ups += std::abs(a);
      gates += std::abs(b);
    }
    const double g = gate * w.scale_gate;
    const double u = up * w.scale_up;
    const double silu = g / (1 + std::exp(-g));
    const double e = std::abs(silu) * cut(w.hidden) * ups * w.scale_up +
                     1.1 * std::abs(u) * cut(w.hidden) * gates * w.scale_gate + 0x1p-18 * std::abs(u * silu);
    h[static_cast<std::size_t>(i)] = u * silu;
    off[static_cast<std::size_t>(i)] = e + 0x1p-8 * (std::abs(u * silu) + e);
  }
  ExactRow out;
  for (std::int64_t o = 0; o < w.hidden; ++o) {
    double value = 0, magnitude = 0, slack = 0;
    for (std::int64_t i = 0; i < w.inter; ++i) {
      const double v = w.down[static_cast<std::size_t>(o * w.inter + i)] * w.scale_down;
      value += v * h[static_cast<std::size_t>(i)];
      magnitude += std::abs(v * h[static_cast<std::size_t>(i)]);
      slack += std::abs(v) * off[static_cast<std::size_t>(i)];
    }
    slack += 2 * cut(w.inter) * magnitude;
    out.value.push_back(value);
    out.slack.push_back(slack + 0x1p-8 * (std::abs(value) + slack));
  }
  return out;
}

// Rows in route order against f64: every element within its bound, which is loose, as it adds up roundings
// that mostly cancel; and against the reference's rows: nearly all elements have its bits. Elements differ
// where a bf16 of h fell to the other side (a few in 10,000: sums differ by 2^-20, bf16 has steps of 2^-8),
// which moves a row by less than a step, and the row's rounding with it now and then.
inline void expect_rows(const std::vector<std::uint16_t>& got, const std::vector<std::uint16_t>& reference,
                        const StepData& step, std::int64_t top_k, std::int64_t first_expert,
                        const std::vector<ExactExpert>& experts) {
  ASSERT_EQ(got.size(), reference.size());
  std::size_t differ = 0;
  for (std::size_t r = 0; r < step.ids.size(); ++r) {
    const std::int64_t e = step.ids[r] - first_expert;
    if (e < 0 || e >= static_cast<std::int64_t>(experts.size())) continue;
    const ExactExpert& w = experts[static_cast<std::size_t>(e)];
    const auto hidden = static_cast<std::size_t>(w.hidden);
    const ExactRow want = exact_row(w, step.x.data() + r / static_cast<std::size_t>(top_k) * hidden);
    for (std::size_t o = 0; o < hidden; ++o) {
      const std::size_t at = r * hidden + o;
      ASSERT_NEAR(numeric::bf16_to_f32(got[at]), want.value[o], want.slack[o])
          << "route " << r << " at " << o;
      differ += got[at] != reference[at] ? 1 : 0;
    }
  }
  EXPECT_LE(16 * differ, got.size()) << differ << " of " << got.size() << " elements";
}

// x of small integers: with weights of few bits, sums have no error in any order.
inline void make_exact(StepData& step, std::uint64_t seed) {
  Random random(seed);
  for (std::uint16_t& v : step.x)
    v = numeric::f32_to_bf16(static_cast<float>(static_cast<int>(random.below(9)) - 4));
}

}  // namespace kerf::test
