// One communicator of NCCL's: made without blocking, waited for by looking, aborted where that takes too
// long. For files of the CUDA part.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "kerf/comm/nccl/library.h"
#include "kerf/cuda/device.h"

namespace kerf::comm::nccl {

class Channel {
 public:
  // Collective over all who have the id; the current device's. Error{device} with NCCL's words, Error{peer}
  // where it takes longer than `starting`, or later a collective longer than `timeout`.
  Channel(const Library& library, const Id& id, int rank, int ranks, std::chrono::milliseconds starting,
          std::chrono::milliseconds timeout);
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  Channel(Channel&&) = delete;
  Channel& operator=(Channel&&) = delete;
  // In order where nothing failed.
  ~Channel();

  [[nodiscard]] Communicator* get() const { return comm_; }
  [[nodiscard]] cuda::StreamHandle stream() const { return stream_.handle(); }

  // Enqueues what `calls` asks NCCL for, as one group, on stream(). Throws as the constructor does, having
  // aborted. `what`: of the collective.
  void submit(std::string_view what, const std::function<void()>& calls);
  // What a call of `calls` answered.
  void check(int result, std::string_view call) const;
  // Waits for what is enqueued on stream().
  void finish(std::string_view what);
  // Ends it without waiting for anybody.
  void abandon() noexcept;

 private:
  void settle(std::chrono::milliseconds longest, std::string_view failed);
  [[noreturn]] void give_up(const std::string& text, bool late);
  [[nodiscard]] std::string words(int result) const;

  const Library& library_;
  std::chrono::milliseconds timeout_;
  cuda::Stream stream_;
  Communicator* comm_ = nullptr;
};

}  // namespace kerf::comm::nccl
