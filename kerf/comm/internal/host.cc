#include "kerf/comm/internal/host.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <vector>

#include "kerf/comm/agree.h"

namespace kerf::comm::internal {

namespace {

// A host's name, and the cores that a process may run on: equal bytes, equal cores.
struct Where {
  std::array<char, 256> host{};
  cpu_set_t cores{};
};

}  // namespace

ProgramHost host_of(Group& group, std::string_view name) {
  Where mine;
  std::copy_n(name.begin(), std::min(name.size(), mine.host.size() - 1), mine.host.begin());
  (void)sched_getaffinity(0, sizeof(mine.cores), &mine.cores);
  const std::vector<Where> all = gathered(group, std::span<const Where>(&mine, 1), "the ranks' hosts");
  ProgramHost out{0, 0, 0};
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].host != mine.host) continue;
    if (static_cast<int>(r) < group.rank()) ++out.rank;
    ++out.ranks;
    if (CPU_EQUAL(&all[r].cores, &mine.cores)) ++out.sharers;
  }
  return out;
}

}  // namespace kerf::comm::internal
