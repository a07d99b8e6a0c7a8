// The list of backends: the only place that knows them all.
#include <vector>

#include "kerf/base/format.h"
#include "kerf/cuda/library.h"
#include "kerf/op/cpu/cpu.h"
#include "kerf/op/op.h"
#include "kerf/op/reference/reference.h"
#include "kerf/op/sm90/sm90.h"

namespace kerf::op {

namespace {
// Those that need no device: nobody is asked for one on the way to them.
std::vector<const Backend*> of_the_host() {
  std::vector<const Backend*> out = {&reference::backend()};
  for (const Backend* b : cpu::backends()) out.push_back(b);
  return out;
}
std::vector<std::string> names(const std::vector<const Backend*>& backends) {
  std::vector<std::string> out;
  for (const Backend* b : backends) out.emplace_back(b->name());
  return out;
}
}  // namespace

std::vector<std::string> backend_names() {
  std::vector<const Backend*> all = of_the_host();
  for (const Backend* b : sm90::backends()) all.push_back(b);
  return names(all);
}

std::vector<std::string> built_backend_names() {
  std::vector<std::string> all = names(of_the_host());
  if (cuda::built()) all.emplace_back(sm90::backend_name);
  return all;
}

const Backend& backend(std::string_view name) {
  for (const Backend* b : of_the_host())
    if (b->name() == name) return *b;
  if (name == sm90::backend_name) {
    if (const Verdict why = cuda::library()) fail(why->kind, "backend '{}': {}", name, why->text);
    return *sm90::backends().front();
  }
  fail(ErrorKind::usage, "no backend is named '{}'; there are: {}", name,
       fmt::join(built_backend_names(), ", "));
}

}  // namespace kerf::op
