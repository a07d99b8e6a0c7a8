// The compiled part of the package, by subject: each file of this folder adds its names to the module.
//
// All of nanobind's casters that any file uses are included here and nowhere else: a file that lacked one
// would make another function under the same name, of which the linker keeps either.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "kerf/kerf.h"
#include "src/lock.h"

namespace kerf::python {

namespace nb = nanobind;

// As messages' levels are called in Python.
inline const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return "debug";
    case LogLevel::info:
      return "info";
    case LogLevel::warning:
      break;
  }
  return "warning";
}

void bind_errors(nb::module_& m);
void bind_commands(nb::module_& m);
void bind_arrays(nb::module_& m);
void bind_groups(nb::module_& m);
void bind_engine_group(nb::module_& m);
void bind_experts(nb::module_& m);
void bind_runtime(nb::module_& m);
void bind_expert_tp(nb::module_& m);
void bind_inputs(nb::module_& m);

}  // namespace kerf::python
