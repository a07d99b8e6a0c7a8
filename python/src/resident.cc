#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "src/callers.h"
#include "src/raised.h"
#include "src/runtime.h"

namespace kerf::python {

namespace {

tail::Kind tail_named(const std::string& name) {
  for (const tail::Kind kind : {tail::Kind::fast, tail::Kind::exact})
    if (name == tail::name(kind)) return kind;
  throw Error(ErrorKind::usage, fmt::format("tail is '{}', wanted fast or exact", name));
}

class ProgressRaised : public Error {
 public:
  explicit ProgressRaised(const std::string& words) : Error(ErrorKind::usage, "progress raised " + words) {}
};

std::vector<float> bias_of(const checkpoint::MoeLayer& layer) {
  const auto view = layer.find(checkpoint::selection_bias_name);
  if (!view) return {};
  std::vector<float> out(static_cast<std::size_t>(view->shape.elements()));
  if (view->dtype == tensor::Dtype::f32) {
    std::memcpy(out.data(), view->bytes.data(), view->bytes.size());
  } else {
    for (std::size_t e = 0; e < out.size(); ++e) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, view->bytes.data() + 2 * e, sizeof bits);
      out[e] = numeric::bf16_to_f32(bits);
    }
  }
  return out;
}

[[noreturn]] void no_such_layer(const std::string& index, const decode::Runtime& runtime) {
  std::vector<std::int64_t> there;
  for (const decode::Layer& layer : runtime.layers()) there.push_back(layer.index);
  throw Error(ErrorKind::usage, fmt::format("layer is {}, wanted one of {}", index, fmt::join(there, ", ")));
}

}  // namespace

Resident::Resident(std::shared_ptr<RankGroup> group, const BuildWords& words, const BuildCalls& calls)
    : group_(std::move(group)), options_(words), log_(shared_log(calls.log)) {
  bind_engine(calls.all_reduce);
  if (words.threads < 0 || words.threads > most_threads)
    throw Error(ErrorKind::usage,
                fmt::format("threads is {}, wanted 1 to {} (0: this rank's share of the cores)",
                            words.threads, most_threads));
  comm::Group& all = group_->get();
  if (!words.expert_tp && words.tp.value_or(1) > 1)
    throw Error(ErrorKind::usage,
                fmt::format("tp is {} and expert_tp False: nothing is cut then", *words.tp));
  if (words.ep || words.tp) (void)decode::grid_shape(all.size(), words.ep, words.tp);
  const int threads =
      words.threads > 0
          ? static_cast<int>(words.threads)
          : threads_per_rank(env_positive("KERF_THREADS", most_threads).value_or(0), group_->local_ranks());
  // What the log raises does not come in between: whoever called for the build is told at its end.
  Log log;
  if (!calls.log.is_none())
    log = Log([to = log_](LogLevel level, const std::string& line) { (void)(*to)(level, line); });
  rank_.emplace(decode::Rank{all, meter_, Workers(threads), std::move(log)});
  if (words.backend == "cuda") {
    if (all.size() > 1 && !group_->moves_device_memory())
      throw Error(
          ErrorKind::unsupported,
          fmt::format("backend 'cuda' on group '{}': it moves data between hosts' memory alone", all.name()));
    rank_->device = &device_meter_;
    device_number_ = cuda::current_device();
  }
  (void)options(nb::none());  // words that are none
}

decode::RuntimeOptions Resident::options(nb::handle progress) const {
  decode::RuntimeOptions out;
  out.build.layers = options_.layers;
  out.build.input = input_named(options_.act);
  out.build.backend = options_.backend;
  out.build.fit = {options_.uneven, options_.pad};
  out.expert_tp = options_.expert_tp;
  out.block = decode::block_kind(options_.block);
  out.probe.limit = options_.probe_limit;
  out.max_tokens = options_.max_tokens;
  out.warm_tokens = std::min<std::int64_t>(8, options_.max_tokens);
  out.tail.kind = tail_named(options_.tail);
  out.all_reduce.model_width = options_.all_reduce_width;
  out.all_reduce.own_step_tps = options_.all_reduce_tps;
  out.all_reduce.backend = options_.all_reduce_backend;
  out.all_reduce.engine = engine_.get();
  if (!progress.is_none())
    out.progress = [progress](std::string_view stage, std::int64_t done, std::int64_t of) {
      call_back<ProgressRaised>([&] { progress(nb::str(stage.data(), stage.size()), done, of); });
    };
  return out;
}

