#include "kerf/comm/all_reduce.h"

#include <algorithm>
#include <array>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/comm/internal/reduce.h"

namespace kerf::comm {

namespace {

enum class Path : std::uint8_t { one_shot, two_shot, by_size };

// MNNVL's own limit for its one-shot kernel: bytes of all ranks' values.
constexpr std::int64_t kMostOneShotBytes = std::int64_t{1} << 20;

// Which numbers of ranks a kernel is built for.
enum class Ranks : std::uint8_t { any, two_or_more, powers_of_two_to_16 };

struct Named {
  std::string_view name;
  Path path;
  SumOrder one_shot, two_shot;  // the order on either path
  Ranks ranks;
};

constexpr std::array kNamed = {
    Named{"one-shot", Path::one_shot, SumOrder::rank_order, SumOrder::rank_order, Ranks::any},
    Named{"two-shot", Path::two_shot, SumOrder::rank_order, SumOrder::rank_order, Ranks::any},
    Named{"mnnvl", Path::by_size, SumOrder::chunks_of_8, SumOrder::chunks_of_16, Ranks::two_or_more},
    Named{"mnnvl-one-shot", Path::one_shot, SumOrder::chunks_of_8, SumOrder::chunks_of_8, Ranks::two_or_more},
    Named{"mnnvl-two-shot", Path::two_shot, SumOrder::chunks_of_16, SumOrder::chunks_of_16,
          Ranks::two_or_more},
    Named{"trtllm", Path::by_size, SumOrder::each_add, SumOrder::each_add, Ranks::powers_of_two_to_16},
    Named{"trtllm-fp32", Path::by_size, SumOrder::rank_order, SumOrder::rank_order,
          Ranks::powers_of_two_to_16},
};

// All-reduces that exist elsewhere and whose bits cannot be had.
struct Refused {
  std::string_view name, reason;
};
constexpr std::array kRefused = {
    Refused{"nccl", "the order of its sum depends on topology and size and is not documented"},
    Refused{"trtllm-lamport-norm",
            "it begins at each rank's own value, so that ranks end with different bits"},
};

// Part r of n values that `ranks` parts share: [n * r / ranks, n * (r + 1) / ranks).
struct Part {
  std::size_t first, count;
};
Part part_of(std::size_t n, std::size_t ranks, std::size_t r) {
  const std::size_t first = n * r / ranks;
  return {first, n * (r + 1) / ranks - first};
}
std::size_t longest_part(std::size_t n, std::size_t ranks) { return (n + ranks - 1) / ranks; }

tensor::StridedBytes block(std::span<const std::uint16_t> values) {
  const auto bytes = static_cast<std::int64_t>(values.size_bytes());
  return {std::as_bytes(values).data(), 1, bytes, 1, bytes, bytes};
}

using Terms = std::array<const std::uint16_t*, most_all_reduce_ranks>;

// sum = the terms of all ranks, which lie `stride` values apart.
void add(std::span<const std::uint16_t> terms, std::size_t stride, std::size_t ranks, SumOrder order,
         std::span<std::uint16_t> sum) {
  const FpGuard guard;
  Terms at{};
  for (std::size_t r = 0; r < ranks; ++r) at[r] = terms.data() + r * stride;
  internal::sum_run(std::span(at).first(ranks), 0, sum, order);
}

void one_shot(Group& group, std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum,
              std::span<std::uint16_t> scratch, SumOrder order, std::string_view what) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto all = scratch.first(ranks * mine.size());
  group.all_gather(std::as_bytes(mine), std::as_writable_bytes(all), what);
  add(all, mine.size(), ranks, order, sum);
}

// Unequal parts where the values do not divide, so both exchanges are all-to-alls.
void two_shot(Group& group, std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum,
              std::span<std::uint16_t> scratch, SumOrder order, std::string_view what) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const Part own = part_of(mine.size(), ranks, static_cast<std::size_t>(group.rank()));
  const auto all = scratch.first(ranks * own.count);
  const auto added = scratch.subspan(all.size(), own.count);
  std::array<tensor::StridedBytes, most_all_reduce_ranks> send;
  std::array<std::span<std::byte>, most_all_reduce_ranks> received;
  for (std::size_t r = 0; r < ranks; ++r) {
    const Part theirs = part_of(mine.size(), ranks, r);
    send[r] = block(mine.subspan(theirs.first, theirs.count));
    received[r] = std::as_writable_bytes(all.subspan(r * own.count, own.count));
  }
  group.all_to_all(std::span(send).first(ranks), std::span(received).first(ranks), what);
  add(all, own.count, ranks, order, added);
  // From here on nobody reads `mine`, which `sum` may be.
  for (std::size_t r = 0; r < ranks; ++r) {
    const Part theirs = part_of(mine.size(), ranks, r);
    send[r] = block(added);
    received[r] = std::as_writable_bytes(sum.subspan(theirs.first, theirs.count));
  }
  group.all_to_all(std::span(send).first(ranks), std::span(received).first(ranks), what);
}

