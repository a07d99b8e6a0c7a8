#include "kerf/op/internal/bound.h"

#include <cstring>

#include "kerf/base/format.h"
#include "kerf/layout/geometry.h"

namespace kerf::op::internal {

namespace {

Verdict check_gated(const GatedParameters& p, std::int64_t n) {
  const auto wrong = [&](std::span<const float> v, const char* what) -> Verdict {
    if (v.empty() || static_cast<std::int64_t>(v.size()) == n) return std::nullopt;
    return because(ErrorKind::unsupported, "{} has {} values, wanted one for each of {} experts", what,
                   v.size(), n);
  };
  if (auto v = wrong(p.alpha, "gated alpha")) return v;
  if (auto v = wrong(p.beta, "gated beta")) return v;
  if (auto v = wrong(p.limit_gate, "gate limit")) return v;
  return wrong(p.limit_up, "up limit");
}

template <typename Args>
Verdict check(const Args& args) {
  if (auto reason = layout::malformed(args.experts)) return reason;
  const layout::ExpertsShape shape = layout::shape_of(args.experts);
  if (args.experts.first_expert < 0 || args.experts.first_expert + shape.experts > args.num_experts)
    return because(ErrorKind::unsupported, "experts [{}, {}) of a model with {} experts",
                   args.experts.first_expert, args.experts.first_expert + shape.experts, args.num_experts);
  if (args.top_k < 1 || args.top_k > args.num_experts)
    return because(ErrorKind::unsupported, "top_k {} with {} experts", args.top_k, args.num_experts);
  return check_gated(args.gated, shape.experts);
}

// The bytes of an engine's tensor may lie anywhere.
float float_at(std::span<const std::byte> bytes, std::size_t i) {
  float out = 0;
  std::memcpy(&out, bytes.data() + i * sizeof out, sizeof out);
  return out;
}

const std::uint8_t* bytes_of(const tensor::TensorView& view) { return view.as<std::uint8_t>().data(); }

}  // namespace

Verdict unsupported(Arithmetic arithmetic, const layout::ExpertsShape& shape) {
  return arithmetic == Arithmetic::bf16 ? layout::convertible_bf16(shape.hidden, shape.intermediate)
                                        : layout::convertible(shape.hidden, shape.intermediate);
}
Verdict unsupported(const Nvfp4Args& args) { return check(args); }
Verdict unsupported(const Bf16Args& args) { return check(args); }

Nvfp4Weights::Nvfp4Weights(const Nvfp4Args& args)
    : shape(layout::shape_of(args.experts)),
      w13(bytes_of(args.experts.w13)),
      w13_sf(bytes_of(args.experts.w13_sf)),
      w2(bytes_of(args.experts.w2)),
      w2_sf(bytes_of(args.experts.w2_sf)),
      scalars(static_cast<std::size_t>(shape.experts)),
      gate_(args.experts.g1_alphas.bytes),
      up_(args.experts.g1_scale_c.bytes),
      down_(args.experts.g2_alphas.bytes) {
  reread(args.gated);
}

void Nvfp4Weights::reread(const GatedParameters& gated) {
  for (std::size_t e = 0; e < scalars.size(); ++e) {
    scalars[e].scale_gate = float_at(gate_, e);
    scalars[e].scale_up = float_at(up_, e);
    scalars[e].scale_down = float_at(down_, e);
    read_gated(gated, e, scalars[e]);
  }
}

Bf16Weights::Bf16Weights(const Bf16Args& args)
    : shape(layout::shape_of(args.experts)),
      w13(args.experts.w13.as<std::uint16_t>().data()),
      w2(args.experts.w2.as<std::uint16_t>().data()),
      scalars(static_cast<std::size_t>(shape.experts)) {
  reread(args.gated);
}

void Bf16Weights::reread(const GatedParameters& gated) {
  for (std::size_t e = 0; e < scalars.size(); ++e) read_gated(gated, e, scalars[e]);
}

void check_body(const RoutedExperts& experts, const Tokens& tokens, const routing::MetadataShape& shape,
                const routing::Metadata& metadata, std::size_t rows) {
  const std::int64_t hidden = experts.shape().hidden;
  const std::int64_t t = tokens.count;
  routing::check_metadata(shape, metadata);
  if (shape.top_k != experts.top_k() || shape.experts != experts.num_experts() ||
      shape.offset != experts.first_expert() || shape.local != experts.shape().experts)
    fail(ErrorKind::bug,
         "metadata of top_k {}, experts [{}, {}) of {} for an op of top_k {}, experts [{}, {}) of {}",
         shape.top_k, shape.offset, shape.offset + shape.local, shape.experts, experts.top_k(),
         experts.first_expert(), experts.first_expert() + experts.shape().experts, experts.num_experts());
  if (t != shape.tokens) fail(ErrorKind::bug, "{} tokens with metadata of {}", t, shape.tokens);
  const auto want = [&](std::size_t got, std::int64_t wanted, const char* what) {
    if (static_cast<std::int64_t>(got) != wanted)
      fail(ErrorKind::usage, "{} has {} elements, wanted {} ({} tokens of width {})", what, got, wanted, t,
           hidden);
  };
  if (experts.input() == Input::nvfp4) {
    want(tokens.a.size(), t * hidden / 2, "a");
    want(tokens.a_sf.size(), t * hidden / 16, "a_sf");
  } else {
    want(tokens.x.size(), t * hidden, "x");
  }
  if (static_cast<std::int64_t>(rows) < gemm2_rows(shape, hidden) * hidden)
    fail(ErrorKind::usage, "the row buffer has {} elements, wanted {}", rows,
         gemm2_rows(shape, hidden) * hidden);
  const std::int64_t live = metadata.live_tiles[0];
  if (live < 0 || live > shape.max_tiles())
    fail(ErrorKind::bug, "routing metadata has {} live tiles, at most {} fit", live, shape.max_tiles());
  for (std::int64_t c = 0; c < live; ++c) {
    const std::int64_t expert = metadata.tile_to_expert[static_cast<std::size_t>(c)];
    const std::int64_t limit = metadata.tile_to_limit[static_cast<std::size_t>(c)];
    if (expert < 0 || expert >= shape.local || limit < c * shape.tile || limit > (c + 1) * shape.tile)
      fail(ErrorKind::bug, "routing metadata: tile {} has expert {} of {} and row limit {}", c, expert,
           shape.local, limit);
    for (std::int64_t r = c * shape.tile; r < limit; ++r)
      if (const std::int64_t token = metadata.permuted_to_token[static_cast<std::size_t>(r)];
          token < 0 || token >= t)
        fail(ErrorKind::bug, "routing metadata: row {} has token {} of {}", r, token, t);
  }
}

std::size_t elements(const RowBuffer& rows) {
  return std::visit([](const auto& span) { return span.size(); }, rows);
}

std::span<std::uint16_t> finished_rows(const RowBuffer& rows, std::string_view experts) {
  if (const auto* finished = std::get_if<std::span<std::uint16_t>>(&rows)) return *finished;
  fail(
      ErrorKind::unsupported,
      "f32 rows (canonical sums) were asked of {}, which have none; NVFP4 experts with quantised rows (W4A4) "
      "do",
      experts);
}

}  // namespace kerf::op::internal
