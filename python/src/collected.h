// Types whose objects may be part of a cycle of references, which Python's collector then finds.
#pragma once

#include <array>

#include "src/bind.h"

namespace kerf::python {

// The slots of a type T with show(visitproc, void*), which visits what it refers to, and let_go().
template <typename T>
const std::array<PyType_Slot, 3>& collected() {
  constexpr traverseproc traverse = [](PyObject* self, visitproc visit, void* arg) -> int {
    Py_VISIT(Py_TYPE(self));
    return nb::inst_ready(self) ? nb::inst_ptr<T>(self)->show(visit, arg) : 0;
  };
  constexpr inquiry clear = [](PyObject* self) -> int {
    if (nb::inst_ready(self)) nb::inst_ptr<T>(self)->let_go();
    return 0;
  };
  static const std::array<PyType_Slot, 3> slots = {{{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                                    {Py_tp_clear, reinterpret_cast<void*>(clear)},
                                                    {0, nullptr}}};
  return slots;
}

}  // namespace kerf::python
