#include "cli/report.h"

namespace kerf::cli {

Json faults_json(const checkpoint::Faults& faults) {
  Json list = Json::array();
  for (const checkpoint::FaultGroup& group : faults.groups())
    list.push_back({{"kind", group.kind}, {"total", group.total}, {"first", group.first}});
  return list;
}

void print_faults(const checkpoint::Faults& faults, Output& out) {
  for (const checkpoint::FaultGroup& group : faults.groups()) {
    out.line("  {}: {}", group.kind, group.total);
    for (const std::string& place : group.first) out.line("    {}", place);
    const auto more = group.total - static_cast<std::int64_t>(group.first.size());
    if (more > 0) out.line("    and {} more", more);
  }
}

}  // namespace kerf::cli
