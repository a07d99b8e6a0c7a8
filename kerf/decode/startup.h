// Where the time of a start goes, stage by stage.
#pragma once

#include <chrono>
#include <cstdint>

#pragma GCC visibility push(default)
namespace kerf::comm {
class Group;
}

namespace kerf::decode {

// Seconds of one rank, and what was read in them.
struct Startup {
  double check = 0;    // scales of all experts, block scales or BF16 weights of this rank's: read, looked at
  double convert = 0;  // the files' bytes into the converted layout, in memory touched for the first time
  double read = 0;     // converted experts, from an export
  double blocks = 0;   // what stands around the experts
  double reshard = 0;  // whole experts to slices
  double probe = 0;    // slices against whole experts
  double plan = 0;     // tactics chosen, bodies prepared, buffers made
  double tune = 0;     // tactics timed: only where that was asked for
  double warm_up = 0;  // everything once
  std::int64_t bytes = 0;       // of experts that were converted, or read as they are
  std::int64_t read_bytes = 0;  // of tensors, from files, by this rank (Checkpoint::read_bytes())

  // The sum of all stages.
  [[nodiscard]] double seconds() const {
    return check + convert + read + blocks + reshard + probe + plan + tune + warm_up;
  }
};

// Collective: of each stage what the slowest rank took; the bytes of all ranks.
Startup slowest(const Startup& mine, comm::Group& group);

// Adds the time that it lives to `seconds`.
class Timing {
 public:
  // Adds what passes while it lives to `seconds`.
  explicit Timing(double& seconds) : seconds_(seconds) {}
  ~Timing() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Timing(const Timing&) = delete;
  Timing& operator=(const Timing&) = delete;
  Timing(Timing&&) = delete;
  Timing& operator=(Timing&&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  double& seconds_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace kerf::decode
#pragma GCC visibility pop
