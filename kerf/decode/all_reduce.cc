#include "kerf/decode/all_reduce.h"

#include <algorithm>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/comm/agree.h"
#include "kerf/numeric/splitmix.h"

namespace kerf::decode {

namespace {

constexpr std::string_view automatic = "auto";

bool has(const std::vector<int>& list, int value) { return std::ranges::find(list, value) != list.end(); }

// Above this many bytes of all ranks' values each rank adds up a part of them only.
constexpr std::int64_t kOneShotBytes = std::int64_t{1} << 20;  // up to so many, "auto" is "one-shot"
constexpr std::int64_t kMostWidth = std::int64_t{1} << 30;     // so that no product below wraps

// The all-reduce that the specification stands for on this rank, checked against the largest step.
const comm::AllReduce& resolve(const AllReduceSpec& spec, const comm::AllReduceShape& shape) {
  const auto allows = [&](std::string_view name) {
    return spec.allowed.empty() || std::ranges::find(spec.allowed, name) != spec.allowed.end();
  };
  const comm::AllReduceShape one_token{shape.ranks, spec.model_width};
  const auto checked = [&](const comm::AllReduce& found) -> const comm::AllReduce& {
    if (!allows(found.name()))
      fail(ErrorKind::unsupported, "the all-reduce is '{}' ('{}' was asked for), wanted {}", found.name(),
           spec.backend, fmt::join(spec.allowed, " or "));
    require(found.supports(shape));
    require(found.supports(one_token));
    return found;
  };
  if (spec.engine != nullptr) {
    if (spec.backend != automatic && spec.backend != spec.engine->name())
      fail(ErrorKind::unsupported, "the engine's all-reduce is '{}', '{}' was asked for", spec.engine->name(),
           spec.backend);
    return checked(*spec.engine);
  }
  if (spec.backend != automatic) return checked(comm::all_reduce(spec.backend));
  if (spec.allowed.empty())
    return checked(
        comm::all_reduce(2 * shape.ranks * shape.values <= kOneShotBytes ? "one-shot" : "two-shot"));
  Verdict first;
  for (const std::string& name : spec.allowed) {
    const comm::AllReduce* candidate = nullptr;
    Verdict v = attempt([&] { candidate = &comm::all_reduce(name); });
    if (v && v->kind == ErrorKind::usage) require(v);  // no such name
    if (!v) v = candidate->supports(shape);
    if (!v) v = candidate->supports(one_token);
    if (!v) return *candidate;
    if (!first) first = std::move(v);
  }
  require(first);
  fail(ErrorKind::bug, "no all-reduce to choose from");
}

// Every rank must go on to the same collectives.
void agree_on(comm::Group& group, const std::string& mine) {
  const std::vector<std::string> all = comm::gather_text(group, mine, "comparing the all-reduce");
  for (std::size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0])
      fail(ErrorKind::unsupported, "the ranks' all-reduces differ: rank {} has {}, rank {} has {}",
           group.number(0), all[0], group.number(static_cast<int>(r)), all[r]);
}

// Values of the warm-up: the same few, over and over. Every other one has two ranks whose large terms cancel,
// so that what is left of the small ones before and after them tells orders apart; in the rest terms are of
// one size, which tells how often a sum is rounded.
constexpr std::size_t kPeriod = 1021;

std::uint16_t term(int ranks, int rank, std::size_t i) {
  i %= kPeriod;
  const std::uint64_t word = numeric::SplitMix(static_cast<std::uint64_t>(rank + 1) << 32U)[i];
  float value = static_cast<float>(128 + (word & 127U)) / 64.0F;  // [2, 4)
  if ((word & 128U) != 0) value = -value;
  if (i % 2 == 0) {
    const auto n = static_cast<std::size_t>(ranks);
    const std::size_t plus = i / 2 % n;
    const std::size_t minus = (plus + 1 + i / 2 / n % std::max<std::size_t>(n - 1, 1)) % n;
    if (static_cast<std::size_t>(rank) == plus) value = 0x1p24F;
    if (static_cast<std::size_t>(rank) == minus) value = -0x1p24F;
  }
  return numeric::f32_to_bf16(value);
}

Verdict differing(std::span<const std::uint16_t> sum, comm::SumOrder order, int ranks) {
  const FpGuard guard;
  for (std::size_t i = 0; i < std::min(sum.size(), kPeriod); ++i) {
    const std::uint16_t wanted = numeric::sum_bf16(order, ranks, [&](int r) { return term(ranks, r, i); });
    for (std::size_t at = i; at < sum.size(); at += kPeriod)
      if (sum[at] != wanted)
        return because(ErrorKind::probe,
                       "value {} of {} is 0x{:04X}, wanted 0x{:04X} in the order '{}' over {} ranks", at,
                       sum.size(), sum[at], wanted, comm::name(order), ranks);
  }
  return std::nullopt;
}

}  // namespace