void Resident::bind_engine(nb::handle all_reduce) {
  if (all_reduce.is_none()) return;
  const auto refuse = [&] {
    throw Error(ErrorKind::usage,
                fmt::format("all_reduce is {}, wanted a backend's name and a callable with two arguments",
                            nb::cast<std::string>(nb::repr(all_reduce))));
  };
  std::pair<std::string, nb::callable> given;
  if (!nb::try_cast(all_reduce, given)) refuse();
  comm::EngineCalls calls;
  calls.backend = given.first;
  calls.ranks = group_->size();
  engine_sum_ = {new nb::object(given.second), [](nb::object* held) {
                   const Locked lock;
                   delete held;
                 }};
  calls.sum = [sum = engine_sum_](std::span<const std::uint16_t> mine, std::span<std::uint16_t> to) {
    const Locked lock;
    const auto view = [](const std::uint16_t* at, std::size_t size) {
      return tensor::TensorView{tensor::Dtype::bf16,
                                {static_cast<std::int64_t>(size)},
                                {reinterpret_cast<const std::byte*>(at), 2 * size}};
    };
    (*sum)(Array(view(mine.data(), mine.size()), nullptr), Array(view(to.data(), to.size()), nullptr, true));
  };
  engine_ = std::make_unique<comm::EngineAllReduce>(std::move(calls));
}

void Resident::make_grid() {
  if (!options_.expert_tp) return;
  const decode::GridShape shape = decode::grid_shape(group_->size(), options_.ep, options_.tp);
  if (shape.ep == 1 || shape.tp == 1) return;
  grid_.emplace(group_->get(), static_cast<int>(shape.ep), static_cast<int>(shape.tp));
  rank_->grid = &*grid_;
}

void Resident::finish() {
  // The log is one rank's, and its error is told to all.
  agreed(group_->get(), "what the log raised", [&] { log_->raise_again(); });
}

void Resident::build(const checkpoint::Checkpoint& from, nb::handle progress) {
  const RankGroup::Call inside(*group_);
  from_ = from;
  {
    const Unlocked released;
    make_grid();
    runtime_.emplace(decode::Runtime::build(*from_, options(progress), *rank_));
    checkpoint::ModelConfig config = from_->config();
    for (const decode::Layer& layer : runtime_->layers()) {
      biases_.emplace_back();
      if (const Verdict why = attempt([&] { biases_.back() = bias_of(from_->layer(layer.index)); }))
        no_router_ = why;
      if (!biases_.back().empty()) config.router.selection_bias = true;
    }
    if (const Verdict why = attempt([&] { router_ = decode::router_of(config); })) no_router_ = why;
    make_device_steps();
  }
  finish();
}

// All steps that this runtime has, so that none of them allocates.
void Resident::make_device_steps() {
  no_stack_ = decode::no_device_stack(*rank_);
  if (no_stack_) return;
  const decode::Plan& plan = runtime_->plan();
  std::vector<const decode::Layer*> layers;
  bool whole = true;
  bool sliced = false;
  for (const decode::Layer& layer : runtime_->layers()) {
    layers.push_back(&layer);
    whole = whole && layer.runs(decode::Mode::ep);
    sliced = sliced || layer.sliced_in(decode::Mode::tp);
  }
  std::vector<decode::StackStep> steps;
  for (const tail::Kind kind : {tail::Kind::fast, tail::Kind::exact}) {
    if (kind == tail::Kind::exact && plan.tail.kind != kind) continue;
    if (whole) steps.push_back({decode::Mode::ep, plan.max_tokens, kind});
    if (sliced) steps.push_back({decode::Mode::tp, plan.max_tokens, kind});
  }
  stack_ = decode::make_device_stack(layers, plan, steps, *rank_);
  for (const std::vector<float>& bias : biases_) {
    device_biases_.emplace_back();
    if (bias.empty()) continue;
    device_biases_.back() =
        tensor::Tensor(*rank_->device, tensor::Dtype::f32, {static_cast<std::int64_t>(bias.size())});
    cuda::copy(device_biases_.back().bytes().data(), bias.data(), device_biases_.back().bytes().size());
  }
}

