// The list of backends: the only place that knows them all.
#include <vector>

#include "kerf/base/format.h"
#include "kerf/op/cpu/cpu.h"
#include "kerf/op/op.h"
#include "kerf/op/reference/reference.h"
#include "kerf/op/sm90/sm90.h"

namespace kerf::op {

namespace {
std::vector<const Backend*> all() {
  std::vector<const Backend*> out = {&reference::backend()};
  for (const Backend* b : cpu::backends()) out.push_back(b);
  for (const Backend* b : sm90::backends()) out.push_back(b);
  return out;
}
}  // namespace

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const Backend* b : all()) names.emplace_back(b->name());
  return names;
}

const Backend& backend(std::string_view name) {
  for (const Backend* b : all())
    if (b->name() == name) return *b;
  if (name == sm90::backend_name)
    if (const Verdict why = sm90::absent()) fail(why->kind, "backend '{}': {}", name, why->text);
  fail(ErrorKind::usage, "no backend is named '{}'; there are: {}", name, fmt::join(backend_names(), ", "));
}

}  // namespace kerf::op
