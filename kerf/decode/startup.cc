#include "kerf/decode/startup.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "kerf/comm/agree.h"
#include "kerf/comm/group.h"

namespace kerf::decode {

Startup slowest(const Startup& mine, comm::Group& group) {
  constexpr std::array stages = {&Startup::check,  &Startup::convert, &Startup::read,
                                 &Startup::blocks, &Startup::reshard, &Startup::probe,
                                 &Startup::plan,   &Startup::tune,    &Startup::warm_up};
  std::array<double, stages.size()> seconds{};
  for (std::size_t i = 0; i < stages.size(); ++i) seconds[i] = mine.*stages[i];
  const std::vector<double> all =
      comm::gathered(group, std::span<const double>(seconds), "the start's times");
  Startup out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    double& most = out.*stages[i % stages.size()];
    most = std::max(most, all[i]);
  }
  for (const std::int64_t bytes : comm::gathered(group, std::span(&mine.bytes, 1), "the start's bytes"))
    out.bytes += bytes;
  for (const std::int64_t bytes : comm::gathered(group, std::span(&mine.read_bytes, 1), "the bytes read"))
    out.read_bytes += bytes;
  return out;
}

}  // namespace kerf::decode