void Resident::adopt(std::vector<EngineLayer> layers, const decode::ModelSize& model) {
  const RankGroup::Call inside(*group_);
  engine_layers_ = std::move(layers);
  std::vector<decode::StockLayer> stock;
  for (const EngineLayer& layer : engine_layers_) stock.push_back(layer.stock);
  no_router_ = Reason{ErrorKind::usage, "no router was given for an engine's layers: set runtime.router"};
  {
    const Unlocked released;
    make_grid();
    runtime_.emplace(decode::Runtime::adopt(stock, model, options(nb::none()), *rank_));
    biases_.resize(stock.size());
    make_device_steps();
  }
  finish();
}

decode::RefillReport Resident::refill(std::int64_t layer, const checkpoint::Checkpoint& source) {
  const decode::RefillReport report = runtime_->refill(position(layer), source);
  if (stack_ != nullptr) stack_->follow_refills();
  return report;
}

decode::RefillReport Resident::refill(std::int64_t layer, const decode::StockLayer& source) {
  const decode::RefillReport report = runtime_->refill(position(layer), source);
  if (stack_ != nullptr) stack_->follow_refills();
  return report;
}

void Resident::keep(std::int64_t layer, EngineLayer source) {
  const std::size_t at = position(layer);
  if (at < engine_layers_.size()) engine_layers_[at] = std::move(source);
}

std::int64_t Resident::index_of(nb::handle layer) const {
  std::int64_t index = 0;
  const nb::int_ number = index_number(layer);
  if (!nb::try_cast<std::int64_t>(number, index, false)) no_such_layer(utf8_of(number), *runtime_);
  return index;
}

std::size_t Resident::position(std::int64_t layer) const {
  const auto layers = runtime_->layers();
  const auto found =
      std::find_if(layers.begin(), layers.end(), [&](const decode::Layer& l) { return l.index == layer; });
  if (found == layers.end()) no_such_layer(std::to_string(layer), *runtime_);
  return static_cast<std::size_t>(found - layers.begin());
}

decode::Mode Resident::mode(const std::optional<std::string>& name) const {
  if (!name) return options_.expert_tp ? decode::Mode::tp : decode::Mode::ep;
  if (*name == decode::name(decode::Mode::tp) && !options_.expert_tp)
    throw Error(ErrorKind::usage, "mode is 'tp', but this runtime was built without expert_tp");
  for (const decode::Mode mode : {decode::Mode::ep, decode::Mode::tp})
    if (*name == decode::name(mode)) return mode;
  throw Error(ErrorKind::usage, fmt::format("mode is '{}', wanted ep or tp", *name));
}

const routing::Router& Resident::router() const {
  if (!router_) require(no_router_);
  return *router_;
}

std::span<const float> Resident::bias(std::size_t position) const {
  return position < biases_.size() ? std::span<const float>(biases_[position]) : std::span<const float>();
}

const float* Resident::bias_on_device(std::size_t position) const {
  if (position >= device_biases_.size() || device_biases_[position].bytes().empty()) return nullptr;
  return device_biases_[position].as<const float>().data();
}

decode::DeviceStack& Resident::device_steps() const {
  if (stack_ == nullptr) require(no_stack_);
  return *stack_;
}

int Resident::show(visitproc visit, void* arg) const {
  Py_VISIT(log_->held().ptr());
  if (engine_sum_) Py_VISIT(engine_sum_->ptr());
  return 0;
}

void Resident::let_go() {
  log_->held().reset();
  if (engine_sum_) engine_sum_->reset();
}

}  // namespace kerf::python
