#include "kerf/decode/decode.h"

#include <algorithm>
#include <chrono>

#include "kerf/base/format.h"
#include "kerf/base/function_ref.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/device_stack.h"
#include "kerf/decode/finite_rows.h"
#include "kerf/decode/inputs.h"
#include "kerf/decode/sha256.h"
#include "kerf/decode/traffic.h"
#include "kerf/numeric/median.h"

namespace kerf::decode {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int most_repetitions = 1000;

void check(const Options& options) {
  if (options.modes.empty()) fail(ErrorKind::usage, "no mode to run");
  if (options.tails.empty()) fail(ErrorKind::usage, "no tail to run");
  if (options.batches.empty()) fail(ErrorKind::usage, "no batch to run");
  for (const std::int64_t batch : options.batches)
    if (batch < 1 || batch > most_tokens)
      fail(ErrorKind::usage, "a batch of {} tokens, wanted 1 to {}", batch, most_tokens);
  if (options.repetitions < 1)
    fail(ErrorKind::usage, "{} repetitions, wanted at least 1", options.repetitions);
}

// The ids that a layer's step will use, for counting what it reads.
std::vector<std::int32_t> chosen(const Inputs& inputs, const routing::Router& router) {
  if (inputs.logits.empty()) return inputs.ids;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(inputs.tokens * router.top_k));
  std::vector<float> weights(ids.size());
  routing::select(router, inputs.logits, {}, ids, weights);
  return ids;
}

StepInputs step_of(const Inputs& inputs, const routing::Router& router) {
  if (inputs.logits.empty())
    return {inputs.tokens, inputs.x, {}, {}, inputs.ids, inputs.weights, nullptr, {}, {}};
  return {inputs.tokens, inputs.x, {}, {}, {}, {}, &router, inputs.logits, {}};
}

// One run of a step on this rank.
struct Ran {
  std::span<const std::uint16_t> rows;
  std::chrono::nanoseconds experts{0};  // of a block's step
};

struct Measured {
  double us = 0;          // median over repetitions of the slowest rank
  double experts_us = 0;  // the same of the experts inside a block
  std::vector<std::uint16_t> rows;
};

void warn_of_rows(const Runtime& runtime, std::size_t position, Mode mode,
                  std::span<const std::uint16_t> rows, const Rank& rank) {
  const std::int64_t hidden = runtime.blocks().empty()
                                  ? runtime.layers()[position].experts(mode).shape().hidden
                                  : runtime.blocks()[position].weights.model_hidden();
  if (const std::string text = not_finite_text(rows, hidden); !text.empty())
    rank.warning(fmt::format("layer {}: {} step: {}", runtime.layers()[position].index, name(mode), text));
}

// Repeats one layer's step. How often is decided from times that all ranks have agreed on.
Measured measure(const Runtime& runtime, std::size_t position, Mode mode, FunctionRef<Ran()> step,
                 const Options& options, const Rank& rank) {
  const double budget = options.seconds * 1e6 / static_cast<double>(runtime.layers().size());
  Measured out;
  std::vector<double> times;
  std::vector<double> experts;
  double spent = 0;
  bool same = true;
  for (int i = 0; i < options.repetitions || (spent < budget && i < most_repetitions); ++i) {
    rank.group.barrier("the next step");
    const auto start = Clock::now();
    const Ran ran = step();
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
    times.push_back(static_cast<double>(comm::all_max(rank.group, ns, "a step's time")) * 1e-3);
    if (!runtime.blocks().empty())
      experts.push_back(
          static_cast<double>(comm::all_max(rank.group, ran.experts.count(), "the experts' time")) * 1e-3);
    spent += times.back();
    if (i == 0)
      out.rows.assign(ran.rows.begin(), ran.rows.end());
    else
      same = same && std::equal(ran.rows.begin(), ran.rows.end(), out.rows.begin(), out.rows.end());
  }
  warn_of_rows(runtime, position, mode, out.rows, rank);
  out.us = numeric::median(std::move(times));
  if (!experts.empty()) out.experts_us = numeric::median(std::move(experts));
  comm::agreed(rank.group, "comparing repetitions", [&] {
    if (!same)
      fail(ErrorKind::bug, "layer {}: two runs of the same {} step differ", runtime.layers()[position].index,
           name(mode));
  });
  return out;
}

