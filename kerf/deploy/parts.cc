#include "kerf/deploy/parts.h"

#include <string>

#include "kerf/base/env.h"
#include "kerf/base/format.h"
#include "kerf/comm/mpi.h"
#include "kerf/comm/nccl.h"
#include "kerf/cuda/library.h"

namespace kerf::deploy {

namespace {

// What every build has.
std::string_view always(std::string_view what) { return what == "group" ? "local" : "cpu"; }

}  // namespace

std::vector<Part> optional_parts() {
  return {
      {"cuda", "device", cuda::built(), cuda::library},
      {"mpi", "group", !comm::mpi_absent(), comm::mpi_absent},
      {"nccl", "group", cuda::built(),
       [] { return comm::nccl_absent(env_value("KERF_NCCL_LIBRARY").value_or("")); }},
  };
}

Verdict lacking(std::string_view what, std::string_view name) {
  if (name == always(what)) return std::nullopt;
  std::string names(always(what));
  for (const Part& part : optional_parts()) {
    if (part.what != what) continue;
    if (part.name == name) {
      const Verdict why = part.absent();
      if (!why) return std::nullopt;
      return because(why->kind, "{} {}: {}; it has the {} '{}'", what, name, why->text, what, always(what));
    }
    names += fmt::format(", {}", part.name);
  }
  return because(ErrorKind::usage, "there is no {} '{}'; there are {}", what, name, names);
}

}  // namespace kerf::deploy
