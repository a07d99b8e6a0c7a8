// Where experts must be before they can be cut, and whether they are.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/expert_tp/expert_tp.h"
#include "kerf/layout/geometry.h"

namespace kerf::expert_tp {

namespace {

constexpr std::size_t kMostListed = 5;

std::string times(std::int64_t count) {
  return count == 2 ? std::string("twice") : fmt::format("{} times", count);
}

// What is right for `rank`, for the end of a reason.
std::string linear(int rank, std::int64_t each) {
  return fmt::format("linear placement gives rank {} experts {} to {}", rank, rank * each,
                     (rank + 1) * each - 1);
}

// "expert 1 twice, expert 3 absent"; empty where every expert is held once.
std::string census(std::span<const std::vector<std::int64_t>> held, std::int64_t num_experts) {
  std::map<std::int64_t, std::int64_t> counts;
  for (const auto& list : held)
    for (const std::int64_t e : list) ++counts[e];
  std::vector<std::string> faults;
  for (const auto& [e, count] : counts) {
    if (e < 0 || e >= num_experts)
      faults.push_back(fmt::format("expert {} is not one of {}", e, num_experts));
    else if (count > 1)
      faults.push_back(fmt::format("expert {} {}", e, times(count)));
  }
  for (std::int64_t e = 0; e < num_experts && faults.size() <= kMostListed; ++e)
    if (!counts.contains(e)) faults.push_back(fmt::format("expert {} absent", e));
  if (faults.size() > kMostListed) {
    faults.resize(kMostListed);
    faults.emplace_back("and more");
  }
  return fmt::format("{}", fmt::join(faults, ", "));
}

// The same for the experts first, first + 1, ... of a rank, without a list of them.
Verdict misplaced_range(std::int64_t first, std::int64_t count, int rank, int ranks,
                        std::int64_t num_experts) {
  if (Verdict verdict = layout::placeable(num_experts, ranks)) return verdict;
  const std::int64_t each = num_experts / ranks;
  if (count != each)
    return because(ErrorKind::unsupported, "rank {} holds {} experts, {} ranks x {} is not {} experts; {}",
                   rank, count, ranks, count, num_experts, linear(rank, each));
  if (first != rank * each)
    return because(ErrorKind::unsupported, "rank {} holds expert {} where linear placement has {}; {}", rank,
                   first, rank * each, linear(rank, each));
  return std::nullopt;
}

}  // namespace

Verdict misplaced(const layout::Nvfp4View& stock, int rank, int ranks, std::int64_t num_experts) {
  layout::ExpertsShape shape;
  if (Verdict verdict = attempt([&] { shape = layout::shape_of(stock); })) return verdict;
  return misplaced_range(stock.first_expert, shape.experts, rank, ranks, num_experts);
}

Verdict misplaced_experts(std::span<const std::int64_t> held, int rank, int ranks, std::int64_t num_experts) {
  const auto count = static_cast<std::int64_t>(held.size());
  const std::int64_t first = held.empty() ? 0 : held.front();
  if (Verdict verdict = misplaced_range(first, count, rank, ranks, num_experts)) return verdict;
  for (std::int64_t i = 0; i < count; ++i)
    if (const std::int64_t e = held[static_cast<std::size_t>(i)]; e != first + i)
      return because(ErrorKind::unsupported, "rank {} holds expert {} where linear placement has {}; {}",
                     rank, e, first + i, linear(rank, count));
  return std::nullopt;
}

Verdict misplaced_experts(std::span<const std::vector<std::int64_t>> held, std::int64_t num_experts) {
  const int ranks = static_cast<int>(held.size());
  for (int r = 0; r < ranks; ++r) {
    Verdict verdict = misplaced_experts(held[static_cast<std::size_t>(r)], r, ranks, num_experts);
    if (!verdict) continue;
    if (const std::string faults = census(held, num_experts); !faults.empty())
      verdict->text += fmt::format("; {}", faults);
    return verdict;
  }
  return std::nullopt;
}

}  // namespace kerf::expert_tp
