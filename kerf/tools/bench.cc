#include "kerf/tools/bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/inputs.h"
#include "kerf/decode/memory_plan.h"
#include "kerf/decode/runtime.h"
#include "kerf/decode/traffic.h"
#include "kerf/numeric/median.h"
#include "kerf/tools/internal/bench_steps.h"
#include "kerf/tools/internal/cold_experts.h"
#include "kerf/tools/made_experts.h"
#include "kerf/tools/plain_read.h"

namespace kerf::tools {

namespace {

using Clock = std::chrono::steady_clock;
using decode::Mode;
using internal::batches_at;
using internal::widths;

constexpr std::int64_t most_pairs = 100'000;

bool has(const BenchRequest& r, Mode mode) {
  return std::find(r.modes.begin(), r.modes.end(), mode) != r.modes.end();
}

bool quantised(const BenchRequest& r) { return r.arithmetic == op::Arithmetic::w4a4; }
bool nvfp4(const BenchRequest& r) { return r.arithmetic != op::Arithmetic::bf16; }

std::int64_t most_tokens(const BenchRequest& r) {
  return *std::max_element(r.batches.begin(), r.batches.end());
}

// A refusal less the options of other commands that it ends with: the widths here are made up, so that one
// that fits can be asked for.
Verdict without_ways_out(Verdict v) {
  if (v) v->text.resize(std::min(v->text.size(), v->text.find("; --")));
  return v;
}

// What one rank holds at a width.
decode::MemoryRequest memory_request(const BenchRequest& r, std::int64_t width, int ranks, int workers) {
  decode::MemoryRequest m;
  m.experts = r.shape.experts;
  m.hidden = r.shape.hidden;
  m.intermediate = width;
  m.top_k = r.top_k;
  (nvfp4(r) ? m.nvfp4_layers : m.bf16_layers) = 1;
  m.ranks = ranks;
  m.tp = has(r, Mode::tp) ? ranks : 1;
  m.tokens = most_tokens(r);
  m.input = quantised(r) ? op::Input::nvfp4 : op::Input::bf16;
  m.backend = r.backend;
  m.workers = workers;
  return m;
}

Verdict bad_numbers(const BenchRequest& r, int ranks) {
  if (r.modes.empty()) return because(ErrorKind::usage, "no mode to measure");
  if (r.batches.empty()) return because(ErrorKind::usage, "no batch to measure");
  for (const std::int64_t batch : r.batches)
    if (batch < 1 || batch > decode::most_tokens)
      return because(ErrorKind::usage, "a batch of {} tokens, wanted 1 to {}", batch, decode::most_tokens);
  if (r.pairs < 1 || r.pairs > most_pairs)
    return because(ErrorKind::usage, "{} pairs, wanted 1 to {}", r.pairs, most_pairs);
  if (has(r, Mode::tp) && ranks < 2)
    return because(ErrorKind::unsupported, "expert TP needs at least 2 ranks, got {}", ranks);
  return std::nullopt;
}

Verdict too_large(const decode::MemoryPlan& plan, std::int64_t width, std::int64_t memory, int ranks) {
  const std::int64_t beside = std::max(plan.reshard, plan.steady) - plan.ep.total() - plan.tp.total();
  const std::int64_t each = plan.ep.total() + plan.tp.total() + beside;
  if (each <= memory / ranks) return std::nullopt;
  return because(ErrorKind::memory,
                 "experts of intermediate width {} do not fit: {} x (stock experts {} + sliced experts {} + "
                 "buffers {}) = {:.2f} GiB, and {:.2f} GiB are available",
                 width, ranks == 1 ? "1 rank" : fmt::format("{} ranks", ranks), plan.ep.total(),
                 plan.tp.total(), beside, static_cast<double>(each) * ranks / (1U << 30U),
                 static_cast<double>(memory) / (1U << 30U));
}

// One rank's part of a layer of some width, in a runtime.
class Layer {
 public:
  Layer(const BenchRequest& r, std::int64_t width, const decode::Rank& rank) {
    const std::int64_t local = r.shape.experts / rank.group.size();
    const layout::ExpertsShape shape{local, r.shape.hidden, width};
    const std::int64_t first = local * rank.group.rank();
    decode::StockLayer stock;
    stock.top_k = r.top_k;
    stock.input = quantised(r) ? op::Input::nvfp4 : op::Input::bf16;
    comm::agreed(rank.group, "making experts", [&] {
      if (nvfp4(r)) {
        nvfp4_ = std::make_unique<layout::Nvfp4Experts>(
            made_nvfp4(rank.memory, shape, first, stock.input, r.seed, rank.workers));
        stock.experts = nvfp4_->view();
      } else {
        bf16_ =
            std::make_unique<layout::Bf16Experts>(made_bf16(rank.memory, shape, first, r.seed, rank.workers));
        stock.experts = bf16_->view();
      }
    });
    decode::RuntimeOptions options;
    options.build.backend = r.backend;
    options.expert_tp = has(r, Mode::tp);
    options.max_tokens = most_tokens(r);
    runtime_ = std::make_unique<decode::Runtime>(
        decode::Runtime::adopt(std::span(&stock, 1), {r.shape.experts, r.top_k}, options, rank));
    runtime_->warm_up();
  }

  [[nodiscard]] const decode::Runtime& runtime() const { return *runtime_; }
  [[nodiscard]] const decode::Layer& layer() const { return runtime_->layers().front(); }