// The inputs of a layer's step, and what its busiest rank reads. Collective.
Inputs inputs_of(const Runtime& runtime, std::size_t position, StepReport& report, const Options& options,
                 const InputShape& shape, const Rank& rank) {
  const Layer& layer = runtime.layers()[position];
  Inputs inputs;
  comm::agreed(rank.group, "making inputs", [&] {
    inputs = make_inputs(options.seed, layer.index, report.batch, layer.kind, shape);
    report.busiest_rank_bytes +=
        busiest_rank_bytes(layer, report.mode, chosen(inputs, runtime.router()), rank);
  });
  return inputs;
}

// One layer's step on the seed's inputs, and what its busiest rank reads.
Measured measure_layer(const Runtime& runtime, std::size_t position, StepReport& report,
                       const Options& options, const InputShape& shape, const Rank& rank) {
  const Layer& layer = runtime.layers()[position];
  if (runtime.blocks().empty()) {
    const Inputs inputs = inputs_of(runtime, position, report, options, shape, rank);
    const StepInputs step = step_of(inputs, runtime.router());
    return measure(
        runtime, position, report.mode,
        [&] {
          return Ran{runtime.execute(position, report.mode, step, report.tail), {}};
        },
        options, rank);
  }
  const block::Weights& weights = runtime.blocks()[position].weights;
  std::vector<std::uint16_t> x;
  comm::agreed(rank.group, "making inputs", [&] {
    x = make_rows(options.seed, layer.index, report.batch, weights.model_hidden());
    report.busiest_rank_bytes +=
        busiest_rank_bytes(layer, report.mode, runtime.routes_of_block(position, report.batch, x).ids, rank) +
        weights.bytes();
  });
  return measure(
      runtime, position, report.mode,
      [&] {
        Ran ran;
        ran.rows = runtime.execute_block(position, report.mode, report.batch, x, report.tail, &ran.experts);
        return ran;
      },
      options, rank);
}

// All layers' steps on a device, captured as one graph: the same bits as enqueued without one, and at every
// replay; timed by the device's clock.
void measure_stack(const Runtime& runtime, DeviceStack& stack, StepReport& report, Sha256& digest,
                   const Options& options, const InputShape& shape, const Rank& rank) {
  const StackStep step{report.mode, report.batch, report.tail};
  const std::size_t layers = runtime.layers().size();
  for (std::size_t i = 0; i < layers; ++i) {
    const Inputs inputs = inputs_of(runtime, i, report, options, shape, rank);
    stack.load(i, step_of(inputs, runtime.router()));
  }
  stack.run(step);
  std::vector<std::vector<std::uint16_t>> rows;
  for (std::size_t i = 0; i < layers; ++i) {
    rows.push_back(stack.output(i));
    warn_of_rows(runtime, i, report.mode, rows.back(), rank);
    digest.update(std::as_bytes(std::span(rows.back())));
  }
  stack.capture(step);
  const double first = stack.time(1).front();
  const double wanted =
      std::clamp(options.seconds * 1e6 / std::max(first, 1.0), static_cast<double>(options.repetitions),
                 static_cast<double>(std::max(options.repetitions, most_repetitions)));
  report.us_per_layer = numeric::median(stack.time(static_cast<int>(wanted))) / static_cast<double>(layers);
  comm::agreed(rank.group, "comparing replays", [&] {
    for (std::size_t i = 0; i < layers; ++i)
      if (stack.output(i) != rows[i])
        fail(ErrorKind::bug, "layer {}: the last replay of the {} steps differs from the first run",
             runtime.layers()[i].index, name(report.mode));
  });
}

