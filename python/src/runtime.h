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

using PythonLog = std::function<void(std::string, std::string)>;
using PythonProgress = std::function<void(std::string, std::int64_t, std::int64_t)>;

// An all-reduce of the engine's: its backend's name, and a call that is given the rank's values and where the
// sum goes.
struct EngineSum {
  std::string backend;
  nb::callable sum;
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
  Resident(std::shared_ptr<RankGroup> group, const BuildWords& words, std::optional<PythonLog> log);

  // Collective; the interpreter's lock is not held. Afterwards get() gives the runtime.
  void build(const checkpoint::Checkpoint& from, const std::optional<PythonProgress>& progress,
             const EngineSum* engine);
  void adopt(std::vector<EngineLayer> layers, const decode::ModelSize& model, const EngineSum* engine);
  decode::RefillReport refill(std::int64_t layer, const checkpoint::Checkpoint& source);
  decode::RefillReport refill(std::int64_t layer, const decode::StockLayer& source);
  // What an adopted layer refers to from now on.
  void keep(std::int64_t layer, EngineLayer source);

  [[nodiscard]] const decode::Runtime& get() const { return *runtime_; }
  [[nodiscard]] const decode::Rank& rank() const { return *rank_; }
  [[nodiscard]] const RankGroup& group() const { return *group_; }
  [[nodiscard]] bool expert_tp() const { return options_.expert_tp; }
  // The place of the layer with this index in the model; Error{usage} with those there are.
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
  [[nodiscard]] const nb::callable* engine_sum() const { return engine_sum_.get(); }

  // Counts what was run in the shared buffers: rows of an earlier number are gone.
  std::uint64_t next() { return ++steps_; }
  [[nodiscard]] std::uint64_t steps() const { return steps_; }

  std::atomic<bool> busy{false};

 private:
  [[nodiscard]] decode::RuntimeOptions options(const std::optional<PythonProgress>& progress) const;
  void bind_engine(const EngineSum* engine);
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
  std::shared_ptr<const nb::callable> engine_sum_;
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
      throw Error(ErrorKind::usage,
                  "another thread is inside a call of this runtime: one at a time, a runtime a rank");
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
