// Groups as Python holds them: the group, what keeps it alive, and how a rank leaves it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "kerf/kerf.h"
#include "src/bind.h"

namespace kerf::python {

// How this rank's part ended: nothing, or why.
using Leave = std::function<void(const Verdict&)>;

class RankGroup {
 public:
  // `local_ranks`: ranks that share this process's cores.
  RankGroup(comm::Group& group, std::shared_ptr<void> keep, Leave leave, int local_ranks)
      : group_(&group), keep_(std::move(keep)), leave_(std::move(leave)), local_ranks_(local_ranks) {}
  ~RankGroup() { close({}); }
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;
  RankGroup(RankGroup&&) = delete;
  RankGroup& operator=(RankGroup&&) = delete;

  // Error{usage} once this rank has left.
  [[nodiscard]] comm::Group& get() const;
  [[nodiscard]] int rank() const { return get().rank(); }
  [[nodiscard]] int size() const { return get().size(); }
  [[nodiscard]] int local_ranks() const { return local_ranks_; }
  [[nodiscard]] bool open() const { return open_; }
  // This rank takes part in nothing any more; waiting ranks are told `why`. Twice is once.
  void close(const Verdict& why) noexcept;

 private:
  comm::Group* group_;
  std::shared_ptr<void> keep_;
  Leave leave_;
  int local_ranks_;
  std::atomic<bool> open_{true};
};

}  // namespace kerf::python