  // A read of those of the experts that this rank has.
  [[nodiscard]] PlainRead read_of(std::span<const std::int32_t> experts, Mode mode) const {
    const op::RoutedExperts& held = layer().experts(mode);
    const auto& sliced = layer().sliced;
    std::vector<std::span<const std::byte>> runs;
    for (const std::int32_t id : experts) {
      const std::int64_t local = id - held.first_expert();
      if (local < 0 || local >= held.shape().experts) continue;
      const auto more = bf16_                               ? expert_runs(bf16_->view(), local)
                        : sliced && layer().sliced_in(mode) ? expert_runs(sliced->view(), local)
                                                            : expert_runs(nvfp4_->view(), local);
      runs.insert(runs.end(), more.begin(), more.end());
    }
    return PlainRead(runs);
  }

 private:
  // One of the two, and what refers to it.
  std::unique_ptr<layout::Nvfp4Experts> nvfp4_;
  std::unique_ptr<layout::Bf16Experts> bf16_;
  std::unique_ptr<decode::Runtime> runtime_;
};

// Microseconds from the first rank's start to the last one's end, all having waited for one another. The
// ranks are threads of one process and share its clock. (A rank's own time would not count that it waited for
// a core, where there are more ranks than cores.)
template <typename F>
double all_ranks_us(const decode::Rank& rank, std::string_view what, const F& f) {
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
  };
  rank.group.barrier(what);
  const std::int64_t start = now();
  f();
  const std::int64_t end = now();
  const std::int64_t first = -comm::all_max(rank.group, -start, what);
  return 1e-3 * static_cast<double>(std::max<std::int64_t>(comm::all_max(rank.group, end, what) - first, 1));
}

struct Pairs {
  std::vector<double> step_us, read_us, fraction;
  std::vector<std::int64_t> distinct, busiest;

  void add(double step, double read) {
    step_us.push_back(step);
    read_us.push_back(read);
    fraction.push_back(read / step);
  }
};

// A number that was really met.
std::int64_t lower_median(std::vector<std::int64_t> values) {
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Steps and reads in turns. Each pair has routes of its own, drawn from the seed. The read after a step takes
// as many experts on each rank as the step did, and so as many bytes, but others; so does the next step:
// everybody takes those that were touched longest ago (internal/cold_experts.h), and neither finds in a cache
// what the other left there, as long as the layer is a few times larger than the caches. Before the pairs
// that count there is one that does not.
BenchStep measure(const Layer& made, const BenchRequest& r, std::int64_t batch, Mode mode, std::int64_t width,
                  const decode::Rank& rank) {
  const decode::Layer& layer = made.layer();
  const std::int64_t sharing =
      layer.sliced_in(mode) ? rank.row().size() : 1;  // ranks with slices of an expert
  const std::int64_t expert_bytes = layer.expert_bytes(Mode::ep);
  internal::ColdExperts cold(r.shape.experts, rank.group.size() / sharing);
  const std::vector<std::uint16_t> x = decode::make_rows(r.seed, 0, batch, r.shape.hidden);
  Pairs pairs;
  for (std::int64_t pair = 0; pair <= r.pairs; ++pair) {
    decode::Inputs routes = decode::make_inputs(r.seed, pair, batch, checkpoint::ExpertKind::nvfp4,
                                                {r.shape.experts, 0, r.top_k});
    cold.rename(routes.ids);
    const PlainRead read = made.read_of(cold.as_many(), mode);
    const decode::StepInputs inputs{batch, x, {}, {}, routes.ids, routes.weights, nullptr, {}, {}};
    const double step = all_ranks_us(rank, "a step", [&] { (void)made.runtime().execute(0, mode, inputs); });
    const double bare = all_ranks_us(rank, "a read", [&] { (void)read.run(rank.workers); });
    if (pair == 0) continue;
    pairs.add(step, bare);
    pairs.distinct.push_back(cold.met());
    pairs.busiest.push_back(decode::busiest_rank_bytes(layer, mode, routes.ids, rank));
  }
  const std::int64_t distinct = lower_median(pairs.distinct);
  const auto [least, most] = std::minmax_element(pairs.fraction.begin(), pairs.fraction.end());
  const double step_us = numeric::median(pairs.step_us);
  const double read_us = numeric::median(pairs.read_us);
  const double kilobytes = 1e-3 * static_cast<double>(distinct * expert_bytes);
  return {width,
          batch,
          mode,
          distinct,
          distinct * expert_bytes,
          lower_median(pairs.busiest),
          step_us,
          read_us,
          numeric::median(pairs.fraction),
          *least,
          *most,
          kilobytes / step_us,
          kilobytes / read_us};
}

}  // namespace

Verdict bench_refused(const BenchRequest& r, int ranks, int workers) {
  if (Verdict v = bad_numbers(r, ranks)) return v;
  for (const std::int64_t width : widths(r)) {
    const decode::MemoryRequest request = memory_request(r, width, ranks, workers);
    if (Verdict v = decode::unsupported(request)) return without_ways_out(v);
    if (Verdict v = too_large(decode::memory_plan(request), width, r.memory, ranks)) return v;
  }
  return std::nullopt;
}

BenchReport bench(const BenchRequest& r, const decode::Rank& rank) {
  const int ranks = rank.group.size();
  comm::agreed(rank.group, "checking what to measure",
               [&] { require(bench_refused(r, ranks, rank.workers.size())); });
  BenchReport report;
  report.threads = std::int64_t{ranks} * rank.workers.size();
  std::int64_t steps = 0;
  for (const std::int64_t width : widths(r)) steps += std::ssize(batches_at(r, width)) * std::ssize(r.modes);
  for (const std::int64_t width : widths(r)) {
    const Layer layer(r, width, rank);
    for (const std::int64_t batch : batches_at(r, width))
      for (const Mode mode : r.modes) {
        report.steps.push_back(measure(layer, r, batch, mode, width, rank));
        if (r.progress && rank.group.rank() == 0) r.progress(std::ssize(report.steps), steps);
      }
  }
  return report;
}

}  // namespace kerf::tools
