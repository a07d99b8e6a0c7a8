// Groups as Python holds them: the group, what keeps it alive, and how a rank leaves it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "kerf/kerf.h"
#include "src/bind.h"

namespace kerf::python {

// How this rank's part ended: nothing, or why.
using Leave = std::function<void(const Verdict&)>;

// Calls that are inside a group's collectives, of all ranks of this process.
using CallsInside = std::atomic<int>;

class RankGroup {
 public:
  // `local_ranks`: ranks that share this process's cores. `calls`: counted by Call; another rank of the
  // process may be closed from any thread, and whoever ends the group with it waits until nobody is inside.
  // `device_memory`: whether it moves data that lie on a device.
  RankGroup(comm::Group& group, std::shared_ptr<void> keep, Leave leave, int local_ranks, bool device_memory,
            CallsInside* calls = nullptr)
      : group_(&group),
        keep_(std::move(keep)),
        leave_(std::move(leave)),
        local_ranks_(local_ranks),
        device_memory_(device_memory),
        calls_(calls) {}
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;
  RankGroup(RankGroup&&) = delete;
  RankGroup& operator=(RankGroup&&) = delete;

  // One call's time with the group, which does not end meanwhile. Error{usage} once this rank has left, and
  // while another thread is inside a call: a rank makes one at a time. (A call may have others inside, from
  // callbacks.)
  class Call {
   public:
    explicit Call(const RankGroup& group);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    Call(Call&&) = delete;
    Call& operator=(Call&&) = delete;
    [[nodiscard]] comm::Group& operator*() const { return *group_.group_; }
    [[nodiscard]] comm::Group* operator->() const { return group_.group_; }

   private:
    const RankGroup& group_;
    bool outermost_ = false;
  };

  // For what outlives a call, which begins with a Call of its own each time. Error{usage} once this rank has
  // left.
  [[nodiscard]] comm::Group& get() const;
  [[nodiscard]] int rank() const { return get().rank(); }
  [[nodiscard]] int size() const { return get().size(); }
  [[nodiscard]] int local_ranks() const { return local_ranks_; }
  [[nodiscard]] bool moves_device_memory() const { return device_memory_; }
  [[nodiscard]] bool open() const { return open_; }
  // This rank takes part in nothing any more; waiting ranks are told `why`. Twice is once.
  void close(const Verdict& why) noexcept;

 private:
  comm::Group* group_;
  std::shared_ptr<void> keep_;
  Leave leave_;
  int local_ranks_;
  bool device_memory_;
  CallsInside* calls_;
  mutable std::atomic<std::thread::id> inside_{};  // the thread of the call
  std::atomic<bool> open_{true};
};

}  // namespace kerf::python
