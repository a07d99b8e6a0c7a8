#include "kerf/comm/internal/ended.h"

#include <algorithm>

#include "kerf/base/format.h"

namespace kerf::comm::internal {

Verdict root_cause(std::span<const Ended> ends, int me) {
  const auto own = std::ranges::find_if(ends, [](const Ended& e) { return e.reason && !e.group_failed; });
  const auto any = std::ranges::find_if(ends, [](const Ended& e) { return e.reason.has_value(); });
  const auto found = own != ends.end() ? own : any;
  if (found == ends.end()) return std::nullopt;
  const auto rank = static_cast<int>(found - ends.begin());
  const bool alone = !std::ranges::all_of(ends, [&](const Ended& e) { return e.reason == found->reason; });
  if (found == own && alone && rank != me)
    return because(found->reason->kind, "rank {}: {}", rank, found->reason->text);
  return found->reason;
}

Verdict settled_cause(std::span<const Ended> ends, int me, std::span<const int> missing,
                      std::chrono::milliseconds waited) {
  Verdict cause = root_cause(ends, me);
  if (missing.empty()) return cause;
  const std::string who =
      fmt::format("{} {}", missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "));
  if (!cause)
    return because(ErrorKind::peer, "{} did not reach the end within {:g} s", who,
                   std::chrono::duration<double>(waited).count());
  const bool own_reason =
      std::ranges::any_of(ends, [](const Ended& e) { return e.reason && !e.group_failed; });
  // Whoever still waited for a missing rank was late for the others, who name both.
  if (!own_reason)
    return Reason{cause->kind, fmt::format("{} did not say how it ended: {}", who, cause->text)};
  return cause;
}

}  // namespace kerf::comm::internal
