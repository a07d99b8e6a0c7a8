"""What ends while something is still going on: groups closed from outside, interrupts, the interpreter, forked children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import kerf


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("waiting", [0, 1])
def test_a_group_closed_from_outside_ends_its_calls(ranks: int, waiting: int) -> None:
    """All ranks but `waiting` of them are inside a barrier when another thread closes them all."""
    for _ in range(20):
        groups = kerf.Group.local(ranks)
        raised: list[BaseException | None] = [None] * ranks
        inside = threading.Barrier(ranks - waiting + 1)

        def rank(index: int) -> None:
            try:
                inside.wait()
                groups[index].barrier("a meeting")
            except BaseException as error:
                raised[index] = error

        threads = [threading.Thread(target=rank, args=(index,)) for index in range(ranks - waiting)]
        for thread in threads:
            thread.start()
        inside.wait()
        begun = time.monotonic()
        for group in groups:
            group.close("no longer wanted")
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert time.monotonic() - begun < 10
        for error in raised[: ranks - waiting] if waiting and ranks > 1 else []:
            assert isinstance(error, (kerf.GroupFailed, kerf.UsageError))
            assert "no longer wanted" in str(error) or "left" in str(error)
        with pytest.raises(kerf.UsageError, match="has left"):
            groups[0].barrier()


def test_an_interrupt_ends_all_ranks() -> None:
    seen: list[str] = []
    main = threading.main_thread().ident

    def rank(group: kerf.Group) -> None:
        try:
            if group.rank == 2:
                time.sleep(0.3)
                signal.pthread_kill(main, signal.SIGINT)
                time.sleep(0.5)
            group.barrier("a meeting that rank 2 is late for")
            group.barrier("another")
            while time.monotonic() < begun + 30:
                group.barrier("more")
        except kerf.Error as error:
            seen.append(str(error))
            raise

    begun = time.monotonic()
    # Who starts Python in the background may have told it to ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            kerf.run_ranks(3, rank)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begun < 10
    assert len(seen) == 3 and any("interrupted (KeyboardInterrupt)" in text for text in seen), seen


def test_two_threads_inside_one_ranks_group() -> None:
    first, second = kerf.Group.local(2)
    waiting = threading.Thread(target=lambda: first.barrier("the first"))
    waiting.start()
    time.sleep(0.2)
    with pytest.raises(kerf.UsageError, match="another thread is inside a call of this rank's group"):
        first.barrier("the second")
    second.barrier("the first")
    waiting.join()
    first.close()
    second.close()


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize("error", [RuntimeError("cannot read " + os.fsdecode(b"/no/\xff")), Wordless()])
def test_a_rank_leaves_whatever_its_error_says(error) -> None:
    def rank(group: kerf.Group) -> None:
        if group.rank == 1:
            raise error
        group.barrier("a meeting")

    begun = time.monotonic()
    with pytest.raises(type(error)):
        kerf.run_ranks(2, rank)
    groups = kerf.Group.local(2)
    with pytest.raises(type(error)), groups[1]:
        raise error
    assert not groups[1].is_open
    with pytest.raises(kerf.GroupFailed):
        groups[0].barrier()
    assert time.monotonic() - begun < 10


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60)


def test_the_interpreter_ends_beside_threads_that_are_inside() -> None:
    """Daemon threads come back from a call while the interpreter ends: nothing is torn down under them."""
    done = run(
        """
import sys, threading, time, kerf
def wait(group):
    group.barrier()
class EndsSlowly:
    def __del__(self, sleep=time.sleep):
        sleep(1)
groups = [kerf.Group.local(2, timeout=tenths / 10) for tenths in range(1, 9)]
for group, other in groups:
    threading.Thread(target=wait, args=(group,), daemon=True).start()
sys.ends_slowly = EndsSlowly()
print("ended")
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


@pytest.mark.parametrize("times", range(4))
def test_the_interpreter_ends_beside_threads_that_let_runtimes_go(checkpoint, times: int) -> None:
    done = run(
        """
import sys, threading, time, kerf
def build():
    while True:
        kerf.Runtime.build(sys.argv[1], log=lambda *words: None)
for _ in range(4):
    threading.Thread(target=build, daemon=True).start()
time.sleep(0.25)
print("ended")
""",
        str(checkpoint),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def test_a_second_load_is_refused() -> None:
    done = run(
        """
import sys, kerf
for name in [name for name in sys.modules if name.split(".")[0] == "kerf"]:
    del sys.modules[name]
try:
    import kerf as again
except ImportError as error:
    print(error)
kerf.Group.local(1)[0].barrier()
"""
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.startswith("kerf is loaded in this process already: it cannot be loaded twice")


def test_another_interpreter_is_refused() -> None:
    interpreters = pytest.importorskip("_xxsubinterpreters", reason="this Python has no subinterpreters")
    assert interpreters is not None
    done = run(
        """
import _xxsubinterpreters as interpreters, kerf
try:
    interpreters.run_string(interpreters.create(), "import kerf")
except interpreters.RunFailedError as error:
    print(error)
kerf.Group.local(1)[0].barrier()
"""
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "in the main interpreter alone" in done.stdout


def test_a_forked_child_ends(checkpoint) -> None:
    done = run(
        """
import os, sys, kerf
groups = kerf.Group.local(2)
runtime = kerf.Runtime.build(sys.argv[1], threads=2)
runtime.warm_up()
child = os.fork()
if child == 0:
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
runtime.warm_up()
""",
        str(checkpoint),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")
