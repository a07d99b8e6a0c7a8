"""What a caller's own functions raise inside kerf, what one rank alone is refused, and runtimes that their logs refer to."""

from __future__ import annotations

import ctypes
import gc
import pathlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kerf
from kerf import _kerf


def on_ranks(ranks: int, body: Callable[[kerf.Group], Any], timeout: float = 20) -> list[Any]:
    """What each rank's body returns or raises. No rank's error is told to the others by leaving: they must know it."""
    groups = kerf.Group.local(ranks, timeout=timeout)
    results: list[Any] = [None] * ranks
    over = threading.Barrier(ranks)

    def run(group: kerf.Group) -> None:
        rank = group.rank
        try:
            results[rank] = body(group)
        except BaseException as error:
            results[rank] = error
        over.wait(timeout + 20)

    threads = [threading.Thread(target=run, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for group in groups:
        group.close()
    return results


@pytest.mark.parametrize("stage", ["loading", "resharding"])
@pytest.mark.parametrize("error", [ValueError("enough"), KeyboardInterrupt()])
def test_what_progress_raises_ends_the_build_on_every_rank(checkpoint: pathlib.Path, stage: str, error: BaseException) -> None:
    seen: list[str] = []

    def progress(at: str, done: int, of: int) -> None:
        seen.append(at)
        if at == stage:
            raise error

    raised = on_ranks(4 if stage == "loading" else 2, lambda group: build(checkpoint, group, progress=progress))
    assert raised[0] is error
    for other in raised[1:]:
        assert isinstance(other, kerf.UsageError), other
        assert f"rank 0: progress raised {type(error).__name__}" in str(other)
    assert seen.count(stage) == 1


def build(checkpoint: pathlib.Path, group: kerf.Group, **words: Any) -> kerf.Runtime:
    return kerf.Runtime.build(checkpoint, group, expert_tp=group.size == 2, **words)


def test_what_a_log_raises_ends_the_build_on_every_rank(checkpoint: pathlib.Path) -> None:
    lines: list[str] = []
    error = ValueError("no room for lines")

    def log(level: str, line: str) -> None:
        lines.append(line)
        raise error

    raised = on_ranks(2, lambda group: build(checkpoint, group, log=log if group.rank == 0 else None))
    assert raised[0] is error and len(lines) == 1
    assert isinstance(raised[1], kerf.UsageError) and "rank 0: ValueError: no room for lines" in str(raised[1])


@pytest.mark.parametrize(
    ("words", "kind", "text"),
    [
        (dict(max_tokens="eight"), kerf.UsageError, "max_tokens is 'eight'"),
        (dict(tail="slow"), kerf.UsageError, "tail is 'slow'"),
        (dict(threads=-1), kerf.UsageError, "threads is -1"),
        (dict(layers=7), TypeError, "not iterable"),
        (dict(log=3), kerf.UsageError, "log is 3, wanted a callable"),
        (dict(progress="x"), kerf.UsageError, "progress is 'x', wanted a callable"),
        (dict(all_reduce=lambda a, b: None), kerf.UsageError, "all_reduce is <function"),
        (dict(checkpoint="/nowhere"), kerf.CheckpointError, "/nowhere"),
        (dict(checkpoint=7), TypeError, "int"),
    ],
)
def test_what_one_rank_is_refused_all_are_told(checkpoint: pathlib.Path, words: dict[str, Any], kind: type, text: str) -> None:
    def rank(group: kerf.Group) -> None:
        own = {"checkpoint": checkpoint, "layers": [1], **(words if group.rank == 1 else {})}
        kerf.Runtime.build(own.pop("checkpoint"), group, **own)

    first, second, third = on_ranks(3, rank)
    assert isinstance(second, kind) and text in str(second), second
    for other in (first, third):
        assert type(other) is (kind if issubclass(kind, kerf.Error) else kerf.UsageError), other
        assert str(other).startswith("rank 1: ") and text in str(other), other


def test_what_one_rank_is_refused_in_a_refill_all_are_told(checkpoint: pathlib.Path) -> None:
    def rank(group: kerf.Group) -> list[str]:
        runtime = kerf.Runtime.build(checkpoint, group, layers=[1], expert_tp=True)
        told = []
        for source, layer in (("/nowhere", 1), (checkpoint, 99), (checkpoint, 2**70), (checkpoint, None), (3, 1)):
            try:
                runtime.refill(source if group.rank == 1 else checkpoint, layer if group.rank == 1 else 1)
            except (kerf.Error, TypeError) as error:
                told.append(f"{type(error).__name__}: {error}")
        runtime.refill(checkpoint, 1)
        return told

    first, second = on_ranks(2, rank)
    assert [text.split(":")[0] for text in second] == ["CheckpointError", "UsageError", "UsageError", "TypeError", "TypeError"]
    assert "wanted one of 1" in second[2] and str(2**70) in second[2]
    assert len(first) == 5 and all("rank 1: " in text for text in first), first
    assert first[0].startswith("CheckpointError: rank 1: /nowhere")


def test_what_one_rank_is_refused_in_adopt_all_are_told(checkpoint: pathlib.Path) -> None:
    class Broken:
        @property
        def experts(self) -> Any:
            raise RuntimeError("the engine's own")

        index, top_k, act = 1, 4, "nvfp4"
        finalises = captures_routes = False

    def rank(group: kerf.Group) -> list[str]:
        stock = kerf.Runtime.build(checkpoint, group, layers=[1])
        layer = kerf.StockLayer(1, stock.stock(1), top_k=4)
        told = []
        for layers, experts in ((["x"], 16), ([layer], "16"), ([Broken()], 16), ([layer], 0)):
            try:
                own = (layers, experts) if group.rank == 1 else ([layer], 16)
                kerf.Runtime.adopt(own[0], group, experts=own[1], top_k=4)
            except (kerf.Error, TypeError, RuntimeError) as error:
                told.append(f"{type(error).__name__}: {error}")
        kerf.Runtime.adopt([layer], group, experts=16, top_k=4)
        return told

    first, second = on_ranks(2, rank)
    assert len(first) == 4 and all("rank 1: " in text for text in first), first
    assert "layers[0] is 'x', wanted a kerf.StockLayer" in second[0]
    assert second[1].startswith("TypeError") and second[2] == "RuntimeError: the engine's own"
    assert "experts is 0" in second[3]


def test_what_one_rank_is_refused_of_expert_tp_all_are_told(checkpoint: pathlib.Path) -> None:
    def rank(group: kerf.Group) -> list[str]:
        runtime = kerf.Runtime.build(checkpoint, group, layers=[1], expert_tp=True)
        bad = group.rank == 1
        told = []
        for call in (
            lambda: kerf.expert_tp.reshard(runtime.stock(1), group, "16" if bad else 16),
            lambda: kerf.expert_tp.reshard(runtime.stock(1), group, 2**70 if bad else 16),
            lambda: kerf.expert_tp.probe(runtime, 2**70 if bad else 1),
            lambda: kerf.expert_tp.probe(runtime, 1, tokens=0 if bad else 4),
            lambda: kerf.expert_tp.probe(runtime, 1, limit=float("nan") if bad else 0.1),
        ):
            try:
                call()
            except (kerf.Error, TypeError) as error:
                told.append(f"{type(error).__name__}: {error}")
        assert kerf.expert_tp.probe(runtime, 1) < 0.01
        return told

    first, second = on_ranks(2, rank)
    assert len(first) == len(second) == 5
    assert all("rank 1: " in text for text in first), first
    assert [text.split(":")[0] for text in second] == ["TypeError"] + ["UsageError"] * 4


class Fabric:
    """An engine's collectives between threads; `broken` is raised by rank 1's when its turn has come."""

    def __init__(self, ranks: int, broken: BaseException | None = None, after: int = 0) -> None:
        self.meet = threading.Barrier(ranks)
        self.parts: dict[int, Any] = {}
        self.broken, self.after, self.calls = broken, after, 0

    def group(self, rank: int, size: int) -> kerf.Group:
        def exchange(mine: Any) -> dict[int, Any]:
            if self.broken is not None and rank == 1:
                self.calls += 1
                if self.calls > self.after:
                    self.meet.abort()
                    raise self.broken
            self.parts[rank] = mine
            self.meet.wait(20)
            everything = dict(self.parts)
            self.meet.wait(20)
            return everything

        def all_gather(mine: Any, everything: Any, what: str) -> None:
            parts = exchange(np.from_dlpack(Capsule(mine)).copy())
            write(everything, np.concatenate([parts[r] for r in range(size)]))

        def all_to_all(send: Any, send_bytes: list[int], received: Any, received_bytes: list[int], what: str) -> None:
            cuts = np.cumsum([0, *send_bytes])
            whole = np.from_dlpack(Capsule(send)).copy()
            parts = exchange([whole[cuts[r] : cuts[r + 1]] for r in range(size)])
            write(received, np.concatenate([parts[r][rank] for r in range(size)]))

        return _kerf.engine_group(rank, size, "fabric", all_gather, all_to_all, None, False, True, True, size, lambda: None)


def write(to: Any, values: np.ndarray) -> None:
    """numpy takes what comes without a version of DLPack for read-only."""
    array = np.from_dlpack(Capsule(to))
    assert array.nbytes == values.nbytes
    ctypes.memmove(array.ctypes.data, np.ascontiguousarray(values).ctypes.data, values.nbytes)


class Capsule:
    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def on_fabric(fabric: Fabric, body: Callable[[kerf.Group], Any]) -> list[Any]:
    results: list[Any] = [None, None]

    def run(rank: int) -> None:
        try:
            results[rank] = body(fabric.group(rank, 2))
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_an_engines_collectives_carry_a_runtime(checkpoint: pathlib.Path) -> None:
    def rank(group: kerf.Group) -> np.ndarray:
        runtime = kerf.Runtime.build(checkpoint, group, layers=[1], expert_tp=True)
        return np.array(runtime.execute(1, **kerf.decode_inputs(1, 5, "nvfp4", experts=16, hidden=256, top_k=4)))

    wanted = kerf.run_ranks(2, rank)[0]
    for rows in on_fabric(Fabric(2), rank):
        assert np.array_equal(rows, wanted)


@pytest.mark.parametrize("after", [0, 3, 9])
def test_what_an_engines_collective_raises_is_the_cause(checkpoint: pathlib.Path, after: int) -> None:
    error = ValueError("the fabric is torn")
    other, raised = on_fabric(
        Fabric(2, error, after), lambda group: kerf.Runtime.build(checkpoint, group, layers=[1], expert_tp=True)
    )
    assert isinstance(raised, kerf.GroupFailed) and raised.__cause__ is error
    assert "rank 1: the engine's" in str(raised) and "ValueError: the fabric is torn" in str(raised)
    assert isinstance(other, kerf.GroupFailed) and isinstance(other.__cause__, threading.BrokenBarrierError)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_inside_an_engines_collective_stays_one(checkpoint: pathlib.Path, kind: type[BaseException]) -> None:
    error = kind()
    groups: list[kerf.Group] = []

    def rank(group: kerf.Group) -> None:
        groups.append(group)
        kerf.Runtime.build(checkpoint, group, layers=[1], expert_tp=True)

    _, raised = on_fabric(Fabric(2, error, 5), rank)
    assert raised is error
    for group in groups:  # and what comes later is not taken for it
        with pytest.raises(kerf.GroupFailed) as later:
            group.barrier()
        assert later.value.__cause__ is None
    with pytest.raises(kerf.UsageError, match="a local group of 0 ranks"):
        kerf.Group.local(0)


class Engine:
    """What holds a runtime, and is referred to by the runtime's log and all-reduce."""

    def __init__(self, checkpoint: pathlib.Path) -> None:
        self.lines: list[str] = []
        self.runtime = kerf.Runtime.build(checkpoint, layers=[1], log=self.log, all_reduce=("engine", self.all_reduce))
        x = np.full((1, 256), 0x3F80, np.uint16)
        ids, weights = np.zeros((1, 4), np.int32), np.zeros((1, 4), np.float32)
        ids[0] = range(4)
        self.inputs = dict(x=x, ids=ids, weights=weights)
        self.step = self.runtime.bind(1, **self.inputs, out=np.empty_like(x))
        self.kept: Any = None

    def log(self, level: str, line: str) -> None:
        self.lines.append(line)

    def all_reduce(self, mine: Any, to: Any) -> None:
        np.asarray(to)[:] = np.asarray(mine)


KEPT = {
    "nothing": lambda engine: None,
    "a step": lambda engine: engine.step,
    "an array": lambda engine: engine.runtime.stock(1).w13,
    "numpy's view of it": lambda engine: np.asarray(engine.runtime.stock(1).w13),
    "rows": lambda engine: engine.runtime.routed_experts(1, **engine.inputs),
    "rows' array": lambda engine: engine.runtime.routed_experts(1, **engine.inputs).rows,
}


@pytest.mark.parametrize("kept", list(KEPT))
def test_a_runtime_that_its_log_refers_to_is_collected(checkpoint: pathlib.Path, kept: str) -> None:
    engine = Engine(checkpoint)
    engine.step()
    seen = weakref.ref(engine)
    keep = KEPT[kept](engine)
    if not isinstance(keep, np.ndarray):  # whose references the collector does not follow
        engine.kept = keep
    del engine
    gc.collect()
    if keep is not None:  # what one has is of use, and with it the runtime's log
        assert seen() is not None
        if kept == "a step":
            assert keep() is keep.out
        elif kept == "rows":
            assert keep.rows.nbytes > 0
        else:
            assert keep.nbytes > 0 and np.asarray(keep).any()
        del keep
        gc.collect()
    assert seen() is None


def test_a_runtime_in_use_is_not_collected(checkpoint: pathlib.Path) -> None:
    engine = Engine(checkpoint)
    for _ in range(3):
        gc.collect()
        engine.step()
    before = len(engine.lines)
    with pytest.raises(kerf.CheckpointError):
        engine.runtime.refill("/nowhere", 1)
    assert len(engine.lines) == before
