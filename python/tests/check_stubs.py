#!/usr/bin/env python3
"""Checks the installed package: typed, a stub that names what the compiled part has, and words on everything public.

  check_stubs.py    exit 1 and one line a fault
"""
import importlib.resources
import inspect
import sys

import kerf
import kerf._kerf
import kerf.torch_group


def undocumented(where, thing):
    """Public names of a module or class that have no words."""
    faults = []
    for name, member in vars(thing).items():
        if name.startswith("_") or inspect.ismodule(member):
            continue
        if inspect.isclass(member) or callable(member) or isinstance(member, (property, staticmethod, classmethod)):
            words = inspect.getdoc(getattr(thing, name)) if not isinstance(member, property) else member.__doc__
            if not words and getattr(member, "__module__", "kerf").startswith("kerf"):
                faults.append(f"{where}.{name}: no docstring")
    return faults


def check():
    files = importlib.resources.files("kerf")
    faults = [f"kerf/{name} is not installed" for name in ("py.typed", "_kerf.pyi") if not (files / name).is_file()]
    if faults:
        return faults
    stub = (files / "_kerf.pyi").read_text()
    for name in vars(kerf._kerf):
        if not name.startswith("_") and f"def {name}(" not in stub and f"class {name}" not in stub and f"{name}:" not in stub:
            faults.append(f"_kerf.pyi does not name {name}")
    for module in (kerf, kerf.expert_tp, kerf.flashinfer, kerf.group, kerf.torch_group):
        if not module.__doc__:
            faults.append(f"{module.__name__}: no docstring")
        for name in getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")]):
            member = getattr(module, name)
            if inspect.isclass(member) and member.__module__.startswith("kerf"):
                if not member.__doc__:
                    faults.append(f"{module.__name__}.{name}: no docstring")
                faults += undocumented(f"{module.__name__}.{name}", member)
            elif inspect.isfunction(member) and not member.__doc__:
                faults.append(f"{module.__name__}.{name}: no docstring")
    return sorted(set(faults))


if __name__ == "__main__":
    found = check()
    for fault in found:
        print(fault)
    if not found:
        print("stubs: no faults")
    sys.exit(1 if found else 0)
