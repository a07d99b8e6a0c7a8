"""Groups of ranks: threads of this process, processes of an MPI program, or an engine's own process group."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from kerf import _kerf, errors
from kerf._kerf import Group

Result = TypeVar("Result")

_mpi: Group | None = None


def run_ranks(ranks: int, body: Callable[[Group], Result], *, timeout: float = 60.0) -> list[Result]:
    """Runs ``body(group)`` on ``ranks`` threads of this process, and returns what each gives, ranks ascending.

    ``timeout``: seconds that a collective waits for a rank. A rank that raises leaves the group: every rank that waits
    for it raises GroupFailed. What is raised here is the cause: the lowest rank's exception that is not itself a
    GroupFailed. An interrupt (Ctrl-C) closes the group on all ranks, waits for them to return, and is raised again.
    Raises UsageError for ranks below 1 or above 4096, and for a timeout that is none.
    """
    groups = Group.local(ranks, timeout=timeout)
    results: list[Result | None] = [None] * ranks
    raised: list[BaseException | None] = [None] * ranks

    def run(group: Group) -> None:
        rank = group.rank
        why = None
        try:
            results[rank] = body(group)
        except BaseException as error:  # of a thread: raised again below
            raised[rank] = error
            why = _words(error)
        finally:
            group.close(why)

    threads = [threading.Thread(target=run, args=(group,), name=f"kerf-rank-{r}") for r, group in enumerate(groups)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as interrupt:
        for group in groups:
            group.close(f"interrupted ({type(interrupt).__name__})")
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise
    finally:
        groups.clear()
    failed = [error for error in raised if error is not None]
    for error in failed:
        if not isinstance(error, errors.GroupFailed):
            raise error
    if failed:
        raise failed[0]
    return results  # type: ignore[return-value]


def _words(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # of its own __str__
        return type(error).__name__


def _end_mpi() -> None:
    error = getattr(sys, "last_value", None)
    if _mpi is not None:
        _mpi.close(None if error is None else _words(error))


def mpi(*, timeout: float = 60.0) -> Group:
    """This process as a rank of the MPI program that it was started in (``mpirun -np 4 python ...``).

    The same object at every call; MPI is started by the first. Only the thread that calls it may use the group. It is
    closed when the interpreter ends. A rank that ends while others wait for it ends all of them: an error that nobody
    caught is told to the others, with its words; of ``sys.exit(3)`` they hear that the rank returned, and all processes
    end with the exit code 5, its own too. Raises UnsupportedError in builds without MPI.
    """
    global _mpi
    if _mpi is None:
        _mpi = _kerf.mpi_group(timeout)
        atexit.register(_end_mpi)
    return _mpi
