#include "kerf/decode/step.h"

#include <algorithm>
#include <optional>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/numeric/nvfp4.h"
#include "kerf/routing/metadata.h"
#include "kerf/tail/tail.h"

namespace kerf::decode {

namespace {

// Quantises a row a task: a row's bits do not depend on which worker takes it.
op::Tokens quantised(const Layer& layer, const StepInputs& inputs, const Plan& plan, const Workers& workers) {
  const auto hidden = static_cast<std::size_t>(layer.bound().shape().hidden);
  const auto tokens = static_cast<std::size_t>(inputs.tokens);
  const float gs = layer.input_scale();
  const auto codes = plan.codes.as<std::uint8_t>().first(tokens * hidden / 2);
  const auto scales = plan.code_scales.as<std::uint8_t>().first(tokens * hidden / 16);
  workers.for_each(tokens, [&](std::size_t t, int) {
    numeric::quantise_rows(inputs.x.subspan(t * hidden, hidden), static_cast<std::int64_t>(hidden), gs,
                           codes.subspan(t * hidden / 2, hidden / 2),
                           scales.subspan(t * hidden / 16, hidden / 16));
  });
  return {inputs.tokens, codes, scales, {}};
}

op::Tokens tokens_of(const Layer& layer, const StepInputs& inputs, const Plan& plan, const Workers& workers) {
  if (layer.input == op::Input::bf16) return {inputs.tokens, {}, {}, inputs.x};
  if (!inputs.a.empty()) return {inputs.tokens, inputs.a, inputs.a_sf, {}};
  return quantised(layer, inputs, plan, workers);
}

// BF16 layers given logits run the op that routes itself, and rounds the weights to bf16.
bool routes_itself(const Layer& layer, const StepInputs& inputs) {
  return inputs.router != nullptr && layer.kind == checkpoint::ExpertKind::bf16;
}

struct RouteBuffers {
  std::span<std::int32_t> ids;  // [T, K]
  std::span<float> weights;     // [T, K]
};

RouteBuffers route_buffers(const Layer& layer, const StepInputs& inputs, const Plan& plan) {
  const auto routes = static_cast<std::size_t>(inputs.tokens * layer.bound().top_k());
  return {plan.ids.as<std::int32_t>().first(routes), plan.weights.as<float>().first(routes)};
}

// The given routes, or those that the router selects.
op::Routes routes_of(const Layer& layer, const StepInputs& inputs, const Plan& plan) {
  if (inputs.router == nullptr) return {inputs.ids, inputs.weights};
  const RouteBuffers chosen = route_buffers(layer, inputs, plan);
  routing::select(*inputs.router, inputs.logits, inputs.bias, chosen.ids, chosen.weights);
  return {chosen.ids, chosen.weights};
}

tail::Kind kind_of(const Plan& plan, TailKind tail) { return tail.value_or(plan.tail.kind); }

// Rows of a step of this shape.
op::RowBuffer row_buffer(const Layer& layer, Mode mode, const Plan& plan, tail::Kind kind,
                         const routing::MetadataShape& shape) {
  const std::int64_t hidden = layer.bound().shape().hidden;
  const auto size = static_cast<std::size_t>(op::gemm2_rows(shape, hidden) * hidden);
  if (kind == tail::Kind::exact && layer.sliced_in(mode)) return plan.sums.as<float>().first(size);
  return plan.rows.as<std::uint16_t>().first(size);
}

Verdict wrong_size(const char* what, std::size_t got, std::int64_t wanted) {
  if (got == static_cast<std::size_t>(wanted)) return std::nullopt;
  return because(ErrorKind::usage, "a step with {} values of {}, wanted {}", got, what, wanted);
}

// Sliced experts lie over rows of ranks, whole ones over all ranks.
tail::Where where(const Layer& layer, bool sliced, const Rank& rank) {
  const std::int64_t experts = layer.bound().num_experts();
  if (!sliced) return {rank.group, nullptr, &rank.group, experts, {}};
  return {rank.group, &rank.row(), rank.column(), experts, layer.sliced->g2_alphas.as<const float>()};
}

}  // namespace

Verdict refused(const Layer& layer, const Plan& plan, const StepInputs& inputs) {
  const std::int64_t t = inputs.tokens;
  const std::int64_t hidden = layer.bound().shape().hidden;
  const std::int64_t top_k = layer.bound().top_k();
  const std::int64_t experts = layer.bound().num_experts();
  if (t < 0 || t > plan.max_tokens)
    return because(ErrorKind::usage, "a step of {} tokens, prepared for at most {}", t, plan.max_tokens);
  if (inputs.a.empty()) {
    if (Verdict v = wrong_size("x", inputs.x.size(), t * hidden)) return v;
  } else {
    if (layer.input == op::Input::bf16)
      return because(ErrorKind::unsupported, "layer {} takes bf16 rows, not quantised ones", layer.index);
    if (Verdict v = wrong_size("a", inputs.a.size(), t * hidden / 2)) return v;
    if (Verdict v = wrong_size("a_sf", inputs.a_sf.size(), t * hidden / 16)) return v;
  }
  if (!inputs.out.empty())
    if (Verdict v = wrong_size("out", inputs.out.size(), t * hidden)) return v;
  if (inputs.router != nullptr) {
    if (inputs.router->experts != experts || inputs.router->top_k != top_k)
      return because(ErrorKind::usage, "a router of {} experts, top {}, for layer {} of {} experts, top {}",
                     inputs.router->experts, inputs.router->top_k, layer.index, experts, top_k);
    if (!inputs.bias.empty())
      if (Verdict v = wrong_size("the selection bias", inputs.bias.size(), experts)) return v;
    return wrong_size("the router's logits", inputs.logits.size(), t * experts);
  }
  if (Verdict v = wrong_size("ids", inputs.ids.size(), t * top_k)) return v;
  if (Verdict v = wrong_size("weights", inputs.weights.size(), t * top_k)) return v;
  return routing::check_ids(inputs.ids, top_k, experts);
}

op::Unfinalized run_experts(const Layer& layer, Mode mode, const StepInputs& inputs, const Plan& plan,
                            const Workers& workers, TailKind tail) {
  const FpGuard guard;
  const std::optional<op::Tactic> prepared = plan.body_tactic(layer, mode, inputs.tokens);
  if (routes_itself(layer, inputs) || !prepared)
    return run_public_op(layer, mode, inputs, plan, workers, tail);
  const op::RoutedExperts& experts = layer.experts(mode);
  const op::Tactic tactic = *prepared;
  const op::Tokens tokens = tokens_of(layer, inputs, plan, workers);
  const op::Routes routes = routes_of(layer, inputs, plan);
  const routing::MetadataShape shape = experts.metadata_shape(inputs.tokens, tactic.tile);
  const routing::Metadata metadata = plan.metadata.view(shape);
  routing::write_metadata(shape, routes.ids, routes.weights, metadata);
  op::Buffers buffers = plan.buffers();
  buffers.rows = row_buffer(layer, mode, plan, kind_of(plan, tail), shape);
  op::Unfinalized out =
      op::routed_experts_from_metadata(experts, tokens, shape, metadata, tactic, workers, buffers);
  out.ids = routes.ids;
  return out;
}

op::Unfinalized run_public_op(const Layer& layer, Mode mode, const StepInputs& inputs, const Plan& plan,
                              const Workers& workers, TailKind tail) {
  const FpGuard guard;
  const op::RoutedExperts& experts = layer.experts(mode);
  // The step's tactic as long as there is a body for it; the op's own default otherwise.
  const op::Tactic tactic = plan.body_tactic(layer, mode, inputs.tokens).value_or(op::Tactic{});
  const op::Tokens tokens = tokens_of(layer, inputs, plan, workers);
  op::Buffers buffers = plan.buffers();
  buffers.rows =
      row_buffer(layer, mode, plan, kind_of(plan, tail),
                 experts.metadata_shape(inputs.tokens, tactic.tile > 0 ? tactic.tile : op::tiles.front()));
  if (!routes_itself(layer, inputs))
    return op::routed_experts(experts, tokens, routes_of(layer, inputs, plan), tactic, workers, buffers);
  const RouteBuffers chosen = route_buffers(layer, inputs, plan);
  return op::routed_experts_from_logits(experts, tokens, *inputs.router, inputs.logits, inputs.bias,
                                        chosen.ids, chosen.weights, tactic, workers, buffers);
}

std::span<const std::uint16_t> run_tail(const Layer& layer, Mode mode, const op::Unfinalized& rows,
                                        const Plan& plan, const Rank& rank, TailKind tail,
                                        std::span<std::uint16_t> to) {
  const auto size = static_cast<std::size_t>(rows.tokens * rows.hidden);
  const auto out = to.empty() ? plan.out.as<std::uint16_t>().first(size) : to;
  if (rows.tokens == 0) return out;
  const bool sliced = layer.sliced_in(mode);
  if (kind_of(plan, tail) == tail::Kind::exact) {
    tail::exact_tail(rows, where(layer, sliced, rank), layer.norm, rank.workers, plan.scratch, out);
  } else if (!sliced) {
    tail::ep_tail(rows, layer.norm, rank.group, rank.workers, plan.scratch, out);
  } else {
    tail::tp_tail(rows, layer.norm, rank.row(), rank.workers, plan.scratch, out, plan.tail.row_sum);
    if (comm::Group* column = rank.column()) {
      // What each row's experts add to a token. The tail is done with its K-partials' room.
      const auto mine = plan.scratch.rows.as<std::uint16_t>().first(out.size());
      std::copy(out.begin(), out.end(), mine.begin());
      column->all_reduce_sum(mine, out, "hybrid tail: sum over rows of ranks");
    }
  }
  return out;
}

std::span<const std::uint16_t> execute(const Layer& layer, Mode mode, const StepInputs& inputs,
                                       const Plan& plan, const Rank& rank, TailKind tail) {
  return run_tail(layer, mode, run_experts(layer, mode, inputs, plan, rank.workers, tail), plan, rank, tail,
                  inputs.out);
}

}  // namespace kerf::decode
