// Decode steps by the ten thousand: whether their bits stay, and what a process holds before and after.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "kerf/decode/inputs.h"
#include "kerf/decode/runtime.h"
#include "kerf/tensor/storage.h"

namespace kerf::test {

// Of this process.
struct Holds {
  std::int64_t resident_kib = 0;
  std::int64_t descriptors = 0;
};
inline Holds held_now() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0;
  std::int64_t resident = 0;
  statm >> size >> resident;
  statm.close();
  Holds out{resident * ::sysconf(_SC_PAGESIZE) / 1024, 0};
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++out.descriptors;
  return out;
}

struct Lasted {
  std::int64_t differing = 0;  // steps that had other bits than the first of their kind
  Holds before, after;
  double seconds = 0;
};

// So many steps in all, layers and modes in turn, of 1 and 4 tokens, after some that are not counted.
inline Lasted last(comm::Group& group, const checkpoint::Checkpoint& from, std::int64_t steps) {
  tensor::HostMemory memory;
  decode::Meter meter(memory);
  decode::RuntimeOptions options;
  options.expert_tp = true;
  const decode::Runtime runtime = decode::Runtime::build(from, options, {group, meter, Workers(1), {}});
  runtime.warm_up();
  const checkpoint::ModelConfig& config = from.config();
  struct Kind {
    std::size_t layer;
    decode::Mode mode;
    decode::Inputs in;
    std::vector<std::uint16_t> first;
  };
  std::vector<Kind> kinds;
  for (std::size_t layer = 0; layer < runtime.layers().size(); ++layer)
    for (const decode::Mode mode : {decode::Mode::ep, decode::Mode::tp})
      for (const std::int64_t tokens : {1, 4})
        kinds.push_back(
            {layer,
             mode,
             decode::make_inputs(1, static_cast<std::int64_t>(layer), tokens, checkpoint::ExpertKind::nvfp4,
                                 {config.experts, config.hidden, config.top_k}),
             {}});
  Lasted out;
  const auto run = [&](std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      Kind& k = kinds[static_cast<std::size_t>(i) % kinds.size()];
      const auto rows = runtime.execute(
          k.layer, k.mode, {k.in.tokens, k.in.x, {}, {}, k.in.ids, k.in.weights, nullptr, {}, {}});
      if (k.first.empty())
        k.first.assign(rows.begin(), rows.end());
      else if (!std::ranges::equal(rows, k.first))
        ++out.differing;
    }
  };
  run(static_cast<std::int64_t>(20 * kinds.size()));
  // Threads of one process do not look at the same time: looking takes a descriptor.
  const auto held = [&] {
    Holds holds;
    group.barrier("looking at what is held");
    if (group.rank() == 0 || !group.shares_memory()) holds = held_now();
    group.barrier("looking at what is held");
    return holds;
  };
  out.before = held();
  const auto begin = std::chrono::steady_clock::now();
  run(steps);
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  out.after = held();
  return out;
}

}  // namespace kerf::test
