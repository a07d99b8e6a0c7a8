"""What can fail says how: every public function's docstring names its errors, or is known to have none of its own."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator

import kerf
import kerf.commands
import kerf.torch_group

MODULES = (kerf, kerf.commands, kerf.errors, kerf.expert_tp, kerf.flashinfer, kerf.group, kerf.torch_group)

# What raises nothing of its own beside what its arguments' types say, or tells of errors in its class's docstring.
WITHOUT = {
    "kerf.errors.of_kind",
    "Array.tobytes",
    "Group.barrier",  # "GroupFailed, which names the missing rank"
    "Group.close",
    "Group.from_torch",  # torch_group's
    "Group.local",
    "Group.mpi",
    "Checkpoint.kind",
    "Checkpoint.open",
    "Runtime.adopt",
    "Runtime.all_reduce",
    "Runtime.bind",
    "Runtime.build",
    "Runtime.execute",
    "Runtime.execute_block",
    "Runtime.execute_unprepared",
    "Runtime.is_bf16",
    "Runtime.is_expert_tp",
    "Runtime.plan",
    "Runtime.refill",
    "Runtime.routed_experts",
    "Runtime.routed_experts_bf16",
    "Runtime.sliced",
    "Runtime.stock",
    "Runtime.tail",
    "Runtime.warm_up",
    "kerf.empty",
    "kerf.group.run_ranks",
    "kerf.run_ranks",
    "kerf.torch_group.from_torch",
}


def public() -> Iterator[tuple[str, object]]:
    """Functions of the modules, and methods of their classes, each under the name that users have for it."""
    for module in MODULES:
        for name in getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")]):
            member = getattr(module, name)
            if not getattr(member, "__module__", "").startswith("kerf"):
                continue
            if inspect.isclass(member):
                for attribute, value in vars(member).items():
                    if not attribute.startswith("_") and callable(getattr(member, attribute)) and not inspect.isclass(value):
                        yield f"{member.__name__}.{attribute}", getattr(member, attribute)
            elif isinstance(member, types.FunctionType) and member.__module__ != module.__name__ and module is not kerf:
                continue  # another module's
            elif callable(member):
                yield f"{module.__name__}.{name}", member


def test_functions_name_their_errors() -> None:
    found = dict(public())
    assert {"kerf.convert", "kerf.decode", "kerf.expert_tp.probe", "Router.select", "Runtime.execute"} <= set(found)
    silent = {name for name, thing in found.items() if "Raises" not in (inspect.getdoc(thing) or "")}
    assert silent <= WITHOUT, sorted(silent - WITHOUT)
    assert WITHOUT <= set(found), sorted(WITHOUT - set(found))


def test_the_router_says_what_its_numbers_are() -> None:
    for name in ("method", "experts", "top_k"):
        words = inspect.getdoc(getattr(kerf.Router, name)) or ""
        assert len(words.split()) >= 4, (name, words)
    assert "float32 [T, E]" in (kerf.Router.select.__doc__ or "")


def test_flashinfers_version_is_named() -> None:
    assert "FlashInfer 0.6.12" in (kerf.flashinfer.__doc__ or "")
