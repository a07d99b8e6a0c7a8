#include "kerf/comm/group.h"

#include <vector>

#include "kerf/base/format.h"

namespace kerf::comm {

void Group::lend(std::span<const std::byte> /*mine*/, FunctionRef<void(Lent)> /*work*/,
                 std::string_view what) {
  fail(ErrorKind::bug, "'{}': the ranks of a group '{}' share no memory", what, name());
}

void all_to_all(Group& group, std::span<const tensor::StridedBytes> send, std::span<std::byte> received,
                std::string_view what) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::size_t part = received.size() / ranks;
  if (part * ranks != received.size())
    throw GroupFailed(ErrorKind::bug,
                      fmt::format("'{}': {} bytes to receive from {} ranks, wanted equal parts", what,
                                  received.size(), ranks));
  std::vector<std::span<std::byte>> parts(ranks);
  for (std::size_t s = 0; s < ranks; ++s) parts[s] = received.subspan(s * part, part);
  group.all_to_all(send, parts, what);
}

}  // namespace kerf::comm
