#include "kerf/decode/probe.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/inputs.h"
#include "kerf/decode/plan.h"
#include "kerf/expert_tp/expert_tp.h"
#include "kerf/numeric/bf16.h"
#include "kerf/numeric/nvfp4.h"
#include "kerf/tactics/tactics.h"

namespace kerf::decode {

namespace {

// The step of both ops.
struct ProbeInput {
  Inputs spread;
  std::vector<std::uint8_t> codes, scales;  // [T, H/2], [T, H/16]
  op::Tokens tokens;
};

ProbeInput make_input(const Layer& layer, const ProbeOptions& options, int ranks) {
  const op::RoutedExperts& ep = *layer.ep;
  const std::int64_t hidden = ep.shape().hidden;
  const std::int64_t tokens = probe_tokens(options, ep.top_k(), ranks);
  ProbeInput in;
  in.spread = spread_inputs(options.seed, tokens, {ep.num_experts(), hidden, ep.top_k()});
  const std::vector<std::uint16_t>& x = in.spread.x;
  if (layer.input == op::Input::nvfp4) {
    in.codes.resize(x.size() / 2);
    in.scales.resize(x.size() / 16);
    numeric::quantise_rows(x, hidden, layer.input_scale(), in.codes, in.scales);
    in.tokens = {tokens, in.codes, in.scales, {}};
  } else {
    in.tokens = {tokens, {}, {}, x};
  }
  return in;
}

// One op's run, in buffers of its own: the two results are compared side by side.
struct ProbeRun {
  routing::MetadataBuffer metadata;
  tensor::Tensor workspace, rows;
  op::Unfinalized output;
};

ProbeRun run(const op::RoutedExperts& experts, const ProbeInput& in, const Rank& rank) {
  const op::Tactic tactic =
      tactics::tactic_key({}, in.tokens.count, experts.top_k(), experts.shape().experts);
  const routing::MetadataShape shape = experts.metadata_shape(in.tokens.count, tactic.tile);
  const std::int64_t hidden = experts.shape().hidden;
  ProbeRun out;
  out.metadata = routing::MetadataBuffer(rank.memory, routing::metadata_words(shape));
  out.workspace = tensor::Tensor(rank.memory, tensor::Dtype::u8,
                                 {static_cast<std::int64_t>(experts.workspace_bytes(shape, tactic))});
  out.rows = tensor::Tensor(rank.memory, tensor::Dtype::bf16, {op::gemm2_rows(shape, hidden), hidden});
  const op::Buffers buffers{&out.metadata, out.workspace.bytes(), out.rows.as<std::uint16_t>()};
  out.output = op::routed_experts(experts, in.tokens, {in.spread.ids, in.spread.weights}, tactic,
                                  rank.workers, buffers);
  return out;
}

std::string rows_in_words(const char* which, const op::Unfinalized& output) {
  std::int64_t local = 0;
  std::int64_t finite = 0;
  float largest = 0;
  for (const std::int32_t row : output.map) {
    if (row < 0) continue;
    ++local;
    bool all_finite = true;
    const auto width = static_cast<std::size_t>(output.hidden);
    for (const std::uint16_t bits : output.rows.subspan(static_cast<std::size_t>(row) * width, width)) {
      const float v = std::fabs(numeric::bf16_to_f32(bits));
      all_finite = all_finite && std::isfinite(v);
      if (std::isfinite(v)) largest = std::max(largest, v);
    }
    finite += all_finite ? 1 : 0;
  }
  return fmt::format("{} of {} {} rows finite, largest magnitude {:g}", finite, local, which, largest);
}

}  // namespace

std::int64_t probe_tokens(const ProbeOptions& options, std::int64_t top_k, int ranks) {
  return std::max(options.tokens, (2 * std::int64_t{ranks} + top_k - 1) / top_k);
}

std::int64_t probe_bytes(const op::Backend& backend, op::Arithmetic arithmetic,
                         const layout::ExpertsShape& ep, const layout::ExpertsShape& tp, std::int64_t experts,
                         std::int64_t top_k, int ranks, const ProbeOptions& options) {
  const std::int64_t tokens = probe_tokens(options, top_k, ranks);
  std::int64_t bytes = 0;
  for (const layout::ExpertsShape& held : {ep, tp}) {
    const int tile = tactics::tactic_key({}, tokens, top_k, held.experts).tile;
    const routing::MetadataShape step{tokens, top_k, experts, 0, held.experts, tile};
    bytes += 4 * routing::metadata_words(step) + 2 * op::gemm2_rows(step, held.hidden) * held.hidden +
             static_cast<std::int64_t>(backend.workspace_bytes(arithmetic, held, step));
  }
  return bytes;
}

double probe(const Layer& layer, const ProbeOptions& options, const Rank& rank) {
  const FpGuard
      guard;  // workers and collectives set the mode for themselves; the rank's own thread does here
  ProbeInput input;
  ProbeRun ep;
  ProbeRun tp;
  comm::agreed(rank.group, fmt::format("probing layer {}", layer.index), [&] {
    if (options.tokens < 1 || options.tokens > most_tokens)
      fail(ErrorKind::usage, "a probe of {} tokens, wanted 1 to {}", options.tokens, most_tokens);
    if (!(options.limit >= 0))  // true for NaN
      fail(ErrorKind::usage, "the probe's limit is {}, wanted a number of at least 0", options.limit);
    if (layer.tp == nullptr) fail(ErrorKind::bug, "layer {} has no sliced experts to probe", layer.index);
    input = make_input(layer, options, rank.group.size());
    ep = run(*layer.ep, input, rank);
    tp = run(*layer.tp, input, rank);
  });
  const double value = expert_tp::probe_rel_l2(ep.output, tp.output, {rank.group, rank.row()});
  // All ranks have the same value; a limit may still be one rank's own.
  const bool over = !(value <= options.limit);  // true for NaN
  if (comm::all_max(rank.group, over ? 1 : 0, "the probe's verdict") == 0) return value;

  const std::vector<std::string> ranks = comm::gather_text(
      rank.group, rows_in_words("EP", ep.output) + "; " + rows_in_words("TP", tp.output), "the probe's rows");
  std::string where;
  for (std::size_t r = 0; r < ranks.size(); ++r) where += fmt::format("; rank {}: {}", r, ranks[r]);
  Verdict mine;
  if (over)
    mine = because(ErrorKind::probe,
                   "layer {}: the probe found rel L2 {:g} between TP and EP rows, limit {:g}{}", layer.index,
                   value, options.limit, where);
  require(comm::agree(rank.group, mine, "the probe's reason"));
  return value;
}

}  // namespace kerf::decode
