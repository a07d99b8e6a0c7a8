#include "kerf/tools/tune.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/decode/inputs.h"
#include "kerf/decode/plan.h"
#include "kerf/numeric/nvfp4.h"
#include "kerf/tactics/choose.h"
#include "kerf/tools/made_experts.h"

namespace kerf::tools {

void check_tune(const TuneRequest& r) {
  const std::int64_t n = r.shape.experts;
  if (n < 1 || r.num_experts < n || r.top_k < 1 || r.top_k > r.num_experts)
    fail(ErrorKind::usage, "{} of {} experts, top {}: wanted 1 to all of them", n, r.num_experts, r.top_k);
  if (r.tokens.empty()) fail(ErrorKind::usage, "no number of tokens to measure");
  for (const std::int64_t t : r.tokens)
    if (t < 1 || t > decode::most_tokens)
      fail(ErrorKind::usage, "{} tokens, wanted 1 to {}", t, decode::most_tokens);
  require(op::backend(r.backend).supports(r.arithmetic, r.shape));
}

namespace {

struct Experts {
  std::optional<layout::Nvfp4Experts> nvfp4;
  std::optional<layout::Bf16Experts> bf16;
  std::unique_ptr<op::RoutedExperts> bound;

  Experts(const TuneRequest& r, tensor::Memory& memory, const Workers& workers) {
    const op::Backend& backend = op::backend(r.backend);
    if (r.arithmetic == op::Arithmetic::bf16) {
      bf16.emplace(made_bf16(memory, r.shape, 0, 1, workers));
      bound = backend.bind(op::Bf16Args{bf16->view(), r.num_experts, r.top_k, {}});
      return;
    }
    const auto input = r.arithmetic == op::Arithmetic::w4a4 ? op::Input::nvfp4 : op::Input::bf16;
    nvfp4.emplace(made_nvfp4(memory, r.shape, 0, input, 1, workers));
    bound = backend.bind(op::Nvfp4Args{nvfp4->view(), r.num_experts, r.top_k, input, {}});
  }
};

// A step's input at one number of tokens, routed as measured decodes are; and its buffers at any tactic.
struct Step {
  decode::Inputs in;
  std::vector<std::uint8_t> codes, scales;
  op::Tokens tokens;
  tensor::Tensor workspace, rows;
  routing::MetadataBuffer metadata;

  Step(const TuneRequest& r, const Experts& made, std::int64_t count, const std::vector<op::Tactic>& tactics,
       tensor::Memory& memory) {
    const op::RoutedExperts& experts = *made.bound;
    const std::int64_t hidden = r.shape.hidden;
    in = decode::make_inputs(1, 0, count, checkpoint::ExpertKind::nvfp4, {r.num_experts, hidden, r.top_k});
    if (experts.input() == op::Input::nvfp4) {
      codes.resize(in.x.size() / 2);
      scales.resize(in.x.size() / 16);
      numeric::quantise_rows(in.x, hidden, made.nvfp4->a1_gscale.as<float>()[0], codes, scales);
      tokens = {count, codes, scales, {}};
    } else {
      tokens = {count, {}, {}, in.x};
    }
    decode::StepSizes sizes;
    for (const op::Tactic tactic : tactics) {
      const routing::MetadataShape shape = experts.metadata_shape(count, tactic.tile);
      sizes.cover({routing::metadata_words(shape), op::gemm2_rows(shape, hidden),
                   static_cast<std::int64_t>(experts.workspace_bytes(shape, tactic))});
    }
    metadata = routing::MetadataBuffer(memory, sizes.metadata_words);
    workspace = tensor::Tensor(memory, tensor::Dtype::u8, {sizes.workspace});
    rows = tensor::Tensor(memory, tensor::Dtype::bf16, {sizes.rows, hidden});
  }
};

}  // namespace

tactics::PreferredList ranked_list(const TuneRequest& r, const std::vector<TacticTime>& times) {
  const auto us_of = [&](op::Tactic tactic, std::int64_t tokens) -> std::optional<double> {
    for (const TacticTime& t : times)
      if (t.tactic == tactic && t.tokens == tokens) return t.us;
    return std::nullopt;
  };
  const op::Backend& backend = op::backend(r.backend);
  std::vector<op::Tactic> always = backend.tactics(-1);
  std::erase_if(always, [&](op::Tactic tactic) {
    return std::ranges::any_of(r.tokens, [&](std::int64_t t) { return !us_of(tactic, t); });
  });
  std::vector<double> score(always.size(), 0);
  for (const std::int64_t tokens : r.tokens) {
    double least = std::numeric_limits<double>::infinity();
    for (const op::Tactic tactic : always) least = std::min(least, *us_of(tactic, tokens));
    for (std::size_t i = 0; i < always.size(); ++i) score[i] += std::log(*us_of(always[i], tokens) / least);
  }
  for (double& s : score) s = std::exp(s / static_cast<double>(r.tokens.size()));
  tactics::PreferredList list;
  list.setting = tactics::setting_of(backend, r.shape, r.num_experts, r.top_k);
  list.arithmetic = r.arithmetic;
  for (const std::size_t place : tactics::ranked(score)) list.tactics.push_back(always[place]);
  for (const std::int64_t tokens : r.tokens) {
    tactics::MeasuredAt at{tokens, {}};
    for (const op::Tactic tactic : list.tactics)
      at.us.push_back(std::round(*us_of(tactic, tokens) * 10) / 10);
    list.measured.push_back(std::move(at));
  }
  return list;
}

TuneResult tune(const TuneRequest& r, tensor::Memory& memory, const Workers& workers) {
  check_tune(r);
  const FpGuard guard;
  const Experts experts(r, memory, workers);
  TuneResult result;
  const double budget = r.seconds / static_cast<double>(r.tokens.size());
  std::int64_t done = 0;
  for (const std::int64_t tokens : r.tokens) {
    std::vector<op::Tactic> candidates = experts.bound->tactics(tokens);
    std::erase_if(candidates, [&](op::Tactic t) { return experts.bound->prepare(t).has_value(); });
    if (!candidates.empty()) {
      const Step step(r, experts, tokens, candidates, memory);
      const op::Buffers buffers{&step.metadata, step.workspace.bytes(), step.rows.as<std::uint16_t>()};
      const std::vector<double> seconds =
          tactics::time_candidates(candidates.size(), budget, [&](std::size_t i) {
            (void)op::routed_experts(*experts.bound, step.tokens, {step.in.ids, step.in.weights},
                                     candidates[i], workers, buffers);
          });
      for (std::size_t i = 0; i < candidates.size(); ++i)
        result.times.push_back({candidates[i], tokens, 1e6 * seconds[i]});
    }
    if (r.progress) r.progress(++done, static_cast<std::int64_t>(r.tokens.size()));
  }
  result.list = ranked_list(r, result.times);
  return result;
}

}  // namespace kerf::tools
