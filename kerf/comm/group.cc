#include "kerf/comm/group.h"

#include <vector>

namespace kerf::comm {

void all_to_all(Group& group, std::span<const tensor::StridedBytes> send, std::span<std::byte> received,
                std::string_view what) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::size_t part = received.size() / ranks;
  std::vector<std::span<std::byte>> parts(ranks);
  for (std::size_t s = 0; s < ranks; ++s) parts[s] = received.subspan(s * part, part);
  group.all_to_all(send, parts, what);
}

}  // namespace kerf::comm
