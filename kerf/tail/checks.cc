#include "kerf/tail/internal/checks.h"

#include "kerf/base/format.h"

namespace kerf::tail::internal {

void check_size(const char* name, std::size_t got, std::int64_t wanted) {
  if (static_cast<std::int64_t>(got) != wanted)
    fail(ErrorKind::bug, "tail: {} has {} elements, wanted {}", name, got, wanted);
}

void check(const Call& call, std::size_t held) {
  const op::Unfinalized& rows = call.rows;
  if (rows.tokens < 0 || rows.top_k < 1 || rows.hidden < 1)
    fail(ErrorKind::bug, "tail: {} tokens of {} routes, width {}", rows.tokens, rows.top_k, rows.hidden);
  const std::int64_t routes = rows.tokens * rows.top_k;
  check_size("weights", rows.weights.size(), routes);
  check_size("map", rows.map.size(), routes);
  check_size("out", call.out.size(), rows.tokens * rows.hidden);
  if (call.norm && !call.norm->gain.empty()) check_size("gain", call.norm->gain.size(), rows.hidden);
  const std::int64_t n = static_cast<std::int64_t>(held) / rows.hidden;
  for (std::int64_t i = 0; i < routes; ++i) {
    const std::int64_t row = rows.map[static_cast<std::size_t>(i)];
    if (row < -1 || row >= n)
      fail(ErrorKind::bug, "tail: token {} route {} is row {} of {} rows", i / rows.top_k, i % rows.top_k,
           row, n);
  }
  check_room(
      "values", call.scratch.values,
      std::int64_t{call.workers.size()} * 2 * call.rows.hidden * static_cast<std::int64_t>(sizeof(float)));
}

void check_room(const char* name, const tensor::Tensor& tensor, std::int64_t wanted) {
  if (static_cast<std::int64_t>(tensor.bytes().size()) < wanted)
    fail(ErrorKind::bug, "tail: scratch {} has {} bytes, {} wanted", name, tensor.bytes().size(), wanted);
}

}  // namespace kerf::tail::internal
