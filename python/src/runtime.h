// A runtime as Python holds it: with the checkpoint, the memory, the group and the engine's tensors that it
// refers to.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kerf/kerf.h"
#include "src/arrays.h"
#include "src/callers_log.h"
#include "src/experts.h"
#include "src/groups.h"

namespace kerf::python {

// What a runtime is built with, as the Python side passes it.
struct BuildWords {
  std::vector<std::int64_t> layers;
  bool expert_tp = false;
  std::optional<std::int64_t> ep, tp;
  std::string act = "nvfp4";
  std::string backend = "cpu";
  std::string tail = "fast";
  std::string block = "none";
  std::int64_t max_tokens = 8;
  std::int64_t threads = 0;  // of this rank; 0: its share of the cores
  bool uneven = false;
  bool pad = false;
  double probe_limit = decode::probe_limit;
  std::int64_t all_reduce_width = 0;
  std::string all_reduce_backend = "auto";
  std::vector<int> all_reduce_tps = {16};
};

// Callables of Python's that the library calls; None where there is none.
struct BuildCalls {
  nb::object log;
  // An all-reduce of the engine's: its backend's name, and a call that is given the rank's values and where
  // the sum goes.
  nb::object all_reduce;
};

// One layer of an engine's, and what keeps its memory.
struct EngineLayer {
  decode::StockLayer stock;
  std::vector<Argument> held;
};

class Resident {
 public:
  // Forked children have no threads that a runtime's end could wait for.
  struct End {
    void operator()(Resident* resident) const {
      if (!in_forked_child()) delete resident;
    }
  };
  // Local. Error{usage} for words and callables that are none.
  Resident(std::shared_ptr<RankGroup> group, const BuildWords& words, const BuildCalls& calls);

  // Collective; with the interpreter's lock held, which they release. Afterwards get() gives the runtime.
  void build(const checkpoint::Checkpoint& from, nb::handle progress);
  void adopt(std::vector<EngineLayer> layers, const decode::ModelSize& model);
  // Collective: what a rank's log raised meanwhile, as any rank's error. With the lock held.
  void finish();
  // Collective, with the lock released.
  decode::RefillReport refill(std::int64_t layer, const checkpoint::Checkpoint& source);
  decode::RefillReport refill(std::int64_t layer, const decode::StockLayer& source);
  // What an adopted layer refers to from now on.
  void keep(std::int64_t layer, EngineLayer source);

  [[nodiscard]] const decode::Runtime& get() const { return *runtime_; }
  [[nodiscard]] const decode::Rank& rank() const { return *rank_; }
  [[nodiscard]] const RankGroup& group() const { return *group_; }
  [[nodiscard]] bool expert_tp() const { return options_.expert_tp; }
  // A layer's index in the model, as Python says it: what it is if it is a whole number, however large.
  // Error{usage} with those there are, TypeError for what is none.
  [[nodiscard]] std::int64_t index_of(nb::handle layer) const;
  // The place of the layer with this index; Error{usage} with those there are.
  [[nodiscard]] std::size_t position(std::int64_t layer) const;
  // The mode with this name; without one, what sliced experts make of it.
  [[nodiscard]] decode::Mode mode(const std::optional<std::string>& name) const;
  // What logits are routed by. Error with the reason where the checkpoint does not say, or nobody did.
  [[nodiscard]] const routing::Router& router() const;
  void set_router(const routing::Router& router) { router_ = router; }
  [[nodiscard]] std::span<const float> bias(std::size_t position) const;
  // The same in the device's memory; null where there is none.
  [[nodiscard]] const float* bias_on_device(std::size_t position) const;
  // Steps on arrays in a device's memory. Error{unsupported} with the reason where there can be none.
  [[nodiscard]] decode::DeviceStack& device_steps() const;
  [[nodiscard]] bool has_device_steps() const { return stack_ != nullptr; }
  // The CUDA device that the experts are on, by number; host_memory where they are on none.
  [[nodiscard]] int device_number() const { return device_number_; }
  // The engine's all-reduce, or null.
  [[nodiscard]] const nb::object* engine_sum() const { return engine_sum_.get(); }
  // What it refers to of Python's and may be referred to by: for the collector of cycles. With the
  // interpreter's lock held; afterwards only the memory is of use.
  int show(visitproc visit, void* arg) const;
  void let_go();

  // Counts what was run in the shared buffers: rows of an earlier number are gone.
  std::uint64_t next() { return ++steps_; }
  [[nodiscard]] std::uint64_t steps() const { return steps_; }

  std::atomic<bool> busy{false};

 private:
  [[nodiscard]] decode::RuntimeOptions options(nb::handle progress) const;
  void bind_engine(nb::handle all_reduce);
  void make_grid();
  void make_device_steps();

  std::shared_ptr<RankGroup> group_;
  BuildWords options_;
  std::optional<checkpoint::Checkpoint> from_;
  std::vector<EngineLayer> engine_layers_;
  tensor::HostMemory memory_;
  decode::Meter meter_{memory_};
  cuda::DeviceMemory device_;
  decode::Meter device_meter_{device_};
  std::optional<comm::Grid> grid_;
  std::unique_ptr<comm::EngineAllReduce> engine_;
  std::shared_ptr<CallersLog> log_;
  std::shared_ptr<nb::object> engine_sum_;
  int device_number_ = host_memory;
  std::optional<decode::Rank> rank_;
  std::optional<routing::Router> router_;
  std::optional<Reason> no_router_;
  std::vector<std::vector<float>> biases_;
  std::vector<tensor::Tensor> device_biases_;
  std::optional<decode::Runtime> runtime_;
  std::unique_ptr<decode::DeviceStack> stack_;
  std::optional<Reason> no_stack_;
  std::atomic<std::uint64_t> steps_{0};
};

// One call at a time, of a rank that is still in its group: Error{usage} otherwise.
class InUse {
 public:
  explicit InUse(Resident& resident) : call_(resident.group()), busy_(resident.busy) {
    if (busy_.exchange(true))
      throw Error(
          ErrorKind::usage,
          "this runtime is inside a call already, of another thread or around this one (a callback's): one "
          "at a time, a runtime a rank");
  }
  ~InUse() { busy_ = false; }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;
  InUse(InUse&&) = delete;
  InUse& operator=(InUse&&) = delete;

 private:
  RankGroup::Call call_;
  std::atomic<bool>& busy_;
};

void bind_steps(nb::module_& m, nb::class_<Resident>& runtime);
void bind_routing(nb::module_& m, nb::class_<Resident>& runtime);

}  // namespace kerf::python
