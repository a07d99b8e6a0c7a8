"""Groups: ranks as Python threads, as MPI processes, and what becomes of one that fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import kerf


def test_ranks_meet_and_results_come_in_their_order() -> None:
    seen: list[int] = []

    def rank(group: kerf.Group) -> int:
        time.sleep(0.01 * (3 - group.rank))
        seen.append(group.rank)
        group.barrier()
        assert len(seen) == 3
        assert (group.name, group.size, group.ordered) == ("local", 3, True)
        return group.rank * 10

    assert kerf.run_ranks(3, rank) == [0, 10, 20]


def test_the_cause_is_raised_and_waiting_ranks_are_told() -> None:
    told: list[str] = []

    def rank(group: kerf.Group) -> None:
        if group.rank == 1:
            raise ValueError("no such thing")
        try:
            group.barrier("a meeting")
        except kerf.GroupFailed as error:
            told.append(str(error))
            raise

    with pytest.raises(ValueError, match="no such thing"):
        kerf.run_ranks(3, rank)
    assert len(told) == 2
    for text in told:
        assert "rank 1" in text and "no such thing" in text and "a meeting" in text


def test_a_late_rank_is_named() -> None:
    late = threading.Event()

    def rank(group: kerf.Group) -> None:
        if group.rank == 1:
            late.wait(10)
            return
        try:
            group.barrier("a meeting")
        finally:
            late.set()

    with pytest.raises(kerf.PeerError, match="rank 1.*a meeting|a meeting.*rank 1"):
        kerf.run_ranks(2, rank, timeout=0.2)


def test_groups_for_ones_own_threads() -> None:
    groups = kerf.Group.local(2)
    with groups[0] as first, groups[1] as second:
        thread = threading.Thread(target=second.barrier)
        thread.start()
        first.barrier()
        thread.join()
    assert not first.is_open
    with pytest.raises(kerf.UsageError, match="has left its group"):
        first.barrier()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: kerf.Group.local(0), "a local group of 0 ranks"),
        (lambda: kerf.Group.local(2, timeout=0), "timeout"),
    ],
)
def test_nonsense_is_refused(call, words) -> None:
    with pytest.raises(kerf.UsageError, match=words):
        call()


def test_ranks_that_start_from_different_things_are_told(checkpoint) -> None:
    def rank(group: kerf.Group) -> None:
        kerf.Runtime.build(checkpoint, group, max_tokens=4 + group.rank)

    with pytest.raises(kerf.Error, match="rank 0.*4.*rank 1.*5|4 on rank 0.*5 on rank 1"):
        kerf.run_ranks(2, rank)


def test_a_runtime_of_a_rank_that_left_is_refused(checkpoint) -> None:
    group = kerf.Group.local(1)[0]
    runtime = kerf.Runtime.build(checkpoint, group, layers=[1])
    group.close()
    with pytest.raises(kerf.UsageError, match="has left its group"):
        runtime.warm_up()


MPI = """
import sys
import numpy as np
import kerf

group = kerf.Group.mpi(timeout=30)
assert kerf.Group.mpi() is group
runtime = kerf.Runtime.build(sys.argv[1], group, layers=[1], expert_tp=True, threads=1)
inputs = kerf.decode_inputs(1, 5, "nvfp4", experts=16, hidden=256, top_k=4)
rows = np.asarray(runtime.execute(1, **inputs))
np.save(f"{sys.argv[2]}/{group.rank}.npy", rows)
if len(sys.argv) > 3 and group.rank == 1:
    raise RuntimeError("rank 1 gives up")
group.barrier("the end")
"""


def mpirun(*arguments: str) -> subprocess.CompletedProcess[str]:
    if "mpi" in kerf.env()["absent"]:
        pytest.skip("this build has no MPI group: " + kerf.env()["absent"]["mpi"])
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, "-c", MPI, *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


def test_mpi_processes_have_the_bits_of_threads(checkpoint, tmp_path) -> None:
    ran = mpirun(str(checkpoint), str(tmp_path))
    assert ran.returncode == 0, ran.stderr

    def rank(group: kerf.Group) -> np.ndarray:
        runtime = kerf.Runtime.build(checkpoint, group, layers=[1], expert_tp=True)
        return np.array(runtime.execute(1, **kerf.decode_inputs(1, 5, "nvfp4", experts=16, hidden=256, top_k=4)))

    for number, rows in enumerate(kerf.run_ranks(2, rank)):
        assert np.array_equal(np.load(tmp_path / f"{number}.npy"), rows)


def test_a_process_that_fails_tells_the_others(checkpoint, tmp_path) -> None:
    ran = mpirun(str(checkpoint), str(tmp_path), "fail")
    assert ran.returncode != 0
    assert "RuntimeError: rank 1 gives up" in ran.stderr
    assert "kerf.errors.GroupFailed" in ran.stderr and "the end" in ran.stderr


@pytest.mark.skipif("mpi" not in kerf.env()["absent"], reason="this build has the MPI group")
def test_without_mpi_the_reason_is_given() -> None:
    with pytest.raises(kerf.UnsupportedError, match="KERF_MPI"):
        kerf.Group.mpi()