class NamedAllReduce final : public AllReduce {
 public:
  constexpr explicit NamedAllReduce(const Named& named) : named_(named) {}

  [[nodiscard]] std::string_view name() const override { return named_.name; }

  [[nodiscard]] Verdict supports(const AllReduceShape& shape) const override {
    if (shape.values < 0)
      return because(ErrorKind::usage, "all-reduce '{}' of {} values", named_.name, shape.values);
    const int least = named_.ranks == Ranks::any ? 1 : 2;
    if (named_.ranks == Ranks::powers_of_two_to_16) {
      for (const int legal : {2, 4, 8, 16})
        if (shape.ranks == legal) return std::nullopt;
      return because(ErrorKind::unsupported, "all-reduce '{}' takes 2, 4, 8 or 16 ranks, not {}", named_.name,
                     shape.ranks);
    }
    if (shape.ranks < least || shape.ranks > most_all_reduce_ranks)
      return because(ErrorKind::unsupported, "all-reduce '{}' takes {} to {} ranks, not {}", named_.name,
                     least, most_all_reduce_ranks, shape.ranks);
    return std::nullopt;
  }

  [[nodiscard]] SumOrder order(const AllReduceShape& shape) const override {
    const SumOrder order = takes_one_shot(shape) ? named_.one_shot : named_.two_shot;
    const bool one_chunk = (order == SumOrder::chunks_of_8 && shape.ranks <= 8) ||
                           (order == SumOrder::chunks_of_16 && shape.ranks <= 16);
    return one_chunk ? SumOrder::rank_order : order;
  }

  [[nodiscard]] std::size_t scratch_values(const AllReduceShape& shape) const override {
    const auto ranks = static_cast<std::size_t>(shape.ranks);
    const auto parts = (ranks + 1) * longest_part(static_cast<std::size_t>(shape.values), ranks);
    if (named_.path == Path::two_shot) return parts;
    const std::int64_t most = named_.path == Path::one_shot ? shape.values : most_one_shot(shape.ranks);
    const auto all = ranks * static_cast<std::size_t>(std::min(shape.values, most));
    return takes_one_shot(shape) ? all : std::max(all, parts);
  }

  void run(Group& group, std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum,
           std::span<std::uint16_t> scratch, std::string_view what) const override {
    const AllReduceShape shape{group.size(), static_cast<std::int64_t>(mine.size())};
    require(supports(shape));
    if (sum.size() != mine.size())
      fail(ErrorKind::usage, "all-reduce '{}' of {} values into {}", what, mine.size(), sum.size());
    if (scratch.size() < scratch_values(shape))
      fail(ErrorKind::usage, "all-reduce '{}' with scratch for {} values, wanted {}", what, scratch.size(),
           scratch_values(shape));
    (takes_one_shot(shape) ? one_shot : two_shot)(group, mine, sum, scratch, order(shape), what);
  }

 private:
  [[nodiscard]] bool takes_one_shot(const AllReduceShape& shape) const {
    if (named_.path != Path::by_size) return named_.path == Path::one_shot;
    return shape.values <= most_one_shot(shape.ranks);
  }
  static std::int64_t most_one_shot(int ranks) { return kMostOneShotBytes / (2 * std::int64_t{ranks}); }

  Named named_;
};

template <std::size_t... Index>
const AllReduce* find(std::string_view name, std::index_sequence<Index...> /*unused*/) {
  static const std::array<NamedAllReduce, sizeof...(Index)> all = {NamedAllReduce(kNamed[Index])...};
  const auto at = std::find_if(all.begin(), all.end(), [&](const auto& a) { return a.name() == name; });
  return at == all.end() ? nullptr : &*at;
}

}  // namespace

std::string_view name(SumOrder order) {
  switch (order) {
    case SumOrder::chunks_of_8:
      return "chunks-of-8";
    case SumOrder::chunks_of_16:
      return "chunks-of-16";
    case SumOrder::each_add:
      return "each-add";
    case SumOrder::rank_order:
      break;
  }
  return "rank-order";
}

std::vector<std::string> all_reduce_names() {
  std::vector<std::string> names;
  names.reserve(kNamed.size());
  for (const Named& named : kNamed) names.emplace_back(named.name);
  return names;
}

const AllReduce& all_reduce(std::string_view name) {
  if (const AllReduce* found = find(name, std::make_index_sequence<kNamed.size()>())) return *found;
  for (const Refused& refused : kRefused)
    if (refused.name == name)
      fail(ErrorKind::unsupported, "all-reduce '{}' cannot be met: {}", name, refused.reason);
  fail(ErrorKind::usage, "no all-reduce is named '{}'; there are: {}", name,
       fmt::join(all_reduce_names(), ", "));
}

SumOrder sum_order(std::string_view name, const AllReduceShape& shape) {
  const AllReduce& named = all_reduce(name);
  require(named.supports(shape));
  return named.order(shape);
}

}  // namespace kerf::comm