StepReport run_steps(const Runtime& runtime, DeviceStack* stack, Mode mode, std::int64_t batch,
                     tail::Kind tail, const Options& options, const InputShape& shape, const Rank& rank) {
  StepReport report;
  report.mode = mode;
  report.batch = batch;
  report.tail = tail;
  Sha256 digest;
  if (stack != nullptr) measure_stack(runtime, *stack, report, digest, options, shape, rank);
  const auto layers = static_cast<double>(runtime.layers().size());
  for (std::size_t i = 0; stack == nullptr && i < runtime.layers().size(); ++i) {
    const Measured measured = measure_layer(runtime, i, report, options, shape, rank);
    report.us_per_layer += measured.us / layers;
    report.experts_us_per_layer += measured.experts_us / layers;
    digest.update(std::as_bytes(std::span(measured.rows)));
  }
  report.output_sha256 = digest.hex();
  const std::vector<std::string> all =
      comm::gather_text(rank.group, report.output_sha256, "comparing outputs");
  for (std::size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0])
      fail(ErrorKind::bug, "{} at batch {}: the outputs of ranks 0 and {} differ (SHA-256 {} and {})",
           name(mode), batch, r, all[0], all[r]);
  return report;
}

// What steps compute, and how often: all ranks have to go through the same ones.
comm::Facts facts_of(const Options& o) {
  std::vector<std::string_view> modes;
  for (const Mode mode : o.modes) modes.push_back(name(mode));
  std::vector<std::string_view> tails;
  for (const tail::Kind kind : o.tails) tails.push_back(tail::name(kind));
  return {{"modes", fmt::format("{}", fmt::join(modes, ",")), ErrorKind::usage},
          {"batches", fmt::format("{}", fmt::join(o.batches, ",")), ErrorKind::usage},
          {"tails", fmt::format("{}", fmt::join(tails, ",")), ErrorKind::usage},
          {"seed", fmt::format("{}", o.seed), ErrorKind::usage},
          {"repetitions", fmt::format("{}", o.repetitions), ErrorKind::usage},
          {"seconds of a step's repetitions", fmt::format("{}", o.seconds), ErrorKind::usage}};
}

std::vector<StackStep> steps_of(const Options& options) {
  std::vector<StackStep> steps;
  for (const Mode mode : options.modes)
    for (const std::int64_t batch : options.batches)
      for (const tail::Kind tail : options.tails) steps.push_back({mode, batch, tail});
  return steps;
}

// Exact outputs do not depend on where experts are.
void check_modes(std::span<const StepReport> steps) {
  for (const StepReport& a : steps)
    for (const StepReport& b : steps)
      if (a.tail == tail::Kind::exact && b.tail == a.tail && a.batch == b.batch &&
          a.output_sha256 != b.output_sha256)
        fail(ErrorKind::bug, "exact tails at batch {}: the outputs of {} and {} differ (SHA-256 {} and {})",
             a.batch, name(a.mode), name(b.mode), a.output_sha256, b.output_sha256);
}

Facts facts_of(const checkpoint::ModelConfig& config, std::span<const Layer> layers) {
  Facts facts;
  facts.layers = static_cast<std::int64_t>(layers.size());
  facts.nvfp4_layers = std::count_if(layers.begin(), layers.end(), [](const Layer& layer) {
    return layer.kind == checkpoint::ExpertKind::nvfp4;
  });
  facts.bf16_layers = facts.layers - facts.nvfp4_layers;
  facts.experts = config.experts;
  facts.hidden = config.hidden;
  facts.model_hidden = config.model_hidden;
  facts.intermediate = config.intermediate;
  const auto nvfp4 = std::find_if(layers.begin(), layers.end(), [](const Layer& layer) {
    return layer.kind == checkpoint::ExpertKind::nvfp4;
  });
  facts.width = (nvfp4 != layers.end() ? *nvfp4 : layers.front()).width();
  facts.top_k = config.top_k;
  return facts;
}

TacticReport tactic_of(const Runtime& runtime, std::int64_t tokens) {
  const std::span<const Layer> layers = runtime.layers();
  const auto sliced =
      std::find_if(layers.begin(), layers.end(), [](const Layer& l) { return l.tp != nullptr; });
  const Plan& plan = runtime.plan();
  const TacticChoice& choice = plan.tactic;
  if (sliced != layers.end()) {
    const op::Tactic tactic = plan.resolve(*sliced, Mode::tp, tokens);
    return {tactic.tile, tactic.config, choice.pinned, false, choice.preference, choice.of};
  }
  const op::Tactic tactic = plan.resolve(layers.front(), Mode::ep, tokens);
  const bool tuned = plan.tuned_for(layers.front(), Mode::ep, tokens).has_value();
  return {tactic.tile, tactic.config, false, tuned, -1, choice.of};
}