bool AllReduceSpec::own_step(int tp) const { return model_width > 0 && has(own_step_tps, tp); }
bool AllReduceSpec::checked(int tp) const {
  return model_width > 0 && (has(checked_tps, tp) || has(own_step_tps, tp));
}

StepAllReduce StepAllReduce::bind(const AllReduceSpec& spec, std::int64_t max_tokens, const Rank& rank) {
  comm::Group& group = rank.group;
  const int tp = group.size();
  StepAllReduce out;
  out.spec_ = spec;
  out.max_tokens_ = max_tokens;
  out.report_ = {spec.checked(tp), spec.own_step(tp), spec.backend, {}, {}};
  comm::AllReduceShape most{tp, 0};
  const comm::AllReduce* found = nullptr;
  comm::agreed(group, "checking the all-reduce", [&] {
    if (spec.model_width < 0 || spec.model_width > kMostWidth)
      fail(ErrorKind::usage, "an all-reduce of rows {} wide, wanted 0 (none) to {}", spec.model_width,
           kMostWidth);
    most.values = max_tokens * spec.model_width;
    if (!out.report_.checked) return;
    found = &resolve(spec, most);
    out.report_.resolved = found->name();
    out.report_.order = found->order(most);
  });
  agree_on(group, found == nullptr
                      ? std::string("none")
                      : fmt::format("'{}' for [{}, {}]{}", found->name(), max_tokens, spec.model_width,
                                    out.report_.own_step ? ", as a step of its own" : ""));
  if (found == nullptr) return out;
  if (out.report_.own_step) {
    comm::agreed(group, "allocating the all-reduce's scratch", [&] {
      out.scratch_ = tensor::Tensor(rank.memory, tensor::Dtype::bf16,
                                    {static_cast<std::int64_t>(found->scratch_values(most))});
    });
    out.bound_ = found;
  }
  rank.info(fmt::format(
      "all-reduce of [{}, {}] bf16 over {} ranks: '{}'{}, order {}, {}", max_tokens, spec.model_width, tp,
      found->name(), found->name() == spec.backend ? "" : fmt::format(" ('{}')", spec.backend),
      comm::name(out.report_.order), out.report_.own_step ? "a step of its own" : "checked only"));
  return out;
}

Verdict StepAllReduce::refused(std::size_t values, int ranks) const {
  if (bound_ == nullptr) {
    if (spec_.model_width == 0)
      return because(ErrorKind::unsupported, "this decode has no all-reduce apart from its tails");
    return because(ErrorKind::unsupported,
                   "the all-reduce is a step of its own on {} ranks only, this group has {}",
                   fmt::join(spec_.own_step_tps, " or "), ranks);
  }
  const auto width = static_cast<std::size_t>(spec_.model_width);
  if (values % width != 0)
    return because(ErrorKind::usage, "an all-reduce of {} values, wanted rows of {}", values, width);
  if (values / width > static_cast<std::size_t>(max_tokens_))
    return because(ErrorKind::usage, "an all-reduce of {} rows, prepared for at most {}", values / width,
                   max_tokens_);
  return std::nullopt;
}

comm::SumOrder StepAllReduce::order(std::size_t values, int ranks) const {
  require(refused(values, ranks));
  return bound_->order({ranks, static_cast<std::int64_t>(values)});
}

void StepAllReduce::run(std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum,
                        const Rank& rank) const {
  require(refused(mine.size(), rank.group.size()));
  record(rank.calls, Call::all_reduce);
  bound_->run(rank.group, mine, sum, scratch_.as<std::uint16_t>(), "the all-reduce");
}

void StepAllReduce::warm_up(const Rank& rank) const {
  if (bound_ == nullptr) return;
  const int ranks = rank.group.size();
  std::vector<std::uint16_t> rows;
  std::vector<std::uint16_t> sum;
  for (const std::int64_t tokens : {std::int64_t{1}, max_tokens_}) {
    const auto values = static_cast<std::size_t>(tokens * spec_.model_width);
    comm::agreed(rank.group, "making the all-reduce's first rows", [&] {
      rows.resize(values);
      sum.resize(values);
      for (std::size_t i = 0; i < values; ++i) rows[i] = term(ranks, rank.group.rank(), i);
    });
    run(rows, sum, rank);
    comm::agreed(rank.group, "comparing the all-reduce's bits", [&] {
      const comm::SumOrder order = bound_->order({ranks, static_cast<std::int64_t>(values)});
      if (const Verdict v = differing(sum, order, ranks))
        fail(v->kind, "all-reduce '{}': {}", bound_->name(), v->text);
    });
  }
}

CallSet expected_calls(const AllReduceSpec& spec, int tp, bool nvfp4_layers, bool bf16_layers) {
  CallSet calls;
  if (nvfp4_layers) calls.add(Call::routed_experts_from_metadata);
  if (bf16_layers) calls.add(Call::routed_experts_from_logits);
  if (spec.own_step(tp)) calls.add(Call::all_reduce);
  return calls;
}

}  // namespace kerf::decode
