"""The exceptions of kerf: one class a kind, with the texts of the command line.

A text says what was got, what is wanted, and where: file, layer, tensor, expert, rank.
"""

from __future__ import annotations

from typing import Any, ClassVar


class Error(Exception):
    """What kerf refuses or fails at.

    ``exit_code`` is what the command line ends with for this kind. ``report``: where a command found faults
    (``kerf.verify``), its whole report; otherwise None. ``written``: what the command wrote before it failed.
    """

    exit_code: ClassVar[int] = 70
    report: dict[str, Any] | None = None
    written: str = ""


class UsageError(Error):
    """Arguments that make no sense, or a file that cannot be written."""

    exit_code = 2


class CheckpointError(Error):
    """Files that are damaged, incomplete or inconsistent."""

    exit_code = 3


class UnsupportedError(Error):
    """Sound input that kerf does not run, or that the converted layout cannot hold."""

    exit_code = 4


class PeerError(Error):
    """Another rank vanished or did not come in time."""

    exit_code = 5


class GroupFailed(PeerError):
    """A collective that ended because of another rank: the group is of no more use, and the cause is elsewhere."""


class ProbeError(Error):
    """The probe found that slices do not compute what whole experts compute."""

    exit_code = 6


class OutOfMemoryError(Error):
    """There is not enough memory."""

    exit_code = 7


class DeviceError(Error):
    """A device is absent or failed."""

    exit_code = 8


class BugError(Error):
    """kerf's own fault."""

    exit_code = 70


_by_exit_code = {
    c.exit_code: c
    for c in (
        UsageError,
        CheckpointError,
        UnsupportedError,
        PeerError,
        ProbeError,
        OutOfMemoryError,
        DeviceError,
        BugError,
    )
}


def of_kind(exit_code: int, text: str) -> Error:
    """The error of a kind, by its exit code."""
    return _by_exit_code.get(exit_code, BugError)(text)
