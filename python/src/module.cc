#include "src/bind.h"

NB_MODULE(_kerf, m) {
  m.doc() = "The compiled part of kerf. Its names are documented where the package exports them.";
  // Objects that are still referred to when the interpreter ends are no fault of the program's.
  nanobind::set_leak_warnings(false);
  kerf::python::watch_the_interpreter();
  kerf::python::bind_errors(m);
  kerf::python::bind_commands(m);
  kerf::python::bind_arrays(m);
  kerf::python::bind_groups(m);
  kerf::python::bind_engine_group(m);
  kerf::python::bind_experts(m);
  kerf::python::bind_runtime(m);
  kerf::python::bind_expert_tp(m);
  kerf::python::bind_inputs(m);
}