StockTactics stock_tactics(const Runtime& runtime) {
  StockTactics out{runtime.tuning(), {}};
  for (const Prepared& p : runtime.plan().prepared)
    if (!p.sliced && !p.tuned.empty()) out.tuned.push_back({p.arithmetic(), p.shape, p.tuned});
  return out;
}

Footprint largest(const Footprint& mine, comm::Group& group) {
  return {comm::all_max(group, mine.stock, "memory"), comm::all_max(group, mine.sliced, "memory"),
          comm::all_max(group, mine.block, "memory"), comm::all_max(group, mine.steps, "memory")};
}

}  // namespace

Report run(const checkpoint::Checkpoint& from, const Options& options, const Rank& rank) {
  comm::agreed(rank.group, "checking the options", [&] { check(options); });
  RuntimeOptions building;
  building.build = options.build;
  building.expert_tp = std::count(options.modes.begin(), options.modes.end(), Mode::tp) > 0;
  building.block = options.block;
  building.probe = options.probe;
  building.max_tokens = *std::max_element(options.batches.begin(), options.batches.end());
  building.warm_tokens = options.batches.front();
  building.preferred = options.preferred;
  if (std::count(options.tails.begin(), options.tails.end(), tail::Kind::exact) > 0)
    building.tail.kind = tail::Kind::exact;
  building.lists = options.lists;
  building.tune = options.tune;
  building.facts = facts_of(options);
  building.progress = options.progress;
  const Runtime runtime = Runtime::build(from, building, rank);
  Startup startup = runtime.startup();
  {
    const Timing timing(startup.warm_up);
    runtime.warm_up();
  }

  const checkpoint::ModelConfig& config = from.config();
  Report report;
  report.checkpoint = facts_of(config, runtime.layers());
  report.ranks = rank.group.size();
  report.ep = building.expert_tp ? rank.group.size() / rank.row().size() : rank.group.size();
  report.tp = building.expert_tp ? rank.row().size() : 1;
  for (int part = 0; building.expert_tp && part < report.tp; ++part)
    report.slices.push_back(layout::slice_of(report.checkpoint.width, report.tp, part).width);
  report.group = rank.group.name();
  report.backend = options.build.backend;
  const std::span<const Layer> layers = runtime.layers();
  if (std::any_of(layers.begin(), layers.end(), [](const Layer& l) { return l.input == op::Input::nvfp4; }))
    report.input = op::Input::nvfp4;
  report.reshard = runtime.sharding();
  report.block = options.block;
  report.probe_limit = options.probe.limit;
  report.tactic = tactic_of(runtime, options.batches.front());
  report.stock_tactics = stock_tactics(runtime);
  // On a device the layers' steps are one piece of work; a block around the experts is the host's, and so are
  // the tails of ranks that are processes.
  std::unique_ptr<DeviceStack> stack;
  Footprint footprint = runtime.footprint();
  const bool together = rank.group.size() == 1 || rank.group.shares_memory();
  if (rank.device != nullptr && options.block == BlockKind::none && together) {
    const Timing timing(startup.plan);
    std::vector<const Layer*> all;
    for (const Layer& layer : runtime.layers()) all.push_back(&layer);
    stack = make_device_stack(all, runtime.plan(), steps_of(options), rank);
    footprint.steps += stack->bytes();
  }
  report.footprint = largest(footprint, rank.group);
  report.startup = slowest(startup, rank.group);
  report.read_bytes = comm::gathered(rank.group, std::span<const std::int64_t>(&startup.read_bytes, 1),
                                     "what each rank read");
  const auto steps =
      static_cast<std::int64_t>(options.modes.size() * options.batches.size() * options.tails.size());
  for (const Mode mode : options.modes) {
    for (const std::int64_t batch : options.batches) {
      for (const tail::Kind tail : options.tails) {
        report.steps.push_back(run_steps(runtime, stack.get(), mode, batch, tail, options,
                                         {config.experts, config.hidden, config.top_k}, rank));
        comm::agreed(rank.group, "the progress of measuring", [&] {
          if (options.progress && rank.group.rank() == 0)
            options.progress("decoding", std::ssize(report.steps), steps);
        });
      }
    }
  }
  check_modes(report.steps);  // the same on every rank, so all say the same
  return report;
}

}  // namespace kerf::decode
